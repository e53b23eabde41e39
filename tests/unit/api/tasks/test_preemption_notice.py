"""A rank learns of a preemption at one route, whatever asks for it, and acknowledges it there."""

import asyncio

import msgspec
import pytest

from slipway.api.tasks.preemption_notice import asked_of
from slipway.crd.v1alpha1 import Allocation, Stop
from slipway.model.lifecycle import Event
from slipway.model.reasons import Reason
from tests.support.api_world import ApiWorld

DEADLINE = {"preemption": "2026-01-02T04:00:00Z"}


async def a_run(world: ApiWorld) -> tuple[str, str]:
    """(name, id) of a running allocation of two ranks."""
    answer = await world.launch(ranks=[{"count": 2}], preemptible=True)
    await world.run(answer["name"])
    return answer["name"], answer["id"]


def a_stop(reason: Reason, *, requeue: bool, attempt: int = 1) -> Stop:
    return Stop(reason=reason.value, at="2026-01-02T03:04:05Z", attempt=attempt, requeue=requeue, by="urgent-12345678")


async def test_an_eviction_is_heard_and_acknowledged(world: ApiWorld) -> None:
    """The scheduler's stop wakes the long poll, and an acknowledgement is kept as for a user's preemption."""
    name, id_ = await a_run(world)
    path = f"/allocations/{id_}/signals/preemption"
    waiting = asyncio.ensure_future(world.get(f"{path}?timeout_seconds=30"))
    await asyncio.sleep(0)
    stop = a_stop(Reason.PREEMPTED, requeue=True)
    await world.step(name, Event.PREEMPTING, stop=stop, deadlines=DEADLINE)
    async with asyncio.timeout(5):
        heard = (await waiting).json()
    assert heard == {
        "preempt": True,
        "n": 1,
        "reason": "Preempted",
        "at": stop.at,
        "deadline": DEADLINE["preemption"],
        "requeue": True,
        "attempt": 1,
        "acks": {},
        "by": "urgent-12345678",
    }
    acked = await world.post(f"{path}/ack", {"rank": 1, "n": heard["n"]})
    assert (acked.status_code, acked.json()["acks"]) == (200, {"1": 1})
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert (signals.acks, signals.preempt) == ({"1": 1}, None)


@pytest.mark.parametrize(
    ("stop", "deadlines", "is_asked"),
    [
        (a_stop(Reason.PREEMPTED, requeue=True), {}, True),
        (a_stop(Reason.PREEMPTION_GRACE, requeue=True), DEADLINE, True),
        (a_stop(Reason.IDLE, requeue=False), DEADLINE, True),
        (a_stop(Reason.MAX_RUNTIME, requeue=False), DEADLINE, True),
        (a_stop(Reason.MAX_RUNTIME, requeue=False), {}, False),
        (a_stop(Reason.PREEMPTED, requeue=True, attempt=9), {}, False),
        (None, {}, False),
    ],
)
async def test_what_counts_as_being_asked(
    world: ApiWorld, stop: Stop | None, deadlines: dict[str, str], *, is_asked: bool
) -> None:
    """Evictions, and deadlines of which the ranks were told. A stop that kills at once asks no rank, nor does one of
    another attempt."""
    name, _ = await a_run(world)
    found: Allocation = await world.stored(name)
    status = msgspec.structs.replace(found.status, stop=stop, deadlines=deadlines)
    asked = asked_of(msgspec.structs.replace(found, status=status))
    assert (asked is not None) is is_asked
    if asked is not None and stop is not None:
        assert (asked.n, asked.reason, asked.requeue) == (1, stop.reason, stop.requeue)


async def test_a_pause_says_that_it_comes_back(world: ApiWorld) -> None:
    """A preemption of a held allocation is a pause."""
    _, id_ = await a_run(world)
    await world.post(f"/allocations/{id_}/hold")
    heard = (await world.get(f"/allocations/{id_}/signals/preemption")).json()
    assert (heard["preempt"], heard["requeue"]) == (True, True)
