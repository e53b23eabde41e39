"""A whole system that may write in listed namespaces only (`rbac.namespaces`): it has Roles there and no wider right.

It has a control plane of its own: the roles of the other tests are wider.
"""

from collections.abc import Generator

import pytest

from slipway.local.valkey import ServerOptions
from tests.conformance.cluster.servers import running_cluster
from tests.conformance.system.conftest import QUICK
from tests.conformance.system.deployment import Installation
from tests.conformance.system.nodes import simulated_nodes
from tests.conformance.system.operator import GROUP, Operator
from tests.conformance.system.permissions import denied, permissions_of
from tests.conformance.system.system import System, a_body, an_allocation
from tests.conformance.wanted import require_own_cluster
from tests.support import chart
from tests.support.ports import free_port
from tests.support.redis import running_server
from tests.support.wait import wait_until

TEAM, STRANGER = "team-a", "team-b"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {
    "Role": "roles",
    "ClusterRole": "clusterroles",
    "RoleBinding": "rolebindings",
    "ClusterRoleBinding": "clusterrolebindings",
}
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
OF_NO_WORKSPACE = {
    ("", "nodes"),
    ("slipway.dev", "resourcepools/status"),
    ("authentication.k8s.io", "tokenreviews"),
}
"""written kinds that belong to no namespace; nodes are written because a label takes a node out of use"""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    """A system in which only the workspace TEAM is listed."""
    require_own_cluster()
    values = {
        **QUICK,
        "audit": {"enabled": False},
        "rbac": {"namespaces": [TEAM]},
        "setup": {"workspaces": [TEAM]},
        "trial": {"workspace": TEAM},
    }
    with running_cluster(tmp_path_factory.mktemp("narrow")) as cluster:
        operator = Operator(cluster)
        for name in (TEAM, STRANGER):
            operator.create("/api/v1/namespaces", {"metadata": {"name": name}})
        with (
            running_server("valkey", ServerOptions(port=free_port())) as server,
            simulated_nodes(cluster.kubeconfig) as nodes,
        ):
            folder = tmp_path_factory.mktemp("narrow-services")
            installation = Installation(operator, folder, {**values, "externalRedis": {"url": server.url}})
            try:
                installation.install()
                installation.start()
                yield System(installation, nodes, server)
            finally:
                installation.stop()
                operator.close()


def test_no_right_to_write_reaches_another_namespace(narrow: System) -> None:
    """Every right to write is in the listed namespaces, in those of the release, or on kinds without a namespace."""
    accounts = [narrow.installation.account(service) for service in chart.SERVICES]
    objects = [
        {"kind": kind, **item}
        for kind, plural in KINDS.items()
        for item in narrow.operator.items(f"{RBAC}/{plural}", "app.kubernetes.io/part-of=slipway")
    ]
    given = permissions_of(accounts, objects)
    wide = {(each.group, each.resource) for each in given if each.verb in WRITES and not each.namespace}
    assert wide == OF_NO_WORKSPACE
    places = {each.namespace for each in given if each.verb in WRITES and each.namespace}
    own = narrow.installation.namespace
    assert places == {TEAM, own, f"{own}-webhooks"}


def test_whole_lives_of_allocations_work_with_narrowed_rights(narrow: System) -> None:
    """A gang over REST, an applied one, one that fails twice and one that is killed: no request of ours is denied."""
    since = narrow.audit.position()
    gang = narrow.launch({**a_body(ranks=3, script={"runsS": 0.5}), "workspace": TEAM})
    again = narrow.launch({**a_body(script={"runsS": 0.1, "exit": 1}, maxRestarts=1), "workspace": TEAM})
    narrow.operator.apply(an_allocation("applied", script={"runsS": 0.3}, namespace=TEAM))
    killed = narrow.launch({**a_body(), "workspace": TEAM})
    narrow.wait_for(killed, "Running")
    narrow.post(f"/allocations/{killed}/kill")
    narrow.ended(gang, "Succeeded")
    narrow.ended(narrow.applied_id("applied", TEAM), "Succeeded")
    narrow.ended(killed, "Canceled")
    assert narrow.ended(again, "Failed")["attempt"] == 2
    narrow.operator.delete(f"{GROUP}/namespaces/{TEAM}/allocations/applied")
    gone = f"{GROUP}/namespaces/{TEAM}/allocations/applied"
    wait_until(lambda: narrow.operator.find(gone) is None, "its finalizer is taken off")
    narrow.nothing_left()
    accounts = [narrow.installation.account(service) for service in chart.SERVICES]
    assert denied(narrow.audit.requests(*accounts, since=since)) == []


def test_a_workspace_that_is_not_listed_waits_alone(narrow: System) -> None:
    """An allocation that is applied in an unlisted workspace is not admitted and gets no pod; launches in the list
    do not wait for it."""
    narrow.operator.change(
        f"/api/v1/namespaces/{STRANGER}", {"metadata": {"labels": {"slipway.dev/workspace": "true"}}}
    )
    since = narrow.audit.position()
    narrow.operator.apply(an_allocation("stranger", namespace=STRANGER))
    scheduler = narrow.installation.account("scheduler")
    wait_until(lambda: denied(narrow.audit.requests(scheduler, since=since)), "the API server refuses to admit it")
    narrow.ended(narrow.launch({**a_body(script={"runsS": 0.1}), "workspace": TEAM}), "Succeeded")
    path = f"{GROUP}/namespaces/{STRANGER}/allocations/stranger"
    assert narrow.operator.get(path)["status"]["phase"] == "Pending"
    assert narrow.operator.items(f"/api/v1/namespaces/{STRANGER}/pods") == []
    narrow.operator.delete(path)
    wait_until(lambda: narrow.operator.find(path) is None, "it goes when it is deleted")
