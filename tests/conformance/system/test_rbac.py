"""The chart's roles give each account the rights that it needs, and no others: checked with the API server's own audit
log.

These tests run last (see conftest.py), because they judge the requests of the services in all other tests.
"""

from pathlib import Path

import pytest

from tests.conformance.system.conftest import SHARD, UNUSED, WHOLE
from tests.conformance.system.operator import Json
from tests.conformance.system.permissions import Permission, denied, permissions_of, unused, wildcards
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {
    "Role": "roles",
    "ClusterRole": "clusterroles",
    "RoleBinding": "rolebindings",
    "ClusterRoleBinding": "clusterrolebindings",
}
PODWORKER = f"{RBAC}/clusterroles/slipway-podworker"


def granted(system: System) -> set[Permission]:
    """The permissions that the chart gives its accounts, without those that the API server gives every authenticated
    user."""
    objects = [
        {"kind": kind, **item}
        for kind, plural in KINDS.items()
        for item in system.operator.items(f"{RBAC}/{plural}", "app.kubernetes.io/part-of=slipway")
    ]
    return permissions_of(system.installation.accounts(), objects)


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> None:
    """Skip when only a part of the folder runs: then needed permissions are unused."""
    if not request.config.stash[WHOLE]:
        pytest.skip("judges what the whole folder made the services do; run tests/conformance/system")


def test_nothing_was_denied(system: System) -> None:
    """The authorizer refused no request of ours."""
    assert denied(system.audit.requests(*system.installation.accounts())) == []


def test_every_permission_was_needed(system: System, whole: None) -> None:
    """Each verb that a role gives was used by an account that has the role. A shard writes the verbs that it did not
    use; the run judges those that no shard used."""
    permissions = granted(system)
    assert len(permissions) > 40
    left = unused(permissions, system.audit.requests(*system.installation.accounts()))
    if SHARD:
        Path(UNUSED).write_text("".join(f"{each}\n" for each in left), "utf-8")
    else:
        assert left == []


def test_no_permission_names_everything(system: System) -> None:
    """No rule is a wildcard, and no account but ours is bound to a role of ours."""
    assert wildcards(granted(system)) == []
    bindings = [
        item
        for plural in ("rolebindings", "clusterrolebindings")
        for item in system.operator.items(f"{RBAC}/{plural}", "app.kubernetes.io/part-of=slipway")
    ]
    subjects = {(each["kind"], each.get("namespace"), each["name"]) for item in bindings for each in item["subjects"]}
    assert subjects == {("ServiceAccount", one.namespace, one.name) for one in system.installation.accounts()}


def test_a_missing_verb_is_noticed(system: System) -> None:
    """Without `create pods/binding` the launch is stuck, which is not the user's failure, and the check names the
    verb."""
    role = system.operator.get(PODWORKER)
    since = system.audit.position()
    with system.audit.excluded():
        system.operator.replace(PODWORKER, {**role, "rules": without(role["rules"], "pods/binding")})
        try:
            id_ = system.launch(a_body(script={"runsS": 0.1}))
            account = system.installation.account("podworker")
            told = wait_until(lambda: denied(system.audit.requests(account, since=since)), "a denied request")
            assert told[0].startswith(f"{account.user}: create pods/binding {id_}-1-0 in default")
            stuck = system.wait_until(id_, lambda view: condition(view, "Stuck") is not None, "stuck")
            assert stuck["phase"] == "Assigned"
            assert "cannot create resource" in str(condition(stuck, "Stuck"))
        finally:
            restore(system, role)
        system.ended(id_, "Succeeded")


def test_an_unneeded_verb_is_noticed(system: System) -> None:
    """A rule that no request needs is named, with its role."""
    role = system.operator.get(PODWORKER)
    extra = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    system.operator.replace(PODWORKER, {**role, "rules": [*role["rules"], extra]})
    try:
        told = unused(granted(system), system.audit.requests(*system.installation.accounts()))
    finally:
        restore(system, role)
    assert "slipway-podworker never needed ClusterRole slipway-podworker: get secrets" in told


def without(rules: list[Json], resource: str) -> list[Json]:
    """The rules without those on that resource."""
    return [rule for rule in rules if resource not in rule["resources"]]


def restore(system: System, role: Json) -> None:
    """Restore the rules of the role."""
    now = system.operator.get(PODWORKER)
    system.operator.replace(PODWORKER, {**now, "rules": role["rules"]})


def condition(view: Json, name: str) -> Json | None:
    """The condition of an allocation, unless it is False."""
    found = [item for item in view["status"].get("conditions") or () if item["type"] == name]
    return found[0] if found and found[0]["status"] != "False" else None
