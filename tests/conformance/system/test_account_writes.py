"""The account of a service may write what its service writes, and nothing else of the objects that it may write.

Each attempt uses the account's own token on the real API server, as a dry run. Next to it stands the write of the
service itself, which is accepted. All other tests of this folder show that whole lives work under the same policies."""

from collections.abc import Generator
from typing import Any

import httpx2
import pytest

from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System
from tests.conformance.system.test_policies import MERGE, a_pod, a_service, acting_as, refused, taken
from tests.support import chart
from tests.support.names import fresh

OURS = chart.NAMESPACE
WEBHOOKS = f"{OURS}-webhooks"
DRY = {"dryRun": "All"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
PRODUCTION = "production"
DEFAULT = "/api/v1/namespaces/default"
GONE: list[Json] = [
    {"apiVersion": "v1", "kind": "Namespace", "name": "no-such", "uid": "00000000-0000-0000-0000-000000000000"}
]
"""An owner that does not exist: the garbage collector deletes an object with such an owner."""
EVIL: Json = {"name": "m", "command": ["evil"], "image": "example.org/evil:1"}


@pytest.fixture
def owner(system: System) -> Generator[Json]:
    """An allocation that never starts, as the owner of the objects that a test tries."""
    name = fresh("written")
    body = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name, "labels": {"team": "red"}, "finalizers": ["slipway.dev/teardown"]},
        "spec": {
            "kind": "command",
            "hold": True,
            "template": {"spec": {"containers": [{**EVIL, "command": ["true"]}]}},
        },
    }
    made = system.operator.create(f"{GROUP}/namespaces/default/allocations", body)
    yield made["metadata"]
    system.operator.delete(f"{GROUP}/namespaces/default/allocations/{name}")


@pytest.fixture
def rank(system: System, owner: Json) -> Generator[str]:
    """The path of a pod of ours that waits behind its scheduling gate."""
    pod = a_pod(owner, schedulingGates=[{"name": "slipway.dev/launch"}], schedulerName="none")
    pod["metadata"] |= {
        "name": owner["name"],
        "finalizers": ["slipway.dev/tracking"],
        "annotations": {"note": "1"},
    }
    system.operator.create(f"{DEFAULT}/pods", pod)
    path = f"{DEFAULT}/pods/{owner['name']}"
    yield path
    system.operator.change(path, {"metadata": {"finalizers": None}})
    system.operator.delete(path)


@pytest.fixture(scope="module")
def production(system: System) -> Generator[str]:
    """The path of a namespace that is no workspace, with annotations of an administrator."""
    path = f"/api/v1/namespaces/{fresh(PRODUCTION)}"
    metadata = {"name": path.rpartition("/")[2], "annotations": {"slipway.dev/secrets": "", "owner": "bank"}}
    system.operator.create("/api/v1/namespaces", {"metadata": metadata})
    yield path
    system.operator.delete(path)


def path_of(name: str, production: str) -> str:
    """The path of a namespace."""
    return production if name == PRODUCTION else f"/api/v1/namespaces/{name}"


def merge(client: httpx2.Client, path: str, metadata: Json | None = None, **fields: Any) -> httpx2.Response:
    """A dry run of a merge patch."""
    body = {**({"metadata": metadata} if metadata else {}), **fields}
    return client.patch(path, json=body, headers=MERGE, params=DRY)


# --- namespaces and nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", PRODUCTION, "kube-system"])
def test_no_namespace_gets_an_owner_or_a_finalizer(system: System, production: str, name: str) -> None:
    """The api cannot set an owner or a finalizer on any namespace: with a missing owner it would be deleted with all
    its content."""
    path = path_of(name, production)
    with acting_as(system, "api") as client:
        ways: tuple[Json, ...] = ({"ownerReferences": GONE}, {"finalizers": ["example.org/stay"]})
        for metadata in ways:
            answer = merge(client, path, metadata)
            assert answer.status_code == httpx2.codes.FORBIDDEN, answer.text
        refused(merge(client, "/api/v1/namespaces/default", {"ownerReferences": GONE}), "owners", "ownerReferences")


