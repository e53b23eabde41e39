"""Events reach the queue of every webhook that wants them, and leave it only when delivered or given up."""

import asyncio
from collections.abc import Sequence

import pytest

from slipway.errors import InvalidError
from slipway.streams import keys
from slipway.streams.codec import decode_event
from slipway.streams.ports import StreamEntry, Streams
from slipway.streams.webhooks import Delivery, Routable, Webhooks
from tests.support.redis import Backend, an_event, an_id


async def publish(streams: Streams, *seqs: int, name: str = "train") -> None:
    await streams.events.append([StreamEntry(event=an_event(seq, name=name)) for seq in seqs])


async def take(hooks: Webhooks) -> list[Routable]:
    """Take the present events; the very first call may only create the groups."""
    return await hooks.take(limit=100, block_s=0.02) or await hooks.take(limit=100, block_s=0.02)


def seqs(deliveries: Sequence[Delivery]) -> list[int]:
    return [decode_event(each.fields).seq for each in deliveries]


async def test_an_event_is_copied_to_each_webhook_and_then_acknowledged(streams: Streams) -> None:
    """Events are copied in order; an event that no webhook wants is acknowledged too."""
    hooks = streams.webhooks("a")
    await publish(streams, 1, 2, 3)
    taken = await take(hooks)
    assert [decode_event(entry.fields).seq for entry in taken] == [1, 2, 3]
    await hooks.route([(taken[0], ["x", "y"]), (taken[1], ["x"]), (taken[2], [])])
    assert await hooks.take_abandoned(min_idle_s=0, limit=100) == []
    assert await hooks.backlog(["x", "y", "z"]) == [2, 1, 0]
    assert seqs(await hooks.claim(["x"], limit=10)) == [1, 2]
    assert seqs(await hooks.claim(["y", "z"], limit=10)) == [1]
    assert await hooks.claim(["x", "y"], limit=10) == []


async def test_events_pending_at_a_dead_router_are_claimed(streams: Streams) -> None:
    """An event is delivered again until it was routed; to a router of the same name at once."""
    await publish(streams, 1)
    taken = await take(streams.webhooks("dead"))
    assert len(taken) == 1
    assert await streams.webhooks("dead").take_again() == taken
    other = streams.webhooks("b")
    assert await other.take_again() == []
    assert await other.take_abandoned(min_idle_s=60, limit=10) == []
    [left] = await other.take_abandoned(min_idle_s=0, limit=10)
    await other.route([(left, ["x"])])
    assert await streams.webhooks("c").take_abandoned(min_idle_s=0, limit=10) == []


async def test_a_delivery_stays_until_it_is_done(streams: Streams) -> None:
    """After a restart the same consumer finds its deliveries; another one gets a delivery when no consumer works on
    it."""
    hooks = streams.webhooks("a")
    await publish(streams, 1, 2)
    await hooks.route([(entry, ["x"]) for entry in await take(hooks)])
    assert seqs(await hooks.claim(["x"], limit=10)) == [1, 2]
    again = streams.webhooks("a")
    first, second = await again.held(["x", "none"])
    assert seqs([first, second]) == [1, 2]
    assert await streams.webhooks("b").held(["x"]) == []
    await asyncio.sleep(0.6)
    await again.heartbeat([second])
    assert seqs(await streams.webhooks("b").claim_abandoned(["x", "none"], min_idle_s=0.5, limit=10)) == [1]
    await streams.webhooks("b").done([first])
    await again.done([second])
    assert await hooks.backlog(["x"]) == [0]
    assert await streams.webhooks("c").claim_abandoned(["x"], min_idle_s=0, limit=10) == []


async def test_an_abandoned_delivery_is_a_dead_letter_that_can_be_replayed(streams: Streams) -> None:
    """The dead letter has the webhook's name, the cause and the event; a replay puts it back into its queue,
    unchanged."""
    hooks = streams.webhooks("a")
    await publish(streams, 1)
    await hooks.route([(entry, ["x"]) for entry in await take(hooks)])
    [delivery] = await hooks.claim(["x"], limit=10)
    await hooks.dead_letter(delivery, cause="answered 500", tries=7)
    assert await hooks.backlog(["x"]) == [0]
    [letter] = await streams.dead.page()
    assert (letter.source, letter.cause, letter.deliveries) == (keys.DEAD_DELIVERY, "answered 500", 7)
    assert (letter.fields["webhook"], letter.fields["id"]) == ("x", f"{an_id()}/1")
    assert await streams.dead.find(letter.id) == letter
    assert await streams.dead.replay(letter.id)
    assert await streams.dead.find(letter.id) is None
    [again] = await hooks.claim(["x"], limit=10)
    assert again.fields == delivery.fields


async def test_a_delivery_that_cannot_be_a_dead_letter_is_refused(streams: Streams) -> None:
    """A malformed id is the caller's error, not an absent letter."""
    with pytest.raises(InvalidError):
        await streams.dead.find("nonsense")


async def test_one_router_is_the_first(streams: Streams) -> None:
    """The first router is the lowest name among those that were active lately; a silent one is skipped."""
    a, b = streams.webhooks("a"), streams.webhooks("b")
    assert await b.is_first(silence_s=60)
    await publish(streams, 1)
    await take(b)
    await b.take_abandoned(min_idle_s=60, limit=1)
    assert await a.is_first(silence_s=60)
    await a.take_abandoned(min_idle_s=60, limit=1)
    assert (await a.is_first(silence_s=60), await b.is_first(silence_s=60)) == (True, False)
    await asyncio.sleep(0.05)
    await b.take_abandoned(min_idle_s=60, limit=1)
    assert await b.is_first(silence_s=0.04)


async def test_lost_groups_begin_at_the_start(backend: Backend) -> None:
    """After a flush the new group skips no event."""
    streams = backend.connect()
    hooks = streams.webhooks("a")
    await publish(streams, 1)
    await hooks.route([(entry, ["x"]) for entry in await take(hooks)])
    await hooks.claim(["x"], limit=10)
    await backend.flush()
    await publish(streams, 1, 2)
    taken = await take(hooks)
    assert len(taken) == 2
    await hooks.route([(entry, ["x"]) for entry in taken])
    assert seqs(await hooks.claim(["x"], limit=10)) == [1, 2]


async def test_a_queue_that_is_forgotten_is_gone(streams: Streams, backend: Backend) -> None:
    """The queue of a removed webhook is deleted."""
    hooks = streams.webhooks("a")
    await publish(streams, 1)
    await hooks.route([(entry, ["x"]) for entry in await take(hooks)])
    await hooks.forget("x")
    assert keys.webhook("x") not in await backend.keys()
    assert await hooks.claim(["x"], limit=10) == []
