"""Operations on the event log, the firehose, the work queue and the feed in a differential run.

Owns the random arguments of each operation and the form in which its answer is compared. An operation draws the same
arguments on both sides, from ids that both have returned.
"""

import random
from collections import defaultdict
from contextlib import suppress
from typing import Any

import msgspec

from slipway.errors import TransientError
from slipway.model.lifecycle import Event
from slipway.streams import keys
from slipway.streams.ports import FeedEntry, FeedOp, StreamEntry, WorkHint
from tests.models.redis_player import CONSUMERS, NAMES, Operation, Player, alloc, claimed, some, stored
from tests.support.redis import an_event, an_id, cursor

IDLE_S = (0, 0, 5, 25, 35)
LIVES_S = (None, None, None, 25, 105, 3_605)
QUICK_S = 0.001
LIMITS = (1, 3, 16, 40, 10_000)


def _entry(chance: random.Random, name: str, seq: int) -> StreamEntry:
    mark = (
        f"{chance.randrange(1, 6)}-{seq - chance.choice((1, 1, 1, 2))}" if chance.random() < 0.3 and seq > 7 else None
    )
    event = an_event(seq, name=name, truncated=mark, data={"ranks": chance.randrange(3)})
    if chance.random() < 0.1:
        event = msgspec.structs.replace(event, type=Event.TERMINATED)
    if chance.random() < 0.02:
        event = msgspec.structs.replace(event, created_ms=1_600_000_000_000)
    return StreamEntry(event=event, oldest_seq=chance.choice((None, None, 1, seq)), expire_s=chance.choice(LIVES_S))


async def append(player: Player, chance: random.Random) -> Any:
    """Append in order, with gaps, again, bridged, or of another creation."""
    last = await player.streams.events.last_seqs([an_id(name) for name in NAMES])
    entries: list[StreamEntry] = []
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(NAMES))
        near = (last[place] or 0) + chance.choice((-1, 0, 1, 1, 1, 1, 2, 7))
        entries.append(_entry(chance, NAMES[place], max(1, near)))
        last[place] = entries[-1].event.seq
    return await player.streams.events.append(entries)


async def append_many(player: Player, chance: random.Random) -> Any:
    """Append a ring as long as a stream may be, and longer."""
    name = chance.choice(NAMES)
    [last] = await player.streams.events.last_seqs([an_id(name)])
    first = (last or 0) + 1
    return await player.streams.events.append(
        [StreamEntry(event=an_event(first + step, name=name)) for step in range(300)]
    )


async def last_seqs(player: Player, chance: random.Random) -> Any:
    """Read the last seqs of all, and of an unknown allocation."""
    return await player.streams.events.last_seqs([an_id(each) for each in (*NAMES, "nobody")])


async def read(player: Player, chance: random.Random) -> Any:
    """Read from the start, from an entry, or from beyond the end."""
    after = chance.choice((None, cursor(chance.randrange(12)), cursor(chance.randrange(2_000))))
    return stored(await player.streams.events.read(alloc(chance), after=after, limit=chance.choice((1, 5, 100))))


async def follow(player: Player, chance: random.Random) -> Any:
    """Follow: read the present entries in the way that waits for more."""
    allocation, after = alloc(chance), chance.choice((None, cursor(chance.randrange(12))))
    there = await player.streams.events.read(allocation, after=after, limit=chance.choice((3, 300)))
    following = player.streams.events.follow(allocation, after=after)
    try:
        return stored([await anext(following) for _ in there])
    finally:
        await following.aclose()


async def hose_tail(player: Player, chance: random.Random) -> Any:
    """Read the end of every shard."""
    tail = await player.streams.firehose.tail()
    return [player.label(key, part) for key, part in zip(keys.EVENT_KEYS, tail.split(","), strict=True)]


async def hose_read(player: Player, chance: random.Random) -> Any:
    """Read from a position in every shard. Between shards the order is that of the servers' clocks."""
    positions = [player.cursor(key, chance) or "0-0" for key in keys.EVENT_KEYS]
    after = ",".join(positions) if chance.random() < 0.8 else None
    found = await player.streams.firehose.read(
        after=after, limit=chance.choice((1, 4, 500)), block_s=chance.choice((0.0, 0.0, 0.0, QUICK_S))
    )
    shards: dict[int, list[Any]] = defaultdict(list)
    for each in found:
        position = each.cursor.split(",")[each.shard]
        shards[each.shard].append((player.label(keys.events(each.shard), position), each.event))
    return dict(sorted(shards.items()))


async def send(player: Player, chance: random.Random) -> Any:
    """Send hints for a few allocations."""
    names = [f"run-{chance.randrange(12)}" for _ in range(chance.choice((1, 2, 5, 40)))]
    await player.streams.hints.send([WorkHint(namespace="ns", allocation=an_id(name)) for name in names])


async def claim(player: Player, chance: random.Random) -> Any:
    """Claim new entries."""
    consumer, limit = chance.choice(CONSUMERS), chance.choice(LIMITS)
    found = await player.queues[consumer].claim(limit=limit, block_s=chance.choice((0, 0, QUICK_S)))
    return claimed(player, consumer, found)


