"""Each account has exactly the rights for which helm/README.md gives a reason, and no broad ones."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import chart

Right = tuple[str, str]
"""(resource as `plural.group/subresource`, verb)."""

README = chart.CHART / "README.md"
COMPONENTS = (*chart.SERVICES, chart.SETUP, chart.AUDIT, chart.TRIAL, chart.UNINSTALL)
ROW = re.compile(r"^\| (?P<resources>`[^|]+) \| (?P<verbs>[a-z, ]+) \| (?P<why>[^|]+) \|$")
DANGEROUS = {"escalate", "bind", "impersonate", "*"}


EVERYTHING = {
    "audit": {"enabled": True},
    "uninstall": {"removeAllocations": True},
    "api": {"settings": {"auth": "kubernetes"}},
    "scheduler": {"settings": {"autoscaling": True}},
}


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """The chart with its default values and every account that it can create."""
    return chart.render(EVERYTHING)


def _documented(component: str) -> Iterator[tuple[Right, str]]:
    section = README.read_text("utf-8").split(f"### slipway-{component}\n")[1].split("\n#")[0]
    for line in section.splitlines():
        row = ROW.match(line)
        if row is not None:
            for resource in re.findall(r"`([^`]+)`", row["resources"]):
                for verb in row["verbs"].split(","):
                    yield (resource, verb.strip()), row["why"]


def _roles(documents: list[dict[str, Any]], component: str) -> Iterator[dict[str, Any]]:
    """The rules that bindings give the component's account."""
    account = chart.service_account(documents, component)
    roles = {_place(item, item["kind"]): item for item in documents if item["kind"].endswith("Role")}
    for item in documents:
        if item["kind"].endswith("RoleBinding") and any(one["name"] == account for one in item["subjects"]):
            yield roles[_place(item, item["roleRef"]["kind"])]