def test_no_node_gets_an_owner_or_a_finalizer(system: System) -> None:
    """The api cannot set an owner or a finalizer on a node, which would remove the node or keep it for ever; it can
    only take it out of use."""
    path = f"/api/v1/nodes/{system.nodes.names[0]}"
    with acting_as(system, "api") as client:
        taken(merge(client, path, {"labels": {"slipway.dev/scheduling": "disabled"}}))
        refused(merge(client, path, {"ownerReferences": GONE}), "owners", "ownerReferences")
        refused(merge(client, path, {"finalizers": ["example.org/stay"]}), "owners", "finalizers")
        refused(merge(client, path, {"labels": {"slipway.dev/other": "x"}}), "nodes", "out of use")


@pytest.mark.parametrize("name", ["default", PRODUCTION, "kube-system"])
def test_what_administrators_set_on_namespaces_stays(system: System, production: str, name: str) -> None:
    """The api cannot change which accounts and Secrets ranks may use, or annotations of other programs; only
    defaults of launches."""
    path = path_of(name, production)
    with acting_as(system, "api") as client:
        for annotations in (
            {"slipway.dev/service-accounts": "*"},
            {"slipway.dev/secrets": "*"},
            {"scheduler.alpha.kubernetes.io/node-selector": "a=b"},
            {"iam.amazonaws.com/permitted": ".*"},
        ):
            refused(merge(client, path, {"annotations": annotations}), "namespaces", "")


def test_of_a_namespace_that_is_no_workspace_nothing_changes(system: System, production: str) -> None:
    """The api cannot change a namespace that is no workspace, except to make it one: that sets its label and the
    defaults of launches, and removes nothing."""
    default = {"annotations": {"slipway.dev/default-pool": "default"}}
    with acting_as(system, "api") as client:
        refused(merge(client, production, default), "namespaces", "no workspace and does not become one")
        adopted = {**default, "labels": {"slipway.dev/workspace": "true"}}
        taken(merge(client, production, adopted))
        released = {**adopted, "annotations": {"slipway.dev/secrets": None}}
        refused(merge(client, production, released), "namespaces", "administrators set all others")
        taken(merge(client, "/api/v1/namespaces/default", {"annotations": {"slipway.dev/run-as": "{}"}}))


def test_a_new_namespace_opens_nothing(system: System) -> None:
    """The api may create a workspace, but not with an annotation that allows accounts or one that other programs
    read."""
    labels = {"slipway.dev/workspace": "true", "app.kubernetes.io/managed-by": "slipway"}
    with acting_as(system, "api") as client:

        def make(**metadata: Any) -> httpx2.Response:
            body = {"metadata": {"name": "new", "labels": labels, **metadata}}
            return client.post("/api/v1/namespaces", json=body, params=DRY)

        taken(make(annotations={"slipway.dev/default-pool": "default", "slipway.dev/user": "ada"}))
        for key in ("slipway.dev/service-accounts", "iam.amazonaws.com/permitted"):
            refused(make(annotations={key: "*"}), "namespaces", "administrators set all others")
        refused(make(labels={**labels, "istio-injection": "enabled"}), "namespaces", "is a workspace")
        refused(make(ownerReferences=GONE), "owners", "neither an allocation nor an archive")


# --- Services -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        ("headless", {"clusterIP": None}),
        ("headless", {"clusterIP": None, "externalIPs": ["8.8.8.8", "10.0.0.1"]}),
        ("traffic", {"externalIPs": ["8.8.8.8", "10.0.0.1"]}),
        ("headless", {"clusterIP": None, "type": "NodePort"}),
        ("headless", {"clusterIP": None, "type": "LoadBalancer"}),
        ("headless", {"clusterIP": None, "type": "ExternalName", "externalName": "example.org"}),
        ("selects other pods", {"selector": {"app": "database"}}),
        ("selects other pods", {"selector": {"slipway.dev/allocation-uid": "another"}}),
        ("selects other pods", {"selector": None}),
    ],
)
def test_a_service_takes_no_traffic_of_others(system: System, owner: Json, words: str, spec: Json) -> None:
    """A Service must be headless and select the pods of its allocation; each refused one differs from the accepted
    one."""
    with acting_as(system, "podworker") as client:
        taken(client.post(f"{DEFAULT}/services", json=a_service(owner), params=DRY))
        refused(client.post(f"{DEFAULT}/services", json=a_service(owner, **spec), params=DRY), "services", words)


