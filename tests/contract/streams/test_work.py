"""Work hints are delivered at least once, to one consumer at a time, until acknowledged or dead."""

import asyncio

import pytest

from slipway.errors import InvalidError
from slipway.streams import keys
from slipway.streams.ports import Claimed, Streams, WorkHint
from tests.support.redis import Backend, an_id


def a_hint(name: str = "train") -> WorkHint:
    return WorkHint(namespace="default", allocation=an_id(name), traceparent=f"00-{'a' * 32}-{'b' * 16}-01")


async def claim_all(streams: Streams, consumer: str = "a") -> list[Claimed]:
    return await streams.work_queue(consumer).claim(limit=1_000, block_s=0)


async def claim_idle(streams: Streams, consumer: str, min_idle_s: float = 0.0) -> list[Claimed]:
    return await streams.work_queue(consumer).claim_abandoned(min_idle_s=min_idle_s, limit=1_000)


async def test_a_hint_reaches_one_consumer(streams: Streams) -> None:
    """Each entry goes to one consumer of the group, decoded, as its first delivery."""
    await streams.hints.send([a_hint()])
    [claimed] = await claim_all(streams, "a")
    assert (claimed.hint, claimed.deliveries, claimed.shard) == (a_hint(), 1, keys.shard_of(an_id()))
    assert await claim_all(streams, "b") == []


async def test_hints_sent_before_any_consumer_are_not_lost(streams: Streams) -> None:
    """The group begins at the start of the stream."""
    await streams.hints.send([a_hint(f"run-{number}") for number in range(40)])
    assert len(await claim_all(streams)) == 40


async def test_a_blocked_claim_gets_the_next_hint(backend: Backend) -> None:
    """A blocked claim returns as soon as a hint arrives."""
    sender, worker = backend.connect(), backend.connect()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(worker.work_queue("a").claim(limit=10, block_s=4))
        await asyncio.sleep(0.05)
        await sender.hints.send([a_hint()])
    assert [each.hint for each in waiting.result()] == [a_hint()]


async def test_a_blocked_claim_survives_a_flush(backend: Backend) -> None:
    """A lost group is created again, once, and hints that are sent afterwards arrive."""
    sender, worker = backend.connect(), backend.connect()
    queue = worker.work_queue("a")
    await queue.claim(limit=10, block_s=0)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(queue.claim(limit=10, block_s=4))
        await asyncio.sleep(0.05)
        await backend.flush()
        await sender.hints.send([a_hint()])
    assert [each.hint for each in waiting.result()] == [a_hint()]


async def test_an_acknowledged_entry_is_gone(streams: Streams) -> None:
    """No consumer gets an acknowledged entry again."""
    await streams.hints.send([a_hint()])
    assert await streams.work_queue("a").standing() == (1, 0)
    claimed = await claim_all(streams)
    assert await streams.work_queue("a").standing() == (0, 1)
    assert await streams.work_queue("a").backlog() == 1
    await streams.work_queue("a").ack(claimed)
    assert await claim_idle(streams, "b") == []
    assert await streams.work_queue("a").backlog() == 0


async def test_abandoned_entries_are_claimed_with_their_count(streams: Streams) -> None:
    """The entries of a dead consumer go to another, each time with one more delivery."""
    await streams.hints.send([a_hint(f"run-{number}") for number in range(50)])
    await claim_all(streams, "dead")
    claimed = await claim_idle(streams, "b")
    assert (len(claimed), {each.deliveries for each in claimed}) == (50, {2})
    assert {each.deliveries for each in await claim_idle(streams, "c")} == {3}


async def test_young_entries_are_not_abandoned(streams: Streams) -> None:
    """No other consumer may claim an entry before the idle time has passed."""
    await streams.hints.send([a_hint()])
    await claim_all(streams, "a")
    assert await claim_idle(streams, "b", min_idle_s=60) == []


