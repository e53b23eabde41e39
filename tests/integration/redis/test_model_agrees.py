"""The in-memory model and a real server give the same answers to the same random operations."""

import random
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from slipway.errors import ExpiredError, StaleError
from slipway.model.lifecycle import Event
from slipway.streams import keys
from slipway.streams.gatherings import GatherKey, Outcome, Seat
from slipway.streams.ports import Claimed, Entry, FeedEntry, FeedOp, Streams, WorkHint
from tests.support.redis import Backend, MemoryBackend, RedisBackend, an_event, an_id, server_process

NAMES = ("a", "b", "c")
STEPS = 400


@pytest.fixture
async def pair() -> AsyncGenerator[tuple[MemoryBackend, RedisBackend]]:
    async with server_process() as server:
        real = RedisBackend(server.url)
        yield MemoryBackend(), real
        await real.aclose()


async def step_events(streams: Streams, backend: Backend, chance: random.Random) -> Any:
    """One random operation on the event log; what it answers, without what only a clock decides."""
    name = chance.choice(NAMES)
    match chance.randrange(12):
        case 0:
            return await streams.events.last_seqs([an_id(each) for each in NAMES])
        case 1:
            after = chance.choice((None, f"1700000000000-{chance.randrange(12)}"))
            return await streams.events.read(an_id(name), after=after, limit=chance.randrange(1, 9))
        case 2:
            read = await streams.firehose.read(limit=10_000)
            return Counter(each.event.event_id for each in read)
        case 3 if chance.random() < 0.2:
            await backend.flush()
            return None
        case _:
            entries: list[Entry] = []
            for _ in range(chance.randrange(1, 4)):
                seq = chance.randrange(1, 14)
                mark = f"{chance.randrange(1, 6)}-{seq - 1}" if chance.random() < 0.3 and seq > 6 else None
                event = an_event(seq, name=name, truncated=mark)
                if chance.random() < 0.1:
                    event = msgspec.structs.replace(event, type=Event.TERMINATED)
                if chance.random() < 0.02:
                    event = msgspec.structs.replace(event, created_ms=1_600_000_000_000)
                entries.append(Entry(event=event, oldest_seq=chance.choice((None, None, 1, seq))))
            # Within one batch only the first may begin a stream; the model takes entries one by one, so do we here.
            return [(await streams.events.append([entry]))[0] for entry in entries]


@pytest.mark.parametrize("seed", range(5))
async def test_event_logs_agree(pair: tuple[MemoryBackend, RedisBackend], seed: int) -> None:
    """Outcomes, contents and the firehose are equal at every step."""
    sides = [(backend.connect(), backend) for backend in pair]
    for step in range(STEPS):
        model, real = [await step_events(*side, random.Random(f"{seed}/{step}")) for side in sides]
        assert model == real, f"seed {seed}, step {step}"