def test_a_service_has_the_name_of_its_allocation(system: System, owner: Json) -> None:
    """A Service with a name that other programs look up, such as `database`, could answer in place of theirs."""
    squatter = a_service(owner)
    squatter["metadata"]["name"] = "database"
    with acting_as(system, "podworker") as client:
        refused(client.post(f"{DEFAULT}/services", json=squatter, params=DRY), "services", "name")


def a_shared_service(owner: Json, **spec: object) -> Json:
    """A Service like the one that allocations share."""
    labels = {"slipway.dev/service": "written", "app.kubernetes.io/managed-by": "slipway"}
    owned = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "name": owner["name"], "uid": owner["uid"]}
    whole = {"selector": {"slipway.dev/service": "written"}, "ports": [{"port": 80}], **spec}
    return {"metadata": {"name": "written", "labels": labels, "ownerReferences": [owned]}, "spec": whole}


@pytest.mark.parametrize(
    ("words", "metadata", "spec"),
    [
        ("traffic", {}, {"externalIPs": ["8.8.8.8"]}),
        ("headless", {}, {"type": "NodePort"}),
        ("headless", {}, {"type": "LoadBalancer"}),
        ("selects other pods", {}, {"selector": {"app": "database"}}),
        ("selects other pods", {}, {"selector": {"slipway.dev/service": "another"}}),
        ("name", {"name": "database"}, {}),
    ],
)
def test_a_shared_service_selects_its_own_pods(
    system: System, owner: Json, words: str, metadata: Json, spec: Json
) -> None:
    """A shared Service selects pods by its own label, has its own name, and an address inside the cluster only."""
    with acting_as(system, "podworker") as client:
        taken(client.post(f"{DEFAULT}/services", json=a_shared_service(owner), params=DRY))
        body = a_shared_service(owner, **spec)
        body["metadata"] |= metadata
        refused(client.post(f"{DEFAULT}/services", json=body, params=DRY), "services", words)


def test_of_a_shared_service_only_the_owners_change(system: System, owner: Json) -> None:
    """Its owners are allocations, and none is its controller; its selector and its ports cannot change."""
    body = a_shared_service(owner)
    [owned] = body["metadata"]["ownerReferences"]
    path = f"{DEFAULT}/services/written"
    system.operator.create(f"{DEFAULT}/services", body)
    try:
        with acting_as(system, "podworker") as client:
            another = {**owned, "name": "another", "uid": "00000000-0000-0000-0000-000000000001"}
            taken(merge(client, path, {"ownerReferences": [owned, another]}))
            for wrong in (*GONE, {**another, "controller": True}):
                refused(merge(client, path, {"ownerReferences": [owned, wrong]}), "owners", "ownerReferences")
            refused(merge(client, path, spec={"selector": {"app": "database"}}), "services", "")
            refused(merge(client, path, spec={"ports": [{"port": 81}]}), "services", "may not be changed")
            refused(merge(client, path, {"labels": {"slipway.dev/service": "database"}}), "", "")
    finally:
        system.operator.delete(path)


@pytest.mark.parametrize("kind", ["configmaps", "services"])
def test_no_other_program_is_given_orders(system: System, owner: Json, kind: str) -> None:
    """The podworker cannot set labels and annotations that other programs act on, such as dashboards and DNS."""
    with acting_as(system, "podworker") as client:
        for field, key in (
            ("labels", "grafana_dashboard"),
            ("annotations", "external-dns.alpha.kubernetes.io/hostname"),
        ):
            body = a_service(owner)
            if kind == "configmaps":
                del body["spec"]
            taken(client.post(f"{DEFAULT}/{kind}", json=body, params=DRY))
            body["metadata"][field] = {**body["metadata"].get(field, {}), key: "x"}
            refused(client.post(f"{DEFAULT}/{kind}", json=body, params=DRY), "objects", "not Slipway's")


