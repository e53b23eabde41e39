"""A ResourceQuota as the planner sees it: the amounts that concern pods, in thousandths."""

import msgspec
import pytest

from slipway.crd.roleresources import pod_resources
from slipway.crd.v1alpha1 import RoleSpec
from slipway.facts.core_objects import decode_fact, encode_fact, quota_fact
from slipway.kube.objects import ResourceQuota
from slipway.model.facts import QuotaFact, QuotaScope
from slipway.model.resources import Resources


def _read(spec: object, used: dict[str, str] | None = None) -> QuotaFact:
    wire = {"metadata": {"name": "team", "namespace": "red"}, "spec": spec, "status": {"used": used or {}}}
    return quota_fact(msgspec.convert(wire, ResourceQuota))


def test_amounts_of_pods_are_kept_and_those_of_other_objects_are_not() -> None:
    hard = {"pods": "4", "requests.cpu": "1500m", "limits.memory": "1Gi", "requests.nvidia.com/gpu": 2}
    others = {"services": "3", "count/configmaps": "5", "requests.storage": "1Ti", "persistentvolumeclaims": "2"}
    found = _read({"hard": hard | others}, {"pods": "1", "services": "1", "requests.cpu": "0"})
    assert found.hard == {
        "pods": 4000,
        "requests.cpu": 1500,
        "limits.memory": 1000 * 2**30,
        "requests.nvidia.com/gpu": 2000,
    }
    assert found.used == {"pods": 1000}


@pytest.mark.parametrize("amount", ["20Pi", str(20 * 2**50)])
def test_an_amount_of_many_petabytes_bounds(amount: str) -> None:
    """An amount of many petabytes is a limit, although its thousandths need more than 64 bits. Only an amount that
    itself needs more than 64 bits is no limit."""
    found = _read({"hard": {"requests.memory": amount, "limits.memory": "100Ei"}}, {"requests.memory": "9Pi"})
    assert found.hard == {"requests.memory": 1000 * 20 * 2**50}
    assert found.used == {"requests.memory": 1000 * 9 * 2**50}
    assert decode_fact("resourcequotas", encode_fact(found)) == found


def test_scopes_come_from_both_fields() -> None:
    chosen = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}
    found = _read({"hard": {"pods": "1"}, "scopes": ["NotBestEffort"], "scopeSelector": chosen})
    assert found.scopes == (QuotaScope("NotBestEffort"), QuotaScope("PriorityClass", "In", ("high",)))


def test_what_is_no_quantity_bounds_nothing() -> None:
    assert _read({"hard": {"pods": "many"}}).hard == {}


@pytest.mark.parametrize(
    ("resources", "limits"),
    [
        ({}, {"cpu": 3000}),
        ({"cpu": "1"}, {"cpu": 1000}),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "4", "memory": "1Ki"}}, {"cpu": 5000, "memory": 1024}),
    ],
)
def test_limits_of_a_rank_are_those_of_its_containers(resources: dict[str, object], limits: dict[str, int]) -> None:
    """The role's own resources replace those of the main container; a sidecar's limit is added."""
    containers = [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]
    sidecars = [{"name": "log", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}]
    template = {"spec": {"containers": containers, "initContainers": sidecars}}
    role = RoleSpec(name="worker", count=1, resources=resources)
    assert pod_resources(role, template).limits() == Resources(limits)
