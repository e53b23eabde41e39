"""`binding: direct` beside the real kube-scheduler: each leaves the other's pods unchanged, and counts their usage."""

import json
from collections.abc import Generator

import pytest

from slipway.crd.meta import ANNOTATION_HOME, LABEL_HOME
from slipway.errors import InvalidError
from tests.conformance.system.claimed_devices import make_toys
from tests.conformance.system.neighbours import PODS, PoolUnderTest, a_pool_of_its_own
from tests.conformance.system.operator import Json
from tests.conformance.system.system import System
from tests.conformance.system.volumes import CLAIMS, CLASSES, VOLUMES, a_claim, a_class, a_template, a_volume, in_a_zone
from tests.support.wait import wait_until

LONG: Json = {"runsS": 600}


@pytest.fixture
def own_pool(system: System) -> Generator[PoolUnderTest]:
    with a_pool_of_its_own(system, nodes=2) as made:
        yield made


def explained(own_pool: PoolUnderTest, id_: str, words: str) -> Json:
    """Wait until the allocation's explanation contains these words, and return the allocation."""
    return own_pool.system.wait_until(id_, lambda view: words in str(view["status"].get("conditions")), words)


def test_pods_of_others_are_counted_and_left_alone(own_pool: PoolUnderTest) -> None:
    """Pods that kube-scheduler placed use their nodes; our services neither write nor delete them."""
    system = own_pool.system
    strangers = [own_pool.running(own_pool.stranger(node, cpu="10")) for node in own_pool.nodes]
    refused = own_pool.launch(1, cpu="7", script=LONG)
    explained(own_pool, refused, "2 lack 7 cpu free")
    fits = own_pool.launch(2, cpu="6", script={"runsS": 0.2})
    system.ended(fits, "Succeeded")
    assert set(run.node for run in system.runs(fits)) == set(own_pool.nodes)
    system.post(f"/allocations/{refused}/kill")
    system.ended(refused, "Canceled")
    for stranger in strangers:
        now = own_pool.look(stranger)
        assert now["metadata"]["uid"] == stranger["metadata"]["uid"]
        assert now["metadata"]["resourceVersion"] == stranger["metadata"]["resourceVersion"]


def test_room_of_an_ended_pod_of_others_is_used(own_pool: PoolUnderTest) -> None:
    """A waiting gang starts as soon as other pods have left enough free resources."""
    system = own_pool.system
    strangers = [own_pool.running(own_pool.stranger(node, cpu="10")) for node in own_pool.nodes]
    id_ = own_pool.launch(2, cpu="10", script={"runsS": 0.2})
    explained(own_pool, id_, "lack 10 cpu free")
    for stranger in strangers:
        system.operator.delete(f"{PODS}/{stranger['metadata']['name']}")
    system.ended(id_, "Succeeded")


def test_pods_of_controllers_and_of_nodes_are_counted(own_pool: PoolUnderTest) -> None:
    """The usage includes the pod of a DaemonSet, bound by kube-scheduler, and the mirror of a static pod, which
    never had a scheduler."""
    system = own_pool.system
    labels = {"app": f"daemon-{own_pool.name}"}
    container = {"name": "main", "image": "example.org/d:1", "resources": {"requests": {"cpu": "4"}}}
    daemon = {
        "metadata": {"name": f"daemon-{own_pool.name}"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"test.example.org/pool": own_pool.name},
                    "containers": [container],
                    "terminationGracePeriodSeconds": 0,
                },
            },
        },
    }
    own_pool.make("/apis/apps/v1/namespaces/default/daemonsets", daemon)
    mirror = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.source": "file"}
    own_pool.stranger(own_pool.nodes[0], cpu="8", bound=True, annotations=mirror)
    selector = f"app=daemon-{own_pool.name}"

    def both_run() -> bool:
        pods = system.operator.items(PODS, selector)
        return [pod["status"]["phase"] for pod in pods] == ["Running"] * 2

    wait_until(both_run, "the DaemonSet runs on both nodes")
    id_ = own_pool.launch(2, cpu="8", script=LONG)
    explained(own_pool, id_, "room for 1 of 2 ranks")
    small = own_pool.launch(1, cpu="4", script=LONG)
    system.wait_for(small, "Running")
    uids = {pod["metadata"]["uid"] for pod in system.operator.items(PODS, selector)}
    for ours in (id_, small):
        system.post(f"/allocations/{ours}/kill")
        system.ended(ours, "Canceled")
    assert {pod["metadata"]["uid"] for pod in system.operator.items(PODS, selector)} == uids
    system.operator.delete(f"/apis/apps/v1/namespaces/default/daemonsets/daemon-{own_pool.name}")
    wait_until(lambda: not system.operator.items(PODS, selector), "the DaemonSet's pods are gone")