# --- allocations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["scheduler", "watcher"])
def test_what_an_allocation_runs_is_its_users(system: System, owner: Json, component: str) -> None:
    """A scheduler or watcher cannot change an allocation's spec, user, owners or finalizers."""
    path = f"{GROUP}/namespaces/default/allocations/{owner['name']}"
    spec: tuple[Json, ...] = (
        {"template": {"spec": {"containers": [EVIL]}}, "hold": False},
        {"priority": 100},
        {"desired": "Stopped"},
        {"signals": {"attempt": 1, "ready": True}},
    )
    with acting_as(system, component) as client:
        for each in spec:
            refused(merge(client, path, spec=each), "allocations", "the spec of an allocation")
        refused(merge(client, path, {"labels": {"team": "blue"}}), "allocations", "labels")
        refused(merge(client, path, {"annotations": {"slipway.dev/trace": "x"}}), "allocations", "annotations")
        # The policy `user` may have restored the true name before this policy runs.
        answer = merge(client, path, {"annotations": {"slipway.dev/user": "boss"}})
        assert answer.json().get("metadata", {}).get("annotations", {}).get("slipway.dev/user") != "boss"
        refused(merge(client, path, {"ownerReferences": GONE}), "owners", "ownerReferences")
        stay = {"finalizers": ["slipway.dev/teardown", "example.org/stay"]}
        refused(merge(client, path, stay), "owners", "finalizers")


def test_the_watcher_removes_the_finalizer_that_the_scheduler_added(system: System, owner: Json) -> None:
    """Only the scheduler adds the finalizer, and only the watcher removes it, with the mark that the usage is
    booked."""
    path = f"{GROUP}/namespaces/default/allocations/{owner['name']}"
    booked: Json = {"finalizers": [], "annotations": {"slipway.dev/usage": "booked"}}
    with acting_as(system, "watcher") as client:
        taken(merge(client, path, booked))
    for component in ("scheduler", "api"):
        with acting_as(system, component) as client:
            refused(merge(client, path, {"finalizers": []}), "allocations", "removed by the watcher")
    system.operator.change(path, {"metadata": {"finalizers": None}})
    with acting_as(system, "watcher") as client:
        refused(merge(client, path, {"finalizers": ["slipway.dev/teardown"]}), "allocations", "added by the scheduler")
    with acting_as(system, "scheduler") as client:
        taken(merge(client, path, {"finalizers": ["slipway.dev/teardown"]}))


def test_the_api_changes_what_its_callers_change(system: System, owner: Json) -> None:
    """The api may change the spec and the mark of a batch, but not the owner of an allocation."""
    path = f"{GROUP}/namespaces/default/allocations/{owner['name']}"
    with acting_as(system, "api") as client:
        taken(merge(client, path, {"annotations": {"slipway.dev/last-batch": "x"}}, spec={"priority": 7}))
        refused(merge(client, path, {"annotations": {"slipway.dev/user": "boss"}}), "allocations", "annotations")
        refused(merge(client, path, {"labels": {"team": "blue"}}), "allocations", "labels")
        refused(merge(client, path, {"ownerReferences": GONE}), "owners", "ownerReferences")


# --- pods, ConfigMaps, quotas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["podworker", "watcher"])
def test_the_identity_of_a_rank_cannot_be_changed(system: System, rank: str, component: str) -> None:
    """The services cannot change a rank's image, which the kubelet would start, its labels, by which it is found, or
    its owner."""
    image = {"spec": {"containers": [{"name": "main", "image": "example.org/evil:1"}]}}
    with acting_as(system, component) as client:
        answer = client.patch(rank, json=image, headers=STRATEGIC, params=DRY)
        refused(answer, "rank-changes", "may not be changed")
        refused(merge(client, rank, spec={"activeDeadlineSeconds": 1}), "rank-changes", "may not be changed")
        for labels in ({"app": "database"}, {"slipway.dev/allocation-uid": "another"}):
            refused(merge(client, rank, {"labels": labels}), "objects", "labels")
        refused(merge(client, rank, {"annotations": {"note": "2"}}), "objects", "annotations")
        for owners in (None, GONE):
            refused(merge(client, rank, {"ownerReferences": owners}), "owners", "ownerReferences")
        refused(merge(client, rank, {"finalizers": ["example.org/stay"]}), "owners", "finalizers")


