"""Signals of users and the system to an allocation: kill, hold, resume, preempt, priorities and deadlines."""

import itertools
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.conformance.system.operator import GROUP, Operator
from tests.conformance.system.system import System, a_body, an_allocation
from tests.support.wait import wait_until

LIVES_MAX = 8


def test_a_kill_before_the_release_starts_nothing(system: System) -> None:
    """A held allocation ends at once, and no container was ever started."""
    id_ = system.launch(a_body(hold=True))
    system.wait_until(id_, lambda view: "held" in str(view["status"]).lower(), "explained as held")
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    assert system.runs(id_) == []


def test_a_kill_during_the_launch(system: System) -> None:
    """A kill at any step of the launch ends the allocation as Canceled, and no rank runs on."""
    ids = [system.launch(a_body("training", 3)) for _ in range(5)]
    for count, id_ in enumerate(ids):
        wait_until(lambda id_=id_, count=count: len(system.story(id_)) > count, "some of its life")
        system.post(f"/allocations/{id_}/kill")
    for id_ in ids:
        system.ended(id_, "Canceled")
        # A kill after the release may arrive before the node of a rank has started it: then that rank never ran.
        assert all(run.ended_at is not None for run in system.runs(id_))
        assert len(system.runs(id_)) <= 3


@pytest.mark.parametrize("term", [{}, {"ignoresTerm": True}])
def test_a_kill_after_the_release(system: System, term: dict[str, bool]) -> None:
    """The containers get SIGTERM and their grace; a container that ignores SIGTERM is killed."""
    id_ = system.launch(a_body("training", 2, term))
    system.wait_for(id_, "Running")
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    assert [run.code for run in system.runs(id_)] == [137 if term else 143] * 2


def test_a_preemption_that_is_acknowledged(system: System) -> None:
    """The ranks read the request, acknowledge it and end with 0: the result is Preempted."""
    id_ = system.launch(a_body("training", 2))
    system.wait_for(id_, "Running")
    system.post(f"/allocations/{id_}/ready", {"value": True})
    system.post(f"/allocations/{id_}/preempt", {"reason": "maintenance"})
    heard = system.get(f"/allocations/{id_}/signals/preemption")
    assert (heard["preempt"], heard["reason"]) == (True, "maintenance")
    system.wait_until(id_, lambda view: "preempting" in system.story(id_), "told to make room")
    for rank, pod in enumerate(system.pods(id_)):
        system.post(f"/allocations/{id_}/signals/preemption/ack", {"rank": rank, "n": heard["n"]})
        system.nodes.exit(pod["metadata"]["uid"], 0)
    system.ended(id_, "Preempted")
    system.started_once(id_, 2)


def test_a_preemption_without_an_acknowledgement(system: System) -> None:
    """When its grace is over the allocation is killed."""
    id_ = system.launch(a_body("training", 1, preemptionGrace="1s"))
    system.wait_for(id_, "Running")
    system.post(f"/allocations/{id_}/preempt")
    view = system.wait_for(id_, "Terminated")
    assert view["reason"] == "PreemptionGrace", view
    assert [run.code for run in system.runs(id_)] == [143]


def test_hold_and_resume(system: System) -> None:
    """A paused training ends its attempt, waits, and continues as the next attempt."""
    id_ = system.launch(a_body("training", 1, preemptible=True))
    system.wait_for(id_, "Running")
    system.post(f"/allocations/{id_}/hold")
    system.wait_until(id_, lambda view: "preempting" in system.story(id_), "told to make room")
    pod = system.pods(id_)[0]["metadata"]["uid"]
    system.post(f"/allocations/{id_}/signals/preemption/ack", {"rank": 0})
    system.nodes.exit(pod, 0)
    paused = system.wait_until(id_, lambda view: view["attempt"] == 2, "paused")
    assert (paused["phase"], paused["hold"]) == ("Pending", True)
    system.post(f"/allocations/{id_}/resume")
    system.wait_until(id_, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "running again")
    system.nodes.exit(system.pods(id_)[-1]["metadata"]["uid"], 0)
    system.ended(id_, "Succeeded")
    system.started_once(id_, 1, attempt=1)
    system.started_once(id_, 1, attempt=2)


def test_the_longest_run(system: System) -> None:
    """The deadline of maxRuntime is stored, and the scheduler ends the allocation as TimedOut."""
    id_ = system.launch(a_body(maxRuntime="1s"))
    system.ended(id_, "TimedOut")
    assert [run.code for run in system.runs(id_)] == [143]


def test_changes_of_a_waiting_allocation(system: System) -> None:
    """Priority and queue may change before admission; Kubernetes itself refuses changes of immutable fields."""
    id_ = system.launch(a_body(hold=True))
    system.post(f"/allocations/{id_}/priority", {"priority": 70})
    system.ask(lambda api: api.patch(f"/allocations/{id_}", {"queuePosition": "5"}))
    assert system.object(id_)["spec"]["priority"] == 70
    path = f"{GROUP}/namespaces/default/allocations/{id_.rsplit('-', 1)[0]}"
    code, said = system.operator.refusal(lambda: system.operator.change(path, {"spec": {"pool": "other"}}))
    assert (code, "pool cannot be changed" in said) == (422, True), said
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    code, said = system.operator.refusal(lambda: system.operator.change(path, {"spec": {"desired": "Running"}}))
    assert code == 422, said


def test_concurrent_writers(system: System) -> None:
    """Other writers change the object all the time: a status writer gets conflicts, reads the object again, and
    succeeds."""
    watcher = system.installation.processes["watcher"]
    for _ in range(LIVES_MAX):
        id_ = system.launch(a_body("training", 2, {"runsS": 0.2}))
        with disturbed(system, id_):
            system.ended(id_, "Succeeded", timeout_s=60)
        system.started_once(id_, 2)
        if 'outcome="stale"' in watcher.metrics():
            return
    raise AssertionError(f"the watcher met no conflict in {LIVES_MAX} lives")


@contextmanager
def disturbed(system: System, id_: str, writers: int = 3) -> Generator[None]:
    """Several writers change the object for as long as this context lasts."""
    path = f"{GROUP}/namespaces/default/allocations/{id_.rsplit('-', 1)[0]}"
    is_over = threading.Event()

    def disturb() -> None:
        operator = Operator(system.operator.cluster)
        for number in itertools.count():
            if is_over.is_set():
                break
            operator.change(path, {"metadata": {"annotations": {"example.org/number": str(number)}}})
        operator.close()

    threads = [threading.Thread(target=disturb) for _ in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_a_cancel_by_kubectl(system: System) -> None:
    """`spec.desired: Stopped` in the object is a kill."""
    system.operator.apply(an_allocation("stopped-by-hand"))
    id_ = system.applied_id("stopped-by-hand")
    system.wait_for(id_, "Running")
    system.kubectl("patch", "alloc", "stopped-by-hand", "--type=merge", "-p", '{"spec":{"desired":"Stopped"}}')
    system.ended(id_, "Canceled")