def test_kube_scheduler_counts_ours(own_pool: PoolUnderTest) -> None:
    """A pod of others waits with `Insufficient cpu` while our ranks run; when they end, kube-scheduler places it."""
    system = own_pool.system
    id_ = own_pool.launch(2, cpu="12", script=LONG)
    system.wait_for(id_, "Running")
    stranger = own_pool.stranger(cpu="8")
    assert "2 Insufficient cpu" in own_pool.unschedulable(stranger)
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    own_pool.running(stranger)


def test_kube_scheduler_leaves_unbound_pods_of_ours(own_pool: PoolUnderTest) -> None:
    """kube-scheduler ignores our unbound pods: none has a condition from it."""
    body = {
        "metadata": {"name": f"waiting-{own_pool.name}"},
        "spec": {"schedulerName": "slipway", "containers": [{"name": "main", "image": "example.org/w:1"}]},
    }
    waiting = own_pool.make(PODS, body)
    own_pool.running(own_pool.stranger())
    now = own_pool.look(waiting)
    assert "nodeName" not in now["spec"]
    assert not now["status"].get("conditions")


def test_race_for_a_place_that_the_kubelet_decides(own_pool: PoolUnderTest) -> None:
    """A pod of others occupies the node between plan and binding: OutOfcpu is not the user's fault, and the rank
    runs elsewhere."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(1, cpu="10", script={"runsS": 0.3})
        system.wait_for(id_, "Assigned")
        [taken] = own_pool.planned(id_).values()
        stranger = own_pool.running(own_pool.stranger(taken, cpu="8"))
    view = system.ended(id_, "Succeeded")
    status = view["status"]
    assert (view["attempt"], status.get("restarts", 0), status["infraRestarts"]) == (2, 0, 1)
    assert status["avoidNodes"] == [taken]
    ended = next(event for event in system.events(id_) if event["type"].endswith("terminating"))
    assert ended["data"]["reason"] == "KubeletRejected"
    assert "OutOfcpu" in ended["data"]["message"]
    assert [run.node for run in system.runs(id_)] == [node for node in own_pool.nodes if node != taken]
    assert own_pool.look(stranger)["status"]["phase"] == "Running"


def test_pod_of_others_that_preempts_ours(own_pool: PoolUnderTest) -> None:
    """kube-scheduler may evict our pods for a more important one: this is not the user's fault, and is retried on a
    free node."""
    system = own_pool.system
    important = f"important-{own_pool.name}"
    own_pool.make("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": important}, "value": 1000})
    id_ = own_pool.launch(1, cpu="10", script=LONG)
    system.wait_for(id_, "Running")
    [home] = own_pool.bound(id_).values()
    stranger = own_pool.running(own_pool.stranger(home, cpu="10", priorityClassName=important))
    view = system.wait_until(id_, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "running again")
    status = view["status"]
    assert (status.get("restarts", 0), status["infraRestarts"]) == (0, 1)
    told = next(event for event in system.events(id_) if event["type"].endswith("terminating"))
    assert told["data"]["reason"] == "Evicted"
    assert home not in {node for pod, node in own_pool.bound(id_).items() if pod.startswith(f"{id_}-2-")}
    assert own_pool.look(stranger)["status"]["phase"] == "Running"


def test_volume_that_waits_for_its_first_consumer(own_pool: PoolUnderTest) -> None:
    """Such a launch is left to kube-scheduler, which refuses a node that cannot reach the volume; then the next node
    is tried."""
    system = own_pool.system
    name, home = f"waits-{own_pool.name}", own_pool.nodes[1]
    own_pool.make(CLASSES, a_class(name))
    own_pool.make(VOLUMES, a_volume(name, name, home))
    own_pool.make(CLAIMS, a_claim(name, name))
    id_ = own_pool.launch(1, template=a_template(name))
    system.ended(id_, "Succeeded", timeout_s=60)
    assert [run.node for run in system.runs(id_)] == [home]
    assert system.operator.get(f"{CLAIMS}/{name}")["spec"]["volumeName"] == name


def test_volume_of_an_ephemeral_claim_of_a_class_that_waits(own_pool: PoolUnderTest) -> None:
    """The claim is created with the pod, and its class may be the default one. A volume on one node decides where
    the rank runs."""
    system = own_pool.system
    name, home = f"scratch-{own_pool.name}", own_pool.nodes[0]
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    made = a_class(name)
    own_pool.make(CLASSES, {**made, "metadata": {**made["metadata"], **default}})
    own_pool.make(VOLUMES, a_volume(name, name, home))
    template = a_template("")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template["spec"]["volumes"] = [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]
    id_ = own_pool.launch(1, template=template)
    system.ended(id_, "Succeeded", timeout_s=60)
    assert [run.node for run in system.runs(id_)] == [home]


def test_volume_that_is_not_bound_yet_is_waited_for(own_pool: PoolUnderTest) -> None:
    """A claim that is not bound yet is not the user's fault: when the volume exists, the rank starts."""
    system = own_pool.system
    name = f"soon-{own_pool.name}"
    own_pool.make(CLASSES, a_class(name, "Immediate"))
    own_pool.make(CLAIMS, a_claim(name, name))
    id_ = own_pool.launch(1, template=a_template(name))
    explained(own_pool, id_, f"volume claim {name} is not bound to a volume yet")
    assert system.view(id_)["phase"] == "Pending"
    assert system.get(f"/allocations/{id_}/explain", {"foresee": "true"})["foreseen"]["code"] == "WaitingForVolume"
    own_pool.make(VOLUMES, a_volume(name, name))
    system.ended(id_, "Succeeded", timeout_s=60)
    assert system.view(id_)["attempt"] == 1


