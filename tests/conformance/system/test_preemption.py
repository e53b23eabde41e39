"""Allocations that preempt others on a real API server: the rules, the permissions, the garbage collection."""

from collections.abc import Generator
from typing import Any

import pytest

from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

QUEUES = f"{GROUP}/queues"
RANKS = 2


@pytest.fixture
def narrow(system: System) -> Generator[str]:
    """A queue whose quota is `RANKS` ranks, in which urgent allocations may preempt."""
    name = "narrow"
    spec = {"pool": "default", "limit": {"cpu": f"{RANKS * 100}m"}, "preemption": {"withinQueue": "LowerPriority"}}
    system.operator.create(
        QUEUES, {"apiVersion": "slipway.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    )
    wait_until(lambda: name in [each["name"] for each in system.get("/queues")["items"]], "the queue is known")
    yield name
    system.settle()
    system.operator.delete(f"{QUEUES}/{name}")


def launch(system: System, queue: str, priority: int, ranks: int = RANKS, **fields: Any) -> str:
    return system.launch(a_body("training", ranks, queue=queue, priority=priority, preemptible=True, **fields))


def end(system: System, id_: str, attempt: int = 1) -> None:
    """End all ranks successfully."""
    for pod in system.pods(id_):
        if pod["metadata"]["labels"]["slipway.dev/attempt"] == str(attempt):
            system.nodes.exit(pod["metadata"]["uid"], 0)


def ledger(system: System) -> list[tuple[str, str]]:
    """(kind, allocation) of the entries of the ledger."""
    status = system.operator.get(f"{GROUP}/resourcepools/default")["status"]
    return [(item.get("kind", "admit"), item["allocation"]) for item in status.get("decisions", [])]


def key_of(system: System, id_: str) -> str:
    return f"default/{system.object(id_)['metadata']['name']}"


def told_of(view: Json) -> int:
    """How many ranks have been evicted, according to the object."""
    shrink: Json = view["status"].get("shrink", {})
    return int(shrink.get("told", 0))


def test_a_victim_saves_its_work_and_comes_back(system: System, narrow: str) -> None:
    """A victim is asked, acknowledges and ends by itself: the urgent allocation uses its place, then the victim runs
    again; no restart is counted."""
    low = launch(system, narrow, 10)
    system.wait_for(low, "Running")
    system.post(f"/allocations/{low}/ready", {"value": True})
    high = launch(system, narrow, 90)
    system.wait_until(low, lambda view: "preempting" in system.story(low), "told to make room")
    heard = system.get(f"/allocations/{low}/signals/preemption")
    assert (heard["preempt"], heard["by"]) == (True, key_of(system, high))
    assert system.view(high)["phase"] == "Pending"
    for rank, pod in enumerate(system.pods(low)):
        system.post(f"/allocations/{low}/signals/preemption/ack", {"rank": rank, "n": heard["n"]})
        system.nodes.exit(pod["metadata"]["uid"], 0)
    system.wait_for(high, "Running")
    end(system, high)
    system.ended(high, "Succeeded")
    again = system.wait_until(low, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "running again")
    assert again["status"].get("restarts", 0) == 0
    assert [item["by"] for item in again["status"]["preemptions"]] == [heard["by"]]
    end(system, low, attempt=2)
    system.ended(low, "Succeeded")
    for attempt in (1, 2):
        system.started_once(low, RANKS, attempt=attempt)
    system.started_once(high, RANKS)


def test_a_victim_that_ignores_the_notice_gets_its_full_grace(system: System, narrow: str) -> None:
    """A victim that does not acknowledge is killed after its grace, and runs again all the same."""
    low = launch(system, narrow, 10, preemptionGrace="1s")
    system.wait_for(low, "Running")
    system.post(f"/allocations/{low}/ready", {"value": True})
    high = launch(system, narrow, 90)
    system.wait_for(high, "Running")
    assert [run.code for run in system.runs(low) if run.attempt == 1] == [143] * RANKS
    end(system, high)
    system.wait_until(low, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "running again")
    end(system, low, attempt=2)
    system.ended(low, "Succeeded")


def test_surplus_ranks_go_and_the_gang_stays(system: System, narrow: str) -> None:
    """Only the pods of the surplus ranks are deleted; the server keeps the evicted ranks in the status, whatever
    tries to remove them."""
    gang = launch(system, narrow, 10, minAvailable=1)
    system.wait_for(gang, "Running")
    high = launch(system, narrow, 90, ranks=1)
    system.wait_for(high, "Running")
    view = system.wait_until(gang, lambda view: told_of(view) == 1, "told that a rank has gone")
    assert (view["phase"], view["attempt"]) == ("Running", 1)
    assert sum(run.ended_at is None for run in system.runs(gang)) == 1
    found = system.object(gang)
    meta = found["metadata"]
    path = f"{GROUP}/namespaces/default/allocations/{meta['name']}/status"
    taken_back: Json = {**found, "status": {**found["status"], "shrink": {"ranks": [], "attempt": 1}}}
    code, why = system.operator.refusal(lambda: system.operator.replace(path, taken_back))
    assert code == 422, why
    assert "stay there until the gang grows again" in why
    # End the gang first: with the free resources of the other one it would grow again, by a second pod of the evicted
    # rank.
    end(system, gang)
    system.ended(gang, "Succeeded")
    end(system, high)
    system.ended(high, "Succeeded")
    system.started_once(gang, RANKS)


def test_a_leader_dies_between_the_eviction_and_the_admission(system: System, narrow: str) -> None:
    """The next leader finds the reserved place in the ledger, and admits the allocation to it when it is free."""
    low = launch(system, narrow, 10, preemptionGrace="60s")
    system.wait_for(low, "Running")
    system.post(f"/allocations/{low}/ready", {"value": True})
    high = launch(system, narrow, 90)
    key = key_of(system, high)
    wait_until(lambda: ("nominate", key) in ledger(system), "its place is held")
    system.installation.kill("scheduler")
    system.wait_until(low, lambda view: "preempting" in system.story(low), "told to make room")
    other = launch(system, narrow, 20, ranks=1)
    for rank, pod in enumerate(system.pods(low)):
        system.post(f"/allocations/{low}/signals/preemption/ack", {"rank": rank})
        system.nodes.exit(pod["metadata"]["uid"], 0)
    system.wait_for(high, "Running")
    assert system.view(other)["phase"] == "Pending"
    end(system, high)
    system.ended(high, "Succeeded")
    for id_, attempt in ((other, 1), (low, 2)):
        system.wait_until(id_, lambda view, n=attempt: (view["attempt"], view["phase"]) == (n, "Running"), "running")
        end(system, id_, attempt)
        system.ended(id_, "Succeeded")
