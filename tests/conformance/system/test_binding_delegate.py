"""`binding: delegate` beside the real kube-scheduler: our scheduler plans, and kube-scheduler binds on exactly the
planned nodes."""

import threading
import time
from collections.abc import Generator

import pytest

from tests.conformance.system.claimed_devices import make_toys
from tests.conformance.system.neighbours import PODS, PoolUnderTest, a_pool_of_its_own
from tests.conformance.system.operator import Json
from tests.conformance.system.permissions import Request
from tests.conformance.system.system import System
from tests.conformance.system.volumes import CLAIMS, CLASSES, VOLUMES, a_claim, a_class, a_template, a_volume
from tests.support.wait import wait_until

SHORT: Json = {"runsS": 0.2}


@pytest.fixture
def own_pool(system: System) -> Generator[PoolUnderTest]:
    with a_pool_of_its_own(system, nodes=2, binding="delegate") as made:
        yield made


def given_back(own_pool: PoolUnderTest, id_: str) -> Json:
    """Wait for the second attempt of the allocation; the end of the first was not the user's fault."""
    view = own_pool.system.wait_until(id_, lambda view: view["attempt"] >= 2, "in its second attempt")
    status = view["status"]
    assert (status.get("restarts", 0), status.get("infraRestarts", 0)) == (0, 1)
    return view


def restart_of(system: System, id_: str) -> Json:
    """The event that reports the end of the first attempt and the restart."""
    return next(event for event in system.events(id_) if event["type"].endswith("restarted"))


def why_given_up(system: System, id_: str) -> str:
    """The message of the event with which the first attempt began to end."""
    ended = next(event for event in system.events(id_) if event["type"].endswith("terminating"))
    return str(ended["data"]["message"])


def test_kube_scheduler_binds_where_we_planned(own_pool: PoolUnderTest) -> None:
    """A gang over both nodes runs to its end; kube-scheduler makes all bindings, after the gates are removed."""
    system = own_pool.system
    since = system.audit.position()
    id_ = own_pool.launch(4, cpu="6", script={"runsS": 1.0})
    system.wait_for(id_, "Running")
    assert own_pool.bound(id_) == own_pool.planned(id_)
    assert set(own_pool.bound(id_).values()) == set(own_pool.nodes)
    for pod in system.pods(id_):
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert "schedulingGates" not in pod["spec"]
    system.ended(id_, "Succeeded")
    system.started_once(id_, 4)
    account = system.installation.account("podworker")
    made: set[Request] = system.audit.requests(account, since=since)
    assert {(item.verb, item.resource) for item in made} >= {("create", "pods"), ("patch", "pods")}
    assert not [item for item in made if item.resource == "pods/binding"]


def test_node_that_is_cordoned_in_between_is_given_up(own_pool: PoolUnderTest) -> None:
    """When the planned node is cordoned, kube-scheduler refuses it: the whole gang is requeued, and starts on the
    other node."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(2, script=SHORT)
        system.wait_for(id_, "Assigned")
        cordoned = own_pool.planned(id_)[f"{id_}-1-1"]
        own_pool.cordon(cordoned)
    given_back(own_pool, id_)
    system.ended(id_, "Succeeded")
    told = restart_of(system, id_)["data"]
    assert told["reason"] == "PlacementRefused"
    runs = system.runs(id_)
    assert all(run.node != cordoned for run in runs)
    system.started_once(id_, 2, attempt=2)
    assert not system.nodes.doubles()


def test_place_that_another_pod_takes_in_between_is_given_up(own_pool: PoolUnderTest) -> None:
    """A gang of which one rank finds its node full starts elsewhere as a whole; ranks that had started are ended
    first."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(2, cpu="5")
        system.wait_for(id_, "Assigned")
        taken = own_pool.planned(id_)[f"{id_}-1-1"]
        stranger = own_pool.running(own_pool.stranger(taken, cpu="12"))
    given_back(own_pool, id_)
    system.wait_for(id_, "Running")
    assert taken not in own_pool.bound(id_).values()
    assert "Insufficient cpu" in why_given_up(system, id_)
    first = [run for run in system.runs(id_) if run.attempt == 1]
    assert all(run.ended_at is not None for run in first)
    assert own_pool.look(stranger)["metadata"]["uid"] == stranger["metadata"]["uid"]


