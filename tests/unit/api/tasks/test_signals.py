"""Signals of ranks: what they report, and what they ask."""

import asyncio

import pytest

from slipway.kube.errors import Verb
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld


async def a_running_gang(world: ApiWorld, count: int = 2) -> tuple[str, str]:
    """(name, id) of a running gang."""
    answer = await world.launch(ranks=[{"count": count}])
    await world.run(answer["name"])
    return answer["name"], answer["id"]


async def test_the_long_poll_answers_when_it_happens(world: ApiWorld) -> None:
    """A poll before the preemption waits; a poll after it is answered at once."""
    _, id_ = await a_running_gang(world)
    path = f"/allocations/{id_}/signals/preemption"
    assert (await world.get(path)).json()["preempt"] is False
    waiting = asyncio.ensure_future(world.get(f"{path}?timeout_seconds=30"))
    await asyncio.sleep(0)
    await world.post(f"/allocations/{id_}/preempt", {"reason": "maintenance"})
    async with asyncio.timeout(5):
        answer = (await waiting).json()
    assert (answer["preempt"], answer["n"], answer["reason"]) == (True, 1, "maintenance")
    assert (await world.get(f"{path}?timeout_seconds=30")).json() == answer


async def test_the_long_poll_gives_up_in_time(world: ApiWorld) -> None:
    """The answer says that nothing happened."""
    _, id_ = await a_running_gang(world)
    async with asyncio.timeout(4):
        answer = (await world.get(f"/allocations/{id_}/signals/preemption?timeout_seconds=1")).json()
    assert (answer["preempt"], answer["n"]) == (False, 0)


async def test_many_pollers_cost_one_read(world: ApiWorld) -> None:
    """A thousand ranks may wait for the same thing: each reads once, then they share a read."""
    _, id_ = await a_running_gang(world)
    gets: list[str] = []

    async def count(verb: Verb, plural: str) -> None:
        if verb is Verb.GET and plural == "allocations":
            gets.append(plural)

    world.kube.before = count
    path = f"/allocations/{id_}/signals/preemption?timeout_seconds=1"
    await asyncio.gather(*(world.get(path) for _ in range(20)))
    assert len(gets) <= 20 + 2


async def test_acknowledgements_are_kept_by_rank(world: ApiWorld) -> None:
    """Acknowledgements decide the result, so they are in the spec; `n` is never above that of the preemption."""
    name, id_ = await a_running_gang(world)
    path = f"/allocations/{id_}/signals/preemption/ack"
    early = await world.post(path, {"rank": 0})
    assert (early.status_code, early.json()["code"]) == (409, "conflict")
    await world.post(f"/allocations/{id_}/preempt")
    await asyncio.gather(world.post(path, {"rank": 0}), world.post(path, {"rank": 1, "n": 7}))
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert signals.acks == {"0": 1, "1": 1}


@pytest.mark.parametrize("rank", [2, 99])
async def test_there_is_no_such_rank(world: ApiWorld, rank: int) -> None:
    """A rank that does not exist gets 422, with the range."""
    _, id_ = await a_running_gang(world)
    await world.post(f"/allocations/{id_}/preempt")
    ack = await world.post(f"/allocations/{id_}/signals/preemption/ack", {"rank": rank})
    assert (ack.status_code, ack.json()["errors"][0]["pointer"]) == (422, "/rank")
    assert (await world.post(f"/allocations/{id_}/ranks/{rank}/daemon")).status_code == 422


async def test_a_checkpoint_is_a_time(world: ApiWorld) -> None:
    """A checkpoint, with or without progress, records when the work was last saved; the known progress stays."""
    name, id_ = await a_running_gang(world)
    path = f"/allocations/{id_}/progress"
    assert (await world.post(path, {"progress": 0.5})).status_code == 200
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert signals.checkpoint_at == ""
    assert (await world.post(path, {"checkpoint": True})).status_code == 200
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert signals.progress == 0.5
    assert signals.checkpoint_at
    assert (await world.post(path, {})).status_code == 422


async def test_ready_waiting_and_progress(world: ApiWorld) -> None:
    """The signals are set, and waiting is taken back."""
    name, id_ = await a_running_gang(world)
    for call in ("ready", "waiting"):
        assert (await world.post(f"/allocations/{id_}/{call}")).status_code == 200
    assert (await world.post(f"/allocations/{id_}/progress", {"progress": 0.5})).status_code == 200
    assert (await world.post(f"/allocations/{id_}/waiting", {"value": False})).status_code == 200
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert (signals.ready, signals.waiting, signals.progress, signals.attempt) == (True, False, 0.5, 1)
    assert (await world.post(f"/allocations/{id_}/progress", {"progress": 2})).status_code == 422


async def test_a_signal_of_an_attempt_that_is_over_is_refused(world: ApiWorld) -> None:
    """The next attempt starts with none of the old ones."""
    name, id_ = await a_running_gang(world)
    await world.post(f"/allocations/{id_}/ready")
    await world.step(name, Event.RESTARTED)
    late = await world.post(f"/allocations/{id_}/ready", {"attempt": 1})
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    await world.post(f"/allocations/{id_}/ranks/1/daemon", {"attempt": 2})
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert (signals.attempt, signals.ready, signals.daemons) == (2, False, [1])


async def test_activity_is_noted(world: ApiWorld) -> None:
    """The noted time is never later than now."""
    _, id_ = await a_running_gang(world)
    assert (await world.post(f"/allocations/{id_}/activity", {"at": "2999-01-01T00:00:00Z"})).status_code == 202
    assert (await world.post(f"/allocations/{id_}/activity", {"at": "yesterday"})).status_code == 400
    await world.parts.behind.flush()
    (activity,) = await world.streams.activity.read([id_])  # pyright: ignore[reportArgumentType]
    assert abs(activity["reported"] - world.clock.now()) < 60


async def test_nothing_is_told_after_the_end(world: ApiWorld) -> None:
    """After the end each call is refused with 409, and the long poll of the preemption signal answers at once."""
    name, id_ = await a_running_gang(world)
    await world.step(name, Event.TERMINATED)
    for call in ("ready", "waiting", "activity", "preempt", "ranks/0/daemon"):
        assert (await world.post(f"/allocations/{id_}/{call}")).status_code == 409, call
    async with asyncio.timeout(2):
        assert (await world.get(f"/allocations/{id_}/signals/preemption?timeout_seconds=60")).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ranks_find_each_other(world: ApiWorld, method: str) -> None:
    """The answer has all addresses as soon as all exist; after the timeout it has those that exist."""
    answer = await world.launch(ranks=[{"count": 2}])
    path = f"/api/v1/allocations/{answer['id']}/rendezvous"
    before = (await world.http.request(method, path)).json()
    assert (before["ready"], before["size"], before["addresses"]) == (False, 2, [])
    waiting = asyncio.ensure_future(world.http.request(method, f"{path}?timeout_seconds=30"))
    await asyncio.sleep(0)
    await world.run(answer["name"])
    async with asyncio.timeout(5):
        found = (await waiting).json()
    assert found["ready"] is True
    assert found["addresses"] == [
        {"rank": 0, "role": "worker", "host": "127.0.0.1"},
        {"rank": 1, "role": "worker", "host": "127.0.0.1"},
    ]