def _place(item: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """(kind, namespace, name) of a role; for a binding those of its role, which has the same name and namespace."""
    return kind, item["metadata"].get("namespace", "") if kind == "Role" else "", item["metadata"]["name"]


def _granted(documents: list[dict[str, Any]], component: str) -> set[Right]:
    return {
        (_spelled(group, resource), verb)
        for role in _roles(documents, component)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _spelled(group: str, resource: str) -> str:
    plural, slash, subresource = resource.partition("/")
    return f"{plural}.{group}{slash}{subresource}" if group else resource


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_right_has_a_reason(documents: list[dict[str, Any]], component: str) -> None:
    """Every granted right is in the table, and every right of the table is granted."""
    assert _granted(documents, component) == {right for right, _ in _documented(component)}


@pytest.mark.parametrize("component", COMPONENTS)
def test_reasons_name_code(component: str) -> None:
    """A reason names an existing file."""
    for right, why in _documented(component):
        files = re.findall(r"`((?:shared|services)/[^`]+)`", why)
        assert files, right
        assert [name for name in files if not Path(chart.ROOT, name).is_file()] == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_no_account_can_grant_itself_rights(documents: list[dict[str, Any]], component: str) -> None:
    """No account has a wildcard or a verb that gives more rights; only the api may run commands in pods, when enabled.

    Only the api reads Secrets, in the namespace of webhooks; in workspaces the api may create them and the watcher
    delete them, for secret values of launches.

    Only the api changes nodes, to take them out of use and back; it creates and removes none.
    """
    granted = _granted(documents, component)
    assert not {verb for _, verb in granted} & DANGEROUS
    assert not {resource for resource, _ in granted if "*" in resource}
    commands = {"pods/exec"} if component == "api" else set[str]()
    assert {resource for resource, _ in granted if "exec" in resource} == commands
    without = chart.render({**EVERYTHING, "api": {"settings": {"execEnabled": False}}})
    assert not {resource for resource, _ in _granted(without, component) if "exec" in resource}
    reaches = dict[tuple[str, str], set[str]]()
    for role in _roles(documents, component):
        for rule in filter(_is_secrets, role["rules"]):
            reaches.setdefault(_place(role, "Role")[:2], set()).update(rule["verbs"])
    if component == "api":
        del reaches["Role", WEBHOOKS]
    in_workspaces = {"api": {"create"}, "watcher": {"delete"}}
    assert reaches == ({("Role", ""): in_workspaces[component]} if component in in_workspaces else {})
    changes = {"patch"} if component == "api" else set[str]()
    assert {verb for resource, verb in granted if resource == "nodes"} - {"get", "list", "watch"} == changes


def _is_secrets(rule: dict[str, Any]) -> bool:
    return "secrets" in rule["resources"]


def test_accounts_are_apart(documents: list[dict[str, Any]]) -> None:
    """Each program has an account in the release's namespace, and only its pods mount a token."""
    accounts = [chart.service_account(documents, component) for component in COMPONENTS]
    assert len(set(accounts)) == len(COMPONENTS)
    made = {item["metadata"]["name"]: item for item in documents if item["kind"] == "ServiceAccount"}
    assert set(made) == set(accounts)
    assert all(item["automountServiceAccountToken"] is False for item in made.values())
    assert all(chart.pod_spec(documents, one)["automountServiceAccountToken"] for one in COMPONENTS)
    assert chart.pod_spec(documents, "valkey")["automountServiceAccountToken"] is False


def test_the_audit_only_reads(documents: list[dict[str, Any]]) -> None:
    """Without the audit no object of it exists; with it, its account cannot write."""
    assert {verb for _, verb in _granted(documents, chart.AUDIT)} == {"get", "list", "watch"}
    assert not [item for item in chart.render() if item["metadata"]["name"].endswith("-audit")]


def test_the_setup_may_touch_its_namespaces_only() -> None:
    """The setup may label only the namespaces that the values name."""
    documents = chart.render({"setup": {"workspaces": ["team-a", "team-b"], "queues": {"default": None}}})
    rules = {rule["resources"][0]: rule for role in _roles(documents, chart.SETUP) for rule in role["rules"]}
    assert rules["namespaces"]["resourceNames"] == ["team-a", "team-b"]
    assert rules["resourcepools"]["resources"] == ["resourcepools"]


NAMESPACES = ["team-a", "team-b"]
WEBHOOKS = f"{chart.NAMESPACE}-webhooks"


@pytest.mark.parametrize("component", chart.SERVICES)
def test_rights_can_be_narrowed_to_namespaces(component: str, documents: list[dict[str, Any]]) -> None:
    """Then only objects that belong to no workspace are written elsewhere; in total the rights are the same.

    An exception is creating workspaces, because then the values name them.
    """
    narrow = chart.render({**EVERYTHING, "rbac": {"namespaces": NAMESPACES}})
    makes = {("namespaces", verb) for verb in ("create", "delete", "patch")} if component == "api" else set[Right]()
    assert _granted(narrow, component) == _granted(documents, component) - makes
    wide = [role for role in _roles(narrow, component) if role["kind"] == "ClusterRole"]
    writes = {
        (resource, verb)
        for role in wide
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert writes <= {
        ("nodes", "patch"),
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
        ("resourcepools/status", "update"),
    }
    places = {role["metadata"]["namespace"] for role in _roles(narrow, component) if role["kind"] == "Role"}
    assert places - {chart.NAMESPACE, WEBHOOKS} == set(NAMESPACES)


def test_accounts_of_hooks_are_not_there_for_long() -> None:
    """The account that launches a trial, and the one that deletes everything at the end, exist only while their
    hooks run."""
    documents = chart.render({"uninstall": {"removeAllocations": True}})
    for component, event in ((chart.TRIAL, "test"), (chart.UNINSTALL, "pre-delete")):
        name = chart.service_account(documents, component)
        own = [item for item in documents if item["metadata"]["name"] == name]
        assert {"ServiceAccount", "Pod" if event == "test" else "Job"} < {item["kind"] for item in own}
        for item in own:
            notes = item["metadata"]["annotations"]
            assert notes["helm.sh/hook"] == event
            assert "hook-succeeded" in notes["helm.sh/hook-delete-policy"]