def test_the_podworker_opens_its_gate_and_the_watcher_does_not(system: System, rank: str) -> None:
    """The podworker opens the gate towards one node, with the time as a mark; the watcher may only remove the
    finalizer."""
    here = {"key": "metadata.name", "operator": "In", "values": [system.nodes.names[0]]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [here]}]}}
    opening: list[Json] = [
        {"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": terms}},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
        {"op": "add", "path": "/metadata/annotations/slipway.dev~1gate-opened", "value": "2026-01-01T00:00:00Z"},
    ]
    going: list[Json] = [{"op": "remove", "path": "/metadata/finalizers/0"}]
    with acting_as(system, "podworker") as client:
        taken(client.patch(rank, json=opening, headers=JSON_PATCH, params=DRY))
    with acting_as(system, "watcher") as client:
        answer = client.patch(rank, json=opening, headers=JSON_PATCH, params=DRY)
        refused(answer, "rank-changes", "may not be changed")
        taken(client.patch(rank, json=going, headers=JSON_PATCH, params=DRY))


def test_of_an_archive_only_its_content_and_marks_change(system: System) -> None:
    """The labels and owners of an archive cannot change, so that the archive is cleaned up."""
    index: Json = {"metadata": {"name": "slipway-context-tried", "labels": {"slipway.dev/context": "index"}}}
    path = f"{DEFAULT}/configmaps/slipway-context-tried"
    system.operator.create(f"{DEFAULT}/configmaps", index)
    try:
        with acting_as(system, "api") as client:
            taken(merge(client, path, {"annotations": {"slipway.dev/used-at": "now"}}, data={"index": "{}"}))
            refused(merge(client, path, {"labels": {"grafana_dashboard": "1"}}), "objects", "labels")
            refused(
                merge(client, path, {"annotations": {"k8s-sidecar-target-directory": "/"}}), "objects", "annotations"
            )
            refused(merge(client, path, {"ownerReferences": GONE}), "owners", "ownerReferences")
    finally:
        system.operator.delete(path)


def test_the_watcher_writes_totals_of_usage_and_no_other_map(system: System) -> None:
    """The watcher may only write totals of usage in the namespace of the services: other maps may be configuration."""
    path = f"/api/v1/namespaces/{OURS}/configmaps"
    with acting_as(system, "watcher") as client:

        def make(name: str, **labels: str) -> httpx2.Response:
            return client.post(path, json={"metadata": {"name": name, "labels": labels}}, params=DRY)

        taken(make("slipway-usage-2026-01-01", **{"slipway.dev/usage": "true"}))
        refused(make("slipway-usage-2026-01-01", grafana_dashboard="1"), "books", "not Slipway's")
        answer = make("another", **{"slipway.dev/usage": "true"})
        assert answer.status_code == httpx2.codes.FORBIDDEN, answer.text


def test_a_quota_is_that_of_a_workspace(system: System, production: str) -> None:
    """The api may create a quota in a workspace only, and only under its own name."""

    def a_quota(name: str) -> Json:
        return {
            "metadata": {"name": name, "labels": {"slipway.dev/workspace": "true"}},
            "spec": {"hard": {"pods": "0"}},
        }

    with acting_as(system, "api") as client:
        taken(client.post(f"{DEFAULT}/resourcequotas", json=a_quota("slipway-quota"), params=DRY))
        answer = client.post(f"{DEFAULT}/resourcequotas", json=a_quota("another"), params=DRY)
        refused(answer, "quotas", "slipway-quota")
        answer = client.post(f"{production}/resourcequotas", json=a_quota("slipway-quota"), params=DRY)
        refused(answer, "quotas", "no workspace")


