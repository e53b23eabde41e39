"""Terminate and pause: what the api decides from the object, and commits in one write."""

from typing import Any

import httpx2
import pytest

from slipway.crd.v1alpha1 import Allocation, PreemptSignal
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld

TRAINING: dict[str, Any] = {"kind": "training", "name": "work", "preemptible": True}


async def running(world: ApiWorld, *, ready: bool = True, **body: Any) -> str:
    """The id of running work; `ready` marks it as ready."""
    launched = await world.launch(**{**TRAINING, **body})
    await world.run("work")
    if ready:
        await world.step("work", Event.READY, ready=True)
    return str(launched["id"])


def preempted(found: Allocation) -> PreemptSignal | None:
    return found.spec.signals.preempt if found.spec.signals is not None else None


async def test_terminate_notifies_work_that_can_checkpoint(world: ApiWorld) -> None:
    """Work that is preemptible and ready gets a preemption with the reason; it is not killed."""
    id_ = await running(world)
    answer = await world.post(f"/allocations/{id_}/terminate", {"reason": "maintenance"})
    found = await world.stored("work")
    asked = preempted(found)
    assert (answer.status_code, found.spec.desired) == (202, "Running")
    assert asked is not None
    assert (asked.n, asked.reason, asked.requeue) == (1, "maintenance", False)
    before = found.metadata.resource_version
    assert (await world.post(f"/allocations/{id_}/terminate")).status_code == 202
    assert (await world.stored("work")).metadata.resource_version == before


@pytest.mark.parametrize(
    ("ready", "preemptible"), [(False, True), (True, False), (False, False)], ids=["not ready", "fixed", "neither"]
)
async def test_terminate_kills_work_that_cannot_checkpoint(world: ApiWorld, ready: bool, preemptible: bool) -> None:
    """Other work is killed at once."""
    id_ = await running(world, ready=ready, preemptible=preemptible)
    assert (await world.post(f"/allocations/{id_}/terminate")).status_code == 202
    found = await world.stored("work")
    assert (found.spec.desired, preempted(found)) == ("Stopped", None)


async def test_terminate_before_the_start_is_a_clean_cancel(world: ApiWorld) -> None:
    """Work before its start has nothing to save; after the end a terminate changes nothing."""
    launched = await world.launch(**TRAINING)
    assert (await world.post(f"/allocations/{launched['id']}/terminate")).status_code == 202
    assert (await world.stored("work")).spec.desired == "Stopped"
    await world.step("work", Event.TERMINATED)
    assert (await world.post(f"/allocations/{launched['id']}/terminate")).status_code == 200


async def test_terminate_ends_a_pause_for_good(world: ApiWorld) -> None:
    """The work keeps its grace, and gets no next attempt."""
    id_ = await running(world)
    await world.post(f"/allocations/{id_}/hold")
    await world.post(f"/allocations/{id_}/terminate")
    found = await world.stored("work")
    asked = preempted(found)
    assert asked is not None
    assert (found.spec.hold, asked.requeue, asked.reason) == (False, False, "paused")


async def test_what_is_paused_is_held_and_told_in_one_write(world: ApiWorld) -> None:
    """The signal states that another attempt follows; pausing again changes nothing."""
    id_ = await running(world, ready=False)
    before = (await world.stored("work")).metadata.version
    answer = await world.post(f"/allocations/{id_}/hold")
    found = await world.stored("work")
    asked = preempted(found)
    assert (answer.status_code, found.spec.hold, found.metadata.version - before) == (200, True, 1)
    assert asked is not None
    assert (asked.requeue, asked.reason, asked.attempt) == (True, "paused", 1)
    await world.post(f"/allocations/{id_}/hold")
    assert (await world.stored("work")).metadata.version - before == 1


async def test_what_waits_is_held_without_a_signal(world: ApiWorld) -> None:
    """A signal would end it when it is resumed."""
    launched = await world.launch(**TRAINING)
    await world.post(f"/allocations/{launched['id']}/hold")
    found = await world.stored("work")
    assert (found.spec.hold, preempted(found)) == (True, None)
    await world.post(f"/allocations/{launched['id']}/resume")
    assert not (await world.stored("work")).spec.hold


async def test_a_pause_of_what_starts_meanwhile_tells_it(world: ApiWorld) -> None:
    """The hold is written under the version that was read: work that has been admitted since gets a signal too."""
    launched = await world.launch(**TRAINING)
    raced: list[str] = []

    async def admit(verb: Verb, plural: str) -> None:
        if (verb, plural, raced) == (Verb.PATCH, "allocations", []):
            raced.append("admitted")
            await world.run("work")

    world.kube.before = admit
    assert (await world.post(f"/allocations/{launched['id']}/hold")).status_code == 200
    found = await world.stored("work")
    asked = preempted(found)
    assert raced
    assert asked is not None
    assert (found.spec.hold, asked.requeue) == (True, True)


async def test_only_resumable_work_is_paused(world: ApiWorld) -> None:
    """A notebook cannot be resumed, and work that is being stopped is not paused any more."""
    launched = await world.launch(kind="notebook", name="nb", command=[])
    await world.run("nb")
    assert _refused(await world.post(f"/allocations/{launched['id']}/hold"), "cannot be paused")
    id_ = await running(world)
    await world.post(f"/allocations/{id_}/kill")
    assert _refused(await world.post(f"/allocations/{id_}/hold"), "being stopped")
    await world.step("work", Event.TERMINATED)
    assert _refused(await world.post(f"/allocations/{id_}/hold"), "has ended")


async def test_bad_bodies_are_named(world: ApiWorld) -> None:
    """The refusal names the field, and what it may be."""
    id_ = await running(world)
    for body, field in (({"reason": 5}, "/reason"), ({"why": "x"}, "/why"), ({"reason": "x" * 300}, "/reason")):
        answer = await world.post(f"/allocations/{id_}/terminate", body)
        assert answer.status_code in (400, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["errors"][0]["pointer"] == field
    assert (await world.post("/allocations/nobody-00000000/terminate")).status_code == 404
    assert (await world.kube.get(ALLOCATIONS, "work", namespace="default")).spec.desired == "Running"


def _refused(answer: httpx2.Response, words: str) -> bool:
    return answer.status_code == 409 and words in answer.json()["detail"]
