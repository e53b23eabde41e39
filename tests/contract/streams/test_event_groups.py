"""A consumer group of an integration gets every event at least once, also after the death of a consumer or a flush."""

from collections.abc import Sequence

from slipway.streams import keys
from slipway.streams.event_groups import EventDelivery, EventGroup
from slipway.streams.ports import StreamEntry, Streams
from tests.support.redis import Backend, an_event

NAMES = ("train", "tune", "serve")
LIMIT = 64


async def publish(streams: Streams, *seqs: int, name: str = "train") -> None:
    await streams.events.append([StreamEntry(event=an_event(seq, name=name)) for seq in seqs])


async def claim(group: EventGroup) -> list[EventDelivery]:
    return await group.claim(limit=LIMIT, block_s=0.02)


def ids(deliveries: Sequence[EventDelivery]) -> list[str]:
    return sorted(each.event.event_id for each in deliveries if each.event is not None)


def ids_of(*seqs: int, name: str = "train") -> list[str]:
    return [an_event(seq, name=name).event_id for seq in seqs]


async def test_each_group_gets_all_events_and_its_consumers_share_them(streams: Streams) -> None:
    """A group also gets events from before its creation; an event of one consumer does not go to another."""
    await publish(streams, 1, 2)
    one, two, other = (
        streams.event_group("billing", "a"),
        streams.event_group("billing", "b"),
        streams.event_group("mail", "a"),
    )
    assert ids(await claim(one)) == ids_of(1, 2)
    assert await claim(two) == []
    await publish(streams, 3)
    assert ids(await claim(two)) == ids_of(3)
    assert ids(await claim(other)) == ids_of(1, 2, 3)


async def test_a_claim_respects_its_limit(streams: Streams) -> None:
    """A claim returns at most its limit, even if that is one entry of each shard."""
    await publish(streams, *range(1, 6))
    group = streams.event_group("g", "a")
    assert [ids(await group.claim(limit=keys.SHARDS, block_s=0.02)) for _ in range(2)] == [ids_of(1), ids_of(2)]


async def test_what_a_dead_consumer_left_is_claimed_by_another(streams: Streams) -> None:
    """Another consumer claims the entry only when the first is silent; the claim shows the number of deliveries, and
    an acknowledged entry is not claimed."""
    dead, other = streams.event_group("g", "dead"), streams.event_group("g", "b")
    await publish(streams, 1, 2)
    held = await claim(dead)
    await dead.acknowledge(held[:1])
    assert await other.claim_abandoned(min_idle_s=60, limit=LIMIT) == []
    await dead.keep(held)
    assert await other.claim_abandoned(min_idle_s=60, limit=LIMIT) == []
    [found] = await other.claim_abandoned(min_idle_s=0, limit=LIMIT)
    assert (found.place, found.deliveries) == (held[1].place, 2)
    await other.count_failure(found)
    [again] = await dead.claim_abandoned(min_idle_s=0, limit=LIMIT)
    assert again.deliveries == 4
    await other.keep([found])
    assert [each.place for each in await other.claim_abandoned(min_idle_s=0, limit=LIMIT)] == [found.place]
    await other.acknowledge([found])
    assert await dead.claim_abandoned(min_idle_s=0, limit=LIMIT) == []


async def test_an_event_that_cannot_be_read_says_why_and_can_become_a_dead_letter(
    streams: Streams, backend: Backend
) -> None:
    """The dead letter has the cause and the unchanged entry, and belongs to the group."""
    await backend.add_raw(keys.events(3), None, {"specversion": b"1.0", "x": b"y"})
    group = streams.event_group("g", "a")
    [found] = await claim(group)
    assert found.event is None
    assert found.problem
    await group.dead_letter(found, cause="cannot be read", deliveries=1)
    assert await group.claim_abandoned(min_idle_s=0, limit=LIMIT) == []
    [letter] = await group.letters()
    assert (letter.source, letter.entry_id, letter.cause) == (keys.events(3), found.entry_id, "cannot be read")
    assert letter.fields == {"specversion": "1.0", "x": "y"}
    assert await streams.event_group("other", "a").letters() == []
    assert await group.letters(after=letter.id) == []
    await group.drop_letter(letter.id)
    assert await group.letters() == []


async def test_a_group_that_was_lost_is_made_again_from_the_start(streams: Streams, backend: Backend) -> None:
    """The group is created again after a flush, and when only the group is gone."""
    group = streams.event_group("g", "a")
    await publish(streams, 1)
    await group.acknowledge(await claim(group))
    await backend.flush()
    await publish(streams, 2)
    assert ids(await claim(group)) == ids_of(2)
    await backend.lose_group(keys.events(keys.shard_of(an_event().allocation_id)), "g")
    assert ids(await claim(group)) == ids_of(2)


async def test_the_lag_counts_waiting_and_pending_events(streams: Streams) -> None:
    """Before the group exists all events are its lag."""
    group = streams.event_group("g", "a")
    assert (await group.lag()).waiting == 0
    for name in NAMES:
        await publish(streams, 1, 2, name=name)
    lag = await group.lag()
    assert (lag.waiting, lag.pending) == (6, 0)
    held = await claim(group)
    lag = await group.lag()
    assert (lag.waiting, lag.pending, lag.behind_s) == (0, 6, 0)
    await group.acknowledge(held)
    await publish(streams, 3)
    lag = await group.lag()
    assert (lag.waiting, lag.pending) == (1, 0)
    assert lag.behind_s >= 0


async def test_events_of_a_consumer_that_leaves_are_not_lost(streams: Streams) -> None:
    """The entries of a deleted consumer stay pending for others."""
    group = streams.event_group("g", "a")
    await publish(streams, 1)
    held = await claim(group)
    await group.leave()
    assert ids(await streams.event_group("g", "b").claim_abandoned(min_idle_s=0, limit=LIMIT)) == ids(held)
    await group.leave()
