"""The doctor's table of rights equals the rights that the chart grants."""

from typing import Any

import pytest

from slipway.ops.doctor.installed import ACCOUNTS, Right, RightScope, optional_rights, rights_of
from tests.support import chart

Json = dict[str, Any]


def granted(documents: list[Json], service: str) -> set[Right]:
    """The rights that the chart's roles grant to that service."""
    found: set[Right] = set()
    for role in documents:
        if role["kind"] not in ("Role", "ClusterRole") or not role["metadata"]["name"].startswith(f"slipway-{service}"):
            continue
        scope = RightScope.CLUSTER
        if role["kind"] == "Role":
            places = {"red": RightScope.WORKSPACES, f"{chart.NAMESPACE}-webhooks": RightScope.WEBHOOKS}
            scope = places.get(role["metadata"]["namespace"], RightScope.OWN)
        found |= {
            Right(scope=scope, group=group, resource=resource, verb=verb, name=name)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames", [""])
        }
    return found


@pytest.mark.parametrize("service", chart.SERVICES)
def test_the_table_is_what_the_chart_gives(service: str) -> None:
    """The table equals the chart's rights, verb by verb and by scope: the namespaced form of the chart separates
    workspaces from the cluster."""
    values = {"api": {"settings": {"execEnabled": False}}, "rbac": {"namespaces": ["red"]}}
    assert granted(chart.render(values), service) == set(rights_of(service))


def test_what_settings_add() -> None:
    """Settings add rights: commands in ranks, mode `kubernetes`, requests for nodes, and the absence of a list of
    namespaces."""
    with_exec = granted(chart.render({"rbac": {"namespaces": ["red"]}}), "api") - set(rights_of("api"))
    assert with_exec == set(optional_rights("execEnabled=true"))
    settings = {"auth": "kubernetes", "execEnabled": False}
    by_kubernetes = {"api": {"settings": settings}, "rbac": {"namespaces": ["red"]}}
    more = granted(chart.render(by_kubernetes), "api") - set(rights_of("api"))
    assert more == set(optional_rights("auth=kubernetes"))
    asking = {"scheduler": {"settings": {"autoscaling": True}}, "rbac": {"namespaces": ["red"]}}
    nodes = granted(chart.render(asking), "scheduler") - set(rights_of("scheduler"))
    assert nodes == set(optional_rights("autoscaling=true"))
    everywhere = {right for right in granted(chart.render(), "api") if right.resource == "namespaces"}
    assert everywhere - set(rights_of("api")) == set(optional_rights("rbac.namespaces=[]"))


def test_the_services_are_the_accounts() -> None:
    """The table has the accounts of all four services, and no other."""
    assert set(ACCOUNTS) == set(chart.SERVICES)
