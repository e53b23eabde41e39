"""The comparison of the roles' permissions with the requests, without any cluster."""

from typing import Any

import pytest

from tests.conformance.system.permissions import (
    Account,
    Request,
    denied,
    permissions_of,
    request_of,
    unused,
    wildcards,
)

Json = dict[str, Any]
API = Account(namespace="system", name="api")
WATCHER = Account(namespace="system", name="watcher")
RULE: Json = {"apiGroups": ["", "slipway.dev"], "resources": ["pods/log"], "verbs": ["get", "list"]}


def a_role(*rules: Json, kind: str = "ClusterRole", namespace: str = "") -> list[Json]:
    """A role called `r` with these rules, bound to the api's account."""
    meta = {"name": "r"} | ({"namespace": namespace} if namespace else {})
    subject = {"kind": "ServiceAccount", "name": API.name, "namespace": API.namespace}
    binding = {
        "kind": f"{kind}Binding",
        "metadata": meta,
        "roleRef": {"kind": kind, "name": "r"},
        "subjects": [subject],
    }
    return [{"kind": kind, "metadata": meta, "rules": list(rules)}, binding]


def a_request(verb: str = "get", **fields: Any) -> Request:
    values: Json = {"user": API.user, "verb": verb, "group": "", "resource": "pods"}
    return Request(**(values | fields))


def test_every_combination_is_a_permission() -> None:
    """A rule gives a permission for each group, resource and verb, to the bound account and no other."""
    found = permissions_of([API, WATCHER], a_role(RULE))
    assert len(found) == 4
    assert {item.account for item in found} == {API}
    assert "ClusterRole r: list pods/log.slipway.dev" in {str(item) for item in found}


def test_a_command_in_a_container_uses_two_verbs() -> None:
    """The audit log contains only `get`; the API server checks `create` as well."""
    found = permissions_of([API], a_role({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}))
    assert unused(found, [a_request(resource="pods/exec")]) == []
    assert len(unused(found, [a_request()])) == 2


def test_what_was_asked_is_used() -> None:
    """A request uses a permission of its own account, verb, group, resource and subresource only."""
    found = permissions_of([API], a_role({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}))
    assert unused(found, [a_request()]) == []
    for other in (
        a_request("list"),
        a_request(resource="pods/log"),
        a_request(group="slipway.dev"),
        a_request(user=WATCHER.user),
    ):
        assert unused(found, [other]) == ["api never needed ClusterRole r: get pods"]


@pytest.mark.parametrize(("namespace", "name", "is_used"), [("a", "x", True), ("b", "x", False), ("a", "y", False)])
def test_a_role_of_a_namespace_and_names(namespace: str, name: str, is_used: bool) -> None:
    """Requests of its namespace use a Role; requests for listed names use a rule with names."""
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["x"]}
    found = permissions_of([API], a_role(rule, kind="Role", namespace="a"))
    assert (unused(found, [a_request(namespace=namespace, name=name)]) == []) is is_used


def test_wildcard_permissions_are_reported() -> None:
    """No request can show that `*` is needed."""
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}
    assert wildcards(permissions_of([API], a_role(rule))) == ["ClusterRole r: * pods"]


@pytest.mark.parametrize(("decision", "said"), [("forbid", True), ("allow", False)])
def test_only_the_authorizer_denies(decision: str, said: bool) -> None:
    """A 403 of an admission plugin, for example because of a quota, is no missing permission."""
    entry = {
        "user": {"username": API.user},
        "verb": "create",
        "objectRef": {"resource": "pods", "subresource": "binding", "namespace": "default", "name": "p"},
        "annotations": {"authorization.k8s.io/decision": decision},
        "responseStatus": {"code": 403},
    }
    told = denied([request_of(entry)])
    assert told == ([f"{API.user}: create pods/binding p in default"] if said else [])


def test_a_path_is_named_when_there_is_no_resource() -> None:
    """A request for discovery or version is reported by its path."""
    entry = {"user": {"username": API.user}, "verb": "get", "requestURI": "/version?timeout=5s"}
    assert str(request_of(entry)) == f"{API.user}: get /version"