async def test_a_heartbeat_keeps_an_entry(streams: Streams) -> None:
    """A long-running entry stays with its consumer, and a heartbeat is not counted as another delivery."""
    await streams.hints.send([a_hint()])
    claimed = await claim_all(streams, "a")
    await asyncio.sleep(0.12)
    await streams.work_queue("a").heartbeat(claimed)
    assert await claim_idle(streams, "b", min_idle_s=0.1) == []
    assert [each.deliveries for each in await claim_idle(streams, "b")] == [2]


async def test_a_late_heartbeat_does_not_take_an_entry_back(streams: Streams) -> None:
    """The heartbeat of the first consumer has no effect once another consumer has claimed the entry."""
    await streams.hints.send([a_hint()])
    late = await claim_all(streams, "a")
    await claim_idle(streams, "b")
    await asyncio.sleep(0.12)
    await streams.work_queue("a").heartbeat(late)
    assert len(await claim_idle(streams, "c", min_idle_s=0.1)) == 1


async def test_a_released_delivery_does_not_count(streams: Streams) -> None:
    """A failure that is not caused by the entry brings it no nearer to the dead letters."""
    await streams.hints.send([a_hint()])
    claimed = await claim_all(streams, "a")
    for _ in range(8):
        await streams.work_queue("a").release(claimed)
        claimed = await claim_idle(streams, "a")
    assert [each.deliveries for each in claimed] == [1]


async def test_an_undecodable_entry_is_delivered_as_such(streams: Streams, backend: Backend) -> None:
    """An undecodable entry reaches the consumer that buries it, without an error on the way."""
    await backend.add_raw(keys.work(0), None, {"v": b"1", "key": b"\xff/../x"})
    await backend.add_raw(keys.work(1), None, {"v": b"2", "key": b"default/train-0123abcd"})
    claimed = await claim_all(streams)
    assert [each.hint for each in claimed] == [None, None]
    assert all(each.problem for each in claimed)


async def test_a_dead_letter_says_where_it_came_from_and_why(streams: Streams) -> None:
    """The entry leaves the queue, and is in the dead letters with its cause and its fields."""
    await streams.hints.send([a_hint()])
    [claimed] = await claim_all(streams)
    await streams.work_queue("a").dead_letter(claimed, cause="the template is broken")
    assert await claim_idle(streams, "b") == []
    [letter] = await streams.dead.page()
    assert (letter.source, letter.entry_id) == (keys.work(claimed.shard), claimed.entry_id)
    assert (letter.cause, letter.deliveries) == ("the template is broken", 1)
    assert letter.fields["key"] == "default/train-0123abcd"


async def test_a_dead_letter_can_be_sent_again(streams: Streams) -> None:
    """A replay puts the unchanged hint back into its source, once."""
    await streams.hints.send([a_hint()])
    [claimed] = await claim_all(streams)
    await streams.work_queue("a").dead_letter(claimed, cause="x")
    [letter] = await streams.dead.page()
    assert await streams.dead.replay(letter.id) is True
    assert await streams.dead.replay(letter.id) is False
    assert [each.hint for each in await claim_all(streams)] == [a_hint()]
    assert await streams.dead.page() == []


async def test_a_dead_letter_can_be_dropped(streams: Streams) -> None:
    """A dead letter can be dropped; a malformed id is the caller's error."""
    await streams.hints.send([a_hint()])
    [claimed] = await claim_all(streams)
    await streams.work_queue("a").dead_letter(claimed, cause="x")
    [letter] = await streams.dead.page()
    assert await streams.dead.drop(letter.id) is True
    assert await streams.dead.drop(letter.id) is False
    with pytest.raises(InvalidError):
        await streams.dead.drop("*")


async def test_a_letter_from_elsewhere_is_not_sent_anywhere(streams: Streams, backend: Backend) -> None:
    """A forged source must not make us write to foreign keys."""
    await backend.add_raw(keys.DEAD.prefix, None, {"source": b"slipway:cluster", "f:x": b"y"})
    [letter] = await streams.dead.page()
    with pytest.raises(InvalidError):
        await streams.dead.replay(letter.id)