def test_a_namespace_is_adopted_together_with_its_quota(system: System) -> None:
    """The api adopts a namespace and creates its quota together: the policies see the new label a moment after the
    write."""
    name = fresh("adopted")
    path = f"/api/v1/namespaces/{name}"
    system.operator.create("/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        body = {"name": name, "adopt": True, "defaultPool": "default", "quota": {"pods": 5}}
        made = system.ask(lambda api: api.post("/workspaces", body))
        assert (made["defaultPool"], made["quota"]) == ("default", {"pods": "5"})
        system.ask(lambda api: api.call("DELETE", f"/workspaces/{name}"))
        left = system.operator.get(path)["metadata"]
        assert "slipway.dev/workspace" not in left["labels"]
        assert "slipway.dev/default-pool" not in left.get("annotations", {})
    finally:
        system.operator.delete(path)


# --- Secrets --------------------------------------------------------------------------------------------------------


def a_webhook(**labels: str) -> Json:
    return {
        "metadata": {"name": "slipway-webhook-x", "labels": {"slipway.dev/webhook": "true", **labels}},
        "type": "Opaque",
    }


def values_of(owner: Json, **metadata: Any) -> Json:
    """The Secret with the secret values of an allocation."""
    owned = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "name": owner["name"], "uid": owner["uid"]}
    return {
        "metadata": {
            "name": f"slipway-values-{owner['uid']}",
            "labels": {"slipway.dev/allocation-uid": owner["uid"]},
            "ownerReferences": [owned],
            **metadata,
        },
        "type": "Opaque",
    }


def secrets_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


@pytest.mark.parametrize("namespace", ["kube-system", PRODUCTION, OURS, "kube-public"])
def test_secrets_are_made_where_they_belong(system: System, owner: Json, production: str, namespace: str) -> None:
    """Secrets of webhooks are only created in their namespace, secret values only in workspaces: elsewhere other
    programs might read them."""
    with acting_as(system, "api") as client:
        taken(client.post(secrets_of(WEBHOOKS), json=a_webhook(), params=DRY))
        taken(client.post(secrets_of("default"), json=values_of(owner), params=DRY))
        for path, body in (
            (f"{path_of(namespace, production)}/secrets", a_webhook()),
            (f"{path_of(namespace, production)}/secrets", values_of(owner)),
            (secrets_of("default"), a_webhook()),
            (secrets_of(WEBHOOKS), values_of(owner)),
        ):
            refused(client.post(path, json=body, params=DRY), "secrets", "neither a webhook")


def test_a_secret_is_no_other_programs(system: System, owner: Json) -> None:
    """A Secret with a label of another program is refused: some programs read every Secret with their label as
    configuration."""
    theirs = {"argocd.argoproj.io/secret-type": "cluster"}
    ours = {"slipway.dev/allocation-uid": owner["uid"]}
    with acting_as(system, "api") as client:
        answer = client.post(secrets_of(WEBHOOKS), json=a_webhook(**theirs), params=DRY)
        refused(answer, "secrets", "not Slipway's")
        ways: tuple[Json, ...] = (
            {"labels": ours | theirs},
            {"annotations": theirs},
            {"finalizers": ["example.org/stay"]},
        )
        for metadata in ways:
            answer = client.post(secrets_of("default"), json=values_of(owner, **metadata), params=DRY)
            refused(answer, "secrets", "not Slipway's")


def test_the_watcher_deletes_values_and_no_webhook(system: System, owner: Json) -> None:
    """The watcher may delete Secrets of values everywhere, by name, and reads none."""
    hook, values = f"{secrets_of(WEBHOOKS)}/slipway-webhook-x", f"{secrets_of('default')}/slipway-values-{owner['uid']}"
    system.operator.create(secrets_of(WEBHOOKS), a_webhook())
    system.operator.create(secrets_of("default"), values_of(owner))
    try:
        with acting_as(system, "watcher") as client:
            refused(client.delete(hook, params=DRY), "values", "no secret values")
            taken(client.delete(values, params=DRY))
    finally:
        system.operator.delete(hook)
        system.operator.delete(values)