async def claim_abandoned(player: Player, chance: random.Random) -> Any:
    """Claim entries that were abandoned for some time, or for none."""
    consumer, limit = chance.choice(CONSUMERS), chance.choice(LIMITS)
    found = await player.queues[consumer].claim_abandoned(min_idle_s=chance.choice(IDLE_S), limit=limit)
    return claimed(player, consumer, found)


async def ack(player: Player, chance: random.Random) -> Any:
    """Acknowledge entries, also some that another consumer has claimed since, or that the server has lost."""
    consumer = chance.choice(CONSUMERS)
    return await player.queues[consumer].ack(some(chance, player.claims[consumer], 12))


async def heartbeat(player: Player, chance: random.Random) -> Any:
    """Send a heartbeat for everything that a consumer ever claimed and did not acknowledge."""
    consumer = chance.choice(CONSUMERS)
    return await player.queues[consumer].heartbeat(player.claims[consumer][-20:])


async def release(player: Player, chance: random.Random) -> Any:
    """Release entries, so that this delivery is not counted."""
    consumer = chance.choice(CONSUMERS)
    return await player.queues[consumer].release(some(chance, player.claims[consumer], 8))


async def dead_letter(player: Player, chance: random.Random) -> Any:
    """Bury an entry, perhaps one that was trimmed."""
    consumer = chance.choice(CONSUMERS)
    for each in some(chance, player.claims[consumer], 2):
        await player.queues[consumer].dead_letter(each, cause="x" * chance.choice((1, 2_000)))


async def trim_work(player: Player, chance: random.Random) -> Any:
    """Trim the entries that every group has acknowledged."""
    return await player.queues["one"].trim()


async def forget_consumers(player: Player, chance: random.Random) -> Any:
    """Delete idle consumers. Their number depends on the server: one creates a consumer when it asks, another when it
    gets an entry.

    So does the question whether there was anything to refuse.
    """
    with suppress(TransientError):
        await player.queues["one"].forget_consumers(idle_s=chance.choice((0, 10**9)))


async def backlog(player: Player, chance: random.Random) -> Any:
    """Count waiting and pending entries."""
    return await player.queues[chance.choice(CONSUMERS)].backlog()


async def feed_append(player: Player, chance: random.Random) -> Any:
    """Append by one of three publishers, which may have forgotten its last entry."""
    epoch = chance.randrange(1, 4)
    if chance.random() < 0.2:
        player.ends[epoch] = None
    entries = [
        FeedEntry(epoch=epoch, number=number, kind="pods", op=FeedOp.PUT, key=f"ns/{number}", rv=str(number))
        for number in range(chance.choice((0, 1, 2, 3, 70, 150, 300)))
    ]
    end = await player.streams.feed.append(entries, after=player.ends.get(epoch))
    player.ends[epoch] = end
    return player.label(keys.CLUSTER.prefix, end)


async def feed_read(player: Player, chance: random.Random) -> Any:
    """Read the feed; a pack is never cut."""
    found = await player.streams.feed.read(
        player.cursor(keys.CLUSTER.prefix, chance),
        limit=chance.choice((1, 3, 64, 5_000)),
        block_s=chance.choice((0, 0, QUICK_S)),
    )
    return [(player.label(keys.CLUSTER.prefix, each), entry) for each, entry in found]


async def feed_position(player: Player, chance: random.Random) -> Any:
    """Read the end of the feed."""
    found = await player.streams.feed.position()
    return found.epoch, found.number, found.cursor and player.label(keys.CLUSTER.prefix, found.cursor)


async def ring(player: Player, chance: random.Random) -> Any:
    """Ring once, or more often than the bell stores."""
    for number in range(chance.choice((1, 1, 1, 50))):
        await player.streams.wake.ring(f"because {number}")


async def wait(player: Player, chance: random.Random) -> Any:
    """Wait from now on, or after a ring that was received."""
    after = player.cursor(keys.WAKE.prefix, chance)
    found = await player.streams.wake.wait(after, timeout_s=QUICK_S)
    return found.reasons, found.cursor and player.label(keys.WAKE.prefix, found.cursor)


OPERATIONS: dict[str, tuple[float, Operation]] = {
    "append": (10, append),
    "append_many": (0.15, append_many),
    "last_seqs": (2, last_seqs),
    "read": (3, read),
    "follow": (1, follow),
    "hose_tail": (1, hose_tail),
    "hose_read": (2, hose_read),
    "send": (7, send),
    "claim": (7, claim),
    "claim_abandoned": (5, claim_abandoned),
    "ack": (5, ack),
    "heartbeat": (2, heartbeat),
    "release": (2, release),
    "dead_letter": (1.5, dead_letter),
    "trim_work": (2, trim_work),
    "forget_consumers": (0.5, forget_consumers),
    "backlog": (2, backlog),
    "feed_append": (4, feed_append),
    "feed_read": (2, feed_read),
    "feed_position": (2, feed_position),
    "ring": (2, ring),
    "wait": (2, wait),
}
"""{name: (relative frequency, operation)}"""