async def test_trimming_removes_only_entries_that_all_groups_acknowledged(streams: Streams, backend: Backend) -> None:
    """Neither a pending nor an undelivered entry ever leaves the stream."""
    queue = streams.work_queue("a")
    await streams.hints.send([a_hint() for _ in range(6)])
    claimed = await claim_all(streams)
    await queue.ack([claimed[0], claimed[1], claimed[3]])
    await streams.hints.send([a_hint()])
    assert await queue.trim() == 2
    assert await backend.length(keys.work(claimed[0].shard)) == 5
    assert len(await claim_all(streams, "b")) == 1
    assert len(await claim_idle(streams, "c")) == 4
    assert await queue.backlog() == 4
    assert await queue.standing() == (0, 4)


async def test_acknowledging_after_a_flush_is_harmless(streams: Streams, backend: Backend) -> None:
    """The work is done, so it does not matter that the entry is gone."""
    await streams.hints.send([a_hint()])
    claimed = await claim_all(streams)
    await backend.flush()
    queue = streams.work_queue("a")
    await queue.heartbeat(claimed)
    await queue.release(claimed)
    await queue.ack(claimed)
    assert await queue.trim() == 0
    assert await claim_idle(streams, "a") == []


async def test_an_entry_that_was_deleted_while_pending_blocks_no_consumer(streams: Streams, backend: Backend) -> None:
    """A claim skips the entry, returns the rest, and forgets it: no entry is pending for ever."""
    await streams.hints.send([a_hint() for _ in range(3)])
    claimed = await claim_all(streams, "dead")
    await backend.remove_raw(keys.work(claimed[1].shard), claimed[1].entry_id)
    found = await claim_idle(streams, "b")
    assert [each.entry_id for each in found] == [claimed[0].entry_id, claimed[2].entry_id]
    await streams.work_queue("b").ack(found)
    assert await streams.work_queue("b").backlog() == 0
    assert await claim_idle(streams, "c") == []


async def test_a_group_that_was_lost_begins_at_the_start(streams: Streams, backend: Backend) -> None:
    """Entries are delivered again from the start, acknowledged ones too: at least once."""
    await streams.hints.send([a_hint() for _ in range(3)])
    claimed = await claim_all(streams, "a")
    await streams.work_queue("a").ack(claimed[:1])
    await backend.lose_group(keys.work(claimed[0].shard), keys.WORK_GROUP)
    assert [each.entry_id for each in await claim_all(streams, "b")] == [each.entry_id for each in claimed]


async def test_hints_sent_between_a_flush_and_the_next_claim_are_not_lost(streams: Streams, backend: Backend) -> None:
    """The group is created again at 0, not at the end."""
    await streams.hints.send([a_hint()])
    await claim_all(streams)
    await backend.flush()
    await streams.hints.send([a_hint(f"run-{number}") for number in range(20)])
    assert len(await streams.work_queue("a").claim(limit=1_000, block_s=1)) == 20


async def test_a_claim_of_few_leaves_the_rest(streams: Streams) -> None:
    """A worker claims about as many entries as it can handle; the next claims get the others, each once."""
    await streams.hints.send([a_hint(f"run-{number}") for number in range(200)])
    queue, seen = streams.work_queue("a"), [0]
    first = await queue.claim(limit=16, block_s=0)
    assert len(first) <= 16
    while found := await queue.claim(limit=16, block_s=0):
        seen.append(len(found))
    assert len(first) + sum(seen) == 200


async def test_the_backlog_is_counted_when_entries_were_removed_by_hand(streams: Streams, backend: Backend) -> None:
    """The backlog contains the entries that can still be delivered, whatever the server counts of removed ones."""
    await streams.hints.send([a_hint()] * 3)
    assert len(await streams.work_queue("a").claim(limit=1, block_s=0)) == 1
    key = keys.work(keys.shard_of(an_id()))
    await backend.add_raw(key, "9000000000000-1", {"v": b"1", "key": b"default/x-0123abcd"})
    await backend.remove_raw(key, "9000000000000-1")
    await backend.add_raw(key, "9000000000000-2", {"v": b"1", "key": b"default/x-0123abcd"})
    assert await streams.work_queue("a").backlog() == 4