def test_gang_that_fits_nowhere_waits_and_says_so(own_pool: PoolUnderTest) -> None:
    """A gang that no longer fits is requeued, pending and explained; when the other pod is deleted, it starts."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(2, cpu="10", script=SHORT)
        system.wait_for(id_, "Assigned")
        stranger = own_pool.running(own_pool.stranger(own_pool.nodes[0], cpu="8"))
    given_back(own_pool, id_)
    view = system.wait_until(id_, lambda view: "lack 10 cpu free" in str(view["status"]["conditions"]), "explained")
    assert view["phase"] == "Pending"
    system.operator.delete(f"{PODS}/{stranger['metadata']['name']}")
    system.ended(id_, "Succeeded")
    system.started_once(id_, 2, attempt=2)


def test_cancel_before_the_release_never_starts(own_pool: PoolUnderTest) -> None:
    """A gang that is cancelled before its release leaves no pod, and no container ever runs."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(2)
        system.wait_for(id_, "Assigned")
        system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    system.nothing_left(system.object(id_)["metadata"]["uid"])
    assert system.runs(id_) == []


def test_cancel_of_what_kube_scheduler_can_not_place(own_pool: PoolUnderTest) -> None:
    """A cancel ends an allocation that kube-scheduler refuses at once, before the time limit does."""
    system = own_pool.system
    with own_pool.without_workers():
        id_ = own_pool.launch(1, cpu="10")
        system.wait_for(id_, "Assigned")
        for node in own_pool.nodes:
            own_pool.cordon(node)
    wait_until(lambda: system.pods(id_) and not system.pods(id_)[0]["spec"].get("schedulingGates"), "the open gate")
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    assert system.runs(id_) == []


def test_killed_workers_leave_no_gang_in_parts(own_pool: PoolUnderTest) -> None:
    """While the pod worker is killed again and again, every gang is bound whole, each pod once, on its planned node."""
    system = own_pool.system
    stop = threading.Event()

    def killing() -> None:
        while not stop.wait(0.25):
            system.installation.kill("podworker")
            system.installation.await_ready()

    killer = threading.Thread(target=killing)
    ids = [own_pool.launch(3, cpu="100m", script={"runsS": 600}) for _ in range(2)]
    killer.start()
    try:
        ids += [own_pool.launch(3, cpu="100m", script={"runsS": 600}) for _ in range(18)]
        time.sleep(2.0)
    finally:
        stop.set()
        killer.join()
    for id_ in ids:
        system.wait_for(id_, "Running", timeout_s=60)
        assert own_pool.bound(id_) == own_pool.planned(id_)
        assert len(own_pool.bound(id_)) == 3
        attempt = system.view(id_)["attempt"]
        system.started_once(id_, 3, attempt=attempt)
    assert not system.nodes.doubles()


def test_volume_that_waits_for_its_first_consumer(own_pool: PoolUnderTest) -> None:
    """The planner does not know where the volume is: kube-scheduler refuses the wrong node, and accepts the right
    one."""
    system = own_pool.system
    home = own_pool.nodes[1]
    own_pool.make(CLASSES, a_class("late"))
    own_pool.make(VOLUMES, a_volume("late-volume", "late", home))
    own_pool.make(CLAIMS, a_claim("late-claim", "late"))
    id_ = own_pool.launch(1, template=a_template("late-claim"))
    system.ended(id_, "Succeeded", timeout_s=60)
    assert [run.node for run in system.runs(id_)] == [home]
    assert system.operator.get(f"{CLAIMS}/late-claim")["spec"]["volumeName"] == "late-volume"


def test_resource_claims_are_kube_schedulers(own_pool: PoolUnderTest) -> None:
    """Only kube-scheduler can allocate a device of a driver, and it does."""
    system, node = own_pool.system, own_pool.nodes[0]
    id_ = own_pool.launch(1, template=make_toys(own_pool, node, "toys"))
    system.ended(id_, "Succeeded", timeout_s=60)
    assert [run.node for run in system.runs(id_)] == [node]