class Worker:
    """One side of the queue: three consumers, and what they hold, by hint."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.streams = backend.connect()
        self.held: dict[str, list[Claimed]] = {name: [] for name in NAMES}

    async def step(self, chance: random.Random) -> Any:
        """One random operation on the work queue."""
        consumer = chance.choice(NAMES)
        queue, held = self.streams.work_queue(consumer), self.held[consumer]
        match chance.randrange(9):
            case 0 | 1:
                names = [f"run-{chance.randrange(6)}" for _ in range(chance.randrange(1, 6))]
                await self.streams.hints.send([WorkHint(namespace="ns", allocation=an_id(name)) for name in names])
                return None
            case 2:
                found = await queue.claim(limit=10_000, block_s=0)
                return self.hold(consumer, found)
            case 3:
                return self.hold(consumer, await queue.claim_abandoned(min_idle_s=0, limit=10_000))
            case 4:
                return await queue.ack([held.pop() for _ in range(min(len(held), chance.randrange(4)))])
            case 5:
                return await queue.release(held)
            case 6 if held:
                await queue.dead_letter(held.pop(), cause="x")
                return [letter.fields for letter in await self.streams.dead.page(limit=10_000)]
            case 7:
                return await queue.trim()
            case 8 if chance.random() < 0.1:
                await self.backend.flush()
                return None
            case _:
                lengths = [await self.backend.length(key) for key in keys.WORK_KEYS]
                return await queue.backlog(), lengths

    def hold(self, consumer: str, found: list[Claimed]) -> list[tuple[Any, ...]]:
        ordered = sorted(found, key=lambda each: (each.shard, [int(part) for part in each.entry_id.split("-")]))
        self.held[consumer] = ordered
        return [(each.shard, each.hint, each.deliveries) for each in ordered]


@pytest.mark.parametrize("seed", range(5))
async def test_work_queues_agree(pair: tuple[MemoryBackend, RedisBackend], seed: int) -> None:
    """Deliveries, claims, counts, dead letters and what trimming leaves are equal at every step."""
    model, real = (Worker(backend) for backend in pair)
    for step in range(STEPS):
        one = await model.step(random.Random(f"{seed}/{step}"))
        other = await real.step(random.Random(f"{seed}/{step}"))
        assert one == other, f"seed {seed}, step {step}"


async def step_feed(streams: Streams, backend: Backend, chance: random.Random, ends: dict[int, str | None]) -> Any:
    """One random operation on the feed by one of two publishers."""
    epoch = chance.randrange(1, 4)
    if chance.random() < 0.02:
        await backend.flush()
    if chance.random() < 0.2:
        ends[epoch] = None
    count = chance.randrange(1, 4)
    entries = [FeedEntry(epoch=epoch, number=number, kind="pods", op=FeedOp.PUT) for number in range(count)]
    try:
        ends[epoch] = await streams.feed.append(entries, after=ends.get(epoch))
        outcome = "ok"
    except ExpiredError:
        outcome = "lost"
    except StaleError:
        outcome = "stale"
    position = await streams.feed.position()
    return outcome, position.epoch, position.number, len(await streams.feed.read(None, limit=10_000, block_s=0))


@pytest.mark.parametrize("seed", range(3))
async def test_feeds_agree(pair: tuple[MemoryBackend, RedisBackend], seed: int) -> None:
    """Who may write, and where the feed stands, are equal at every step."""
    sides = [(backend.connect(), backend) for backend in pair]
    ends: list[dict[int, str | None]] = [{}, {}]
    for step in range(STEPS):
        model, real = [
            await step_feed(*side, random.Random(f"{seed}/{step}"), own) for side, own in zip(sides, ends, strict=True)
        ]
        assert model == real, f"seed {seed}, step {step}"


async def step_gathering(streams: Streams, backend: Backend, chance: random.Random) -> Any:
    """One random operation on a few gatherings; what it answers, but for the version, which is a time."""
    key = GatherKey(allocation=an_id(), attempt=1, group=chance.choice(NAMES))
    name, token = chance.choice(("p", "q", "r", "s")), chance.choice(("1", "2"))
    seat = Seat(
        request_id=name, token=token, rank=chance.randrange(-1, 3), data=b"x" * chance.randrange(200_000, 600_000)
    )
    match chance.randrange(8):
        case 0:
            await streams.gatherings.leave(key, seat)
        case 1:
            found = await streams.gatherings.look(key, owner="p")
            return found.outcome, found.peers, found.present
        case 2 if chance.random() < 0.1:
            await backend.flush()
        case _:
            small = seat if chance.random() < 0.3 else msgspec.structs.replace(seat, data=b"1")
            found = await streams.gatherings.join(key, small, peers=chance.choice((1, 3, 3, 4, 4)), owner="p")
            return found.outcome, found.peers, found.present
    return await streams.gatherings.seats(key), await streams.gatherings.tokens(key, ["p", "q", "r", "s"])


@pytest.mark.parametrize("seed", range(5))
async def test_gatherings_agree(pair: tuple[MemoryBackend, RedisBackend], seed: int) -> None:
    """Who sits where, what is complete, refused or full are equal at every step."""
    sides = [(backend.connect(), backend) for backend in pair]
    seen: Counter[Any] = Counter()
    for step in range(STEPS):
        model, real = [await step_gathering(*side, random.Random(f"{seed}/{step}")) for side in sides]
        assert model == real, f"seed {seed}, step {step}"
        seen[real[0] if isinstance(real[0], Outcome) else "seats"] += 1
    assert {Outcome.OPEN, Outcome.COMPLETED, Outcome.DONE, Outcome.MISMATCH} <= set(seen), seen