def test_a_gang_goes_to_the_zone_of_its_bound_volume(own_pool: PoolUnderTest) -> None:
    """The other node is equally free; while the zone is full, the reason names the claim and the zone."""
    system, home = own_pool.system, own_pool.nodes[1]
    claim = in_a_zone(own_pool, home)
    id_ = own_pool.launch(2, cpu="1", template=a_template(claim))
    system.ended(id_, "Succeeded", timeout_s=60)
    assert [run.node for run in system.runs(id_)] == [home, home]
    assert system.view(id_)["attempt"] == 1

    stranger = own_pool.running(own_pool.stranger(home, cpu="10"))
    waits = own_pool.launch(1, cpu="8", template=a_template(claim))
    where = f"cannot reach the volume of claim {claim} (only zone zone-1 can)"
    told = explained(own_pool, waits, where)
    assert "1 lacks 8 cpu free" in str(told["status"]["conditions"])
    told = system.get(f"/allocations/{waits}/explain", {"foresee": "true"})
    assert where in told["message"]
    assert where in told["foreseen"]["message"]
    system.operator.delete(f"{PODS}/{stranger['metadata']['name']}")
    system.ended(waits, "Succeeded", timeout_s=60)
    assert [run.node for run in system.runs(waits)] == [home]


def test_a_claim_that_does_not_exist_is_waited_for_without_a_place(own_pool: PoolUnderTest) -> None:
    """The allocation waits without a node, and starts when the claim is created."""
    system = own_pool.system
    name = f"missing-{own_pool.name}"
    id_ = own_pool.launch(1, template=a_template(name))
    explained(own_pool, id_, f"volume claim {name} does not exist in namespace default")
    assert system.view(id_)["phase"] == "Pending"
    assert system.get(f"/allocations/{id_}/explain")["code"] == "WaitingForVolume"
    own_pool.make(CLASSES, a_class(name, "Immediate"))
    own_pool.make(VOLUMES, a_volume(name, name))
    own_pool.make(CLAIMS, a_claim(name, name))
    system.ended(id_, "Succeeded", timeout_s=60)


def test_a_home_is_made_by_the_pod_worker_and_stays(own_pool: PoolUnderTest) -> None:
    """The pod worker's account has the right to create the claim, under its policy; the second launch finds the
    claim of the first."""
    system, name = own_pool.system, f"homes-{own_pool.name}"
    workspace = "/api/v1/namespaces/default"
    own_pool.make(CLASSES, a_class(name, "Immediate"))
    own_pool.make(VOLUMES, a_volume(name, name))
    home = json.dumps({"size": "1Gi", "storageClass": name})
    system.operator.change(workspace, {"metadata": {"annotations": {ANNOTATION_HOME: home}}})
    claims: list[Json] = []
    try:
        for _ in range(2):
            # The api caches the annotations of a workspace for some seconds.
            id_ = wait_until(lambda: accepted(own_pool), "the api has seen the annotation", timeout_s=60)
            system.ended(id_, "Succeeded", timeout_s=60)
            claims += system.operator.items(CLAIMS, f"{LABEL_HOME}=true")
        assert len({claim["metadata"]["uid"] for claim in claims}) == 1
        assert claims[0]["spec"]["volumeName"] == name
        assert "ownerReferences" not in claims[0]["metadata"]
    finally:
        system.operator.change(workspace, {"metadata": {"annotations": {ANNOTATION_HOME: None}}})
        for claim in claims[:1]:
            system.operator.delete(f"{CLAIMS}/{claim['metadata']['name']}")


def accepted(own_pool: PoolUnderTest) -> str:
    """The id of a launch with a home; empty while the api refuses it."""
    try:
        return own_pool.launch(1, home=True, script={"runsS": 0.2})
    except InvalidError:
        return ""


def test_resource_claims_are_kube_schedulers(own_pool: PoolUnderTest) -> None:
    """A launch with a device of a driver is left to kube-scheduler, which allocates the device."""
    system, node, name = own_pool.system, own_pool.nodes[0], f"toys-{own_pool.name}"
    template = make_toys(own_pool, node, name)
    id_ = own_pool.launch(1, template=template)
    system.ended(id_, "Succeeded", timeout_s=60)
    assert [run.node for run in system.runs(id_)] == [node]
