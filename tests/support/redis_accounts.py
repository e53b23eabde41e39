"""Everything that each service does with Redis, done once; and the commands that a server received.

Owns the walks over the ports (every branch that sends a command of its own) and the reading of `MONITOR`.
"""

import asyncio
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from slipway.model.lifecycle import Event
from slipway.streams import keys
from slipway.streams.accounts import API, AUDIT, PODWORKER, SCHEDULER, WATCHER, Account
from slipway.streams.allgather import GatherKey, Seat
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits
from slipway.streams.keys import KeyFamily
from slipway.streams.logpacks import LogLine
from slipway.streams.ports import FeedEntry, FeedOp, SpanRecord, StreamEntry, Streams, WorkHint
from tests.support.logs import a_pack, store_lines
from tests.support.redis import RedisBackend, an_event, an_id, cursor

Walk = Callable[[Streams, RedisBackend], Awaitable[None]]
"""The calls of one service: with its own streams, and an operator who deletes or corrupts data, or plays the other
services."""

_HINT = WorkHint(namespace="ns", allocation=an_id())
_MANY = 501
"""A number of hints after which the length of a shard is requested."""


async def api(own: Streams, operator: RedisBackend) -> None:
    """Everything that the api does."""
    others = operator.connect()
    await _append(own, operator)
    await own.wake.ring("x")
    await _spans(own)
    assert await own.events.read(an_id())
    async with aclosing(own.events.follow(an_id(), after=cursor(1))) as following:
        waiting = asyncio.ensure_future(anext(following))
        await own.events.append([StreamEntry(event=an_event(2))])
        assert await waiting
    await own.firehose.read(after=None, block_s=0.05)
    await own.firehose.read(after=await own.firehose.tail(), block_s=0.05)
    await store_lines(others, an_id(), [LogLine(attempt=1, rank=0, stream="stdout", time="t", text="x")])
    assert await own.logs.read(an_id())
    assert await own.logs.tail(an_id(), limit=1)
    assert await own.logs.positions(an_id())
    await own.activity.touch({an_id(): {"proxy": 1.0}})
    assert await own.activity.read([an_id()]) == [{"proxy": 1.0}]
    await others.decisions.append("p", _decision(0), base=None, caps=DecisionLogLimits(entries=9, size=999))
    assert await own.decisions.read("p")
    assert await own.traces.read(an_id())
    await own.logouts.append({"a": 9e9})
    assert (await own.logouts.read(None, limit=9)).ended == {"a": 9e9}
    assert await own.logouts.take("a", 9)
    await own.logouts.keep("a", "text", 9)
    assert await own.logouts.kept("a") == "text"
    await _gather(own)
    await _webhooks(own, others)
    await _dead_letters(own, others)
    await own.conditions.look()


async def scheduler(own: Streams, operator: RedisBackend) -> None:
    """Everything that the scheduler does."""
    others = operator.connect()
    await _spans(own)
    await own.hints.send([_HINT] * _MANY)
    await own.wake.ring("x")
    await own.wake.wait(None, timeout_s=0.05)
    await _publish(others)
    assert await own.feed.read(None, limit=9, block_s=0.05)
    assert (await own.feed.position()).cursor is not None
    assert await own.feed.kept(0, ["a"]) == [b"1"]
    assert await own.activity.read([an_id()]) == [{}]
    caps = DecisionLogLimits(entries=2, size=999)
    base = await own.decisions.append("p", _decision(0), base=None, caps=caps)
    assert await own.decisions.append("p", _decision(1), base=base, caps=caps)
    assert await own.decisions.append("p", _decision(0), base=None, caps=caps)
    assert await own.decisions.append("p", _decision(1), base=base, caps=caps) is None


async def podworker(own: Streams, operator: RedisBackend) -> None:
    """Everything that the podworker does."""
    others = operator.connect()
    await _spans(own)
    await own.health.ping()
    queue = own.work_queue("a")
    assert await queue.claim(limit=16, block_s=0) == []  # makes the groups
    await others.hints.send([_HINT, _HINT, _HINT])
    claimed = await queue.claim(limit=100, block_s=2)
    assert len(claimed) == 3
    await queue.heartbeat(claimed)
    await queue.release(claimed)
    assert len(await own.work_queue("b").claim_abandoned(min_idle_s=0, limit=100)) == 3
    await queue.claim_abandoned(min_idle_s=0, limit=100)
    await queue.dead_letter(claimed[0], cause="x")
    await queue.ack(claimed)
    await queue.claim(limit=100, block_s=0.05)
    assert await queue.trim() > 0
    assert await queue.forget_consumers(idle_s=0) > 0


async def watcher(own: Streams, operator: RedisBackend) -> None:
    """Everything that the watcher does."""
    others = operator.connect()
    await _spans(own)
    await _append(own, operator)
    await own.wake.ring("x")
    await own.hints.send([_HINT] * _MANY)
    await others.work_queue("a").claim(limit=1, block_s=0)
    assert sum(await own.work_queue("lag").standing()) == _MANY
    await own.activity.touch({an_id(): {keys.ACTIVITY_SINCE: 1.0}})
    await own.activity.touch({an_id(): {keys.ACTIVITY_SINCE: 2.0}})
    await _publish(own)
    await own.feed.position()
    await _logs(own, operator)
    assert await own.logs.positions(an_id())
    assert await own.logs.page(an_id())


async def audit(own: Streams, operator: RedisBackend) -> None:
    """Everything that the audit reads."""
    others = operator.connect()
    await others.hints.send([_HINT])
    await others.events.append([StreamEntry(event=an_event(1))])
    await others.work_queue("a").claim(limit=1, block_s=0)
    assert await own.events.read(an_id())
    assert await own.dead.page() == []
    assert await own.work_queue("audit").backlog() == 1


WALKS: dict[str, tuple[Account, Walk]] = {
    each.name: (each, walk)
    for each, walk in ((API, api), (SCHEDULER, scheduler), (PODWORKER, podworker), (WATCHER, watcher), (AUDIT, audit))
}


async def _append(own: Streams, operator: RedisBackend) -> None:
    """Append events: one, the same again, the end of another allocation, and events to corrupted streams."""
    event = StreamEntry(event=an_event(1))
    await own.events.append([event, event])
    assert await own.events.last_seqs([an_id()]) == [1]
    end = StreamEntry(event=an_event(1, name="ended", type=Event.TERMINATED))
    await own.events.append([end])
    await own.events.append([end])
    spoiled = an_id("spoiled")
    await operator.add_raw(keys.allocation(spoiled), None, {"a": b"1"})
    await own.events.append([StreamEntry(event=an_event(1, name="spoiled"))])
    await own.events.append([StreamEntry(event=an_event(1, name="spoiled"))])


async def _spans(own: Streams) -> None:
    span = SpanRecord(trace_id="a", span_id="b", name="n", service="s", start_ns=1, end_ns=2)
    await own.traces.append({an_id(): [span]})


async def _publish(own: Streams) -> None:
    await own.feed.append([FeedEntry(epoch=1, number=1, kind="pods", op=FeedOp.PUT)], after=None)
    await own.feed.keep(0, {"a": b"1"}, anew=True)


def _decision(number: int) -> DecisionEntry:
    return DecisionEntry(chain="c", number=number, tick=number, data=b"x")


async def _gather(own: Streams) -> None:
    """A gathering that completes, and one that its members leave."""
    for group, peers in (("whole", 2), ("left", 3)):
        key = GatherKey(allocation=an_id(), attempt=1, group=group)
        for name in ("a", "b"):
            await own.gatherings.join(key, Seat(request_id=name, token=name), peers=peers, owner=name)
        await own.gatherings.look(key, owner="a")
        assert await own.gatherings.tokens(key, ["a"]) == ["a"]
        assert await own.gatherings.seats(key)
        for name in ("a", "b"):
            await own.gatherings.leave(key, Seat(request_id=name, token=name))


async def _webhooks(own: Streams, others: Streams) -> None:
    hooks = own.webhooks("a")
    assert await hooks.is_first(silence_s=10)
    await hooks.take(limit=10, block_s=0.05)  # makes the groups
    await others.events.append([StreamEntry(event=an_event(1, name="hooked"))])
    taken = await hooks.take(limit=10, block_s=2)
    assert await hooks.is_first(silence_s=10)
    assert len(await hooks.take_again()) >= len(taken) > 0
    assert await own.webhooks("b").take_abandoned(min_idle_s=60, limit=10) == []
    await hooks.route([(entry, ["hook"]) for entry in taken])
    deliveries = await hooks.claim(["hook"], limit=10)
    assert await hooks.held(["hook"]) == deliveries
    await hooks.heartbeat(deliveries)
    assert await hooks.claim_abandoned(["hook"], min_idle_s=60, limit=10) == []
    await hooks.dead_letter(deliveries[0], cause="x", tries=1)
    assert len(await hooks.backlog(["hook"])) == 1


async def _dead_letters(own: Streams, others: Streams) -> None:
    """Make a dead letter of a webhook and one of the work queue, and replay both."""
    queue = others.work_queue("a")
    await others.hints.send([_HINT])
    [claimed] = await queue.claim(limit=1, block_s=2)
    await queue.dead_letter(claimed, cause="x")
    letters = await own.dead.page()
    assert len(letters) == 2
    for letter in letters:
        assert await own.dead.find(letter.id)
        assert await own.dead.replay(letter.id)
    await own.webhooks("a").forget("hook")


async def _logs(own: Streams, operator: RedisBackend) -> None:
    """Write a log beyond its share, one of a second attempt, and one whose position was lost."""
    allocation = an_id()
    for number in range(12):
        lines = [LogLine(attempt=1, rank=0, stream="stdout", time="t", text="x" * 100)]
        [answer] = await own.logs.append([a_pack(allocation, lines, after=number, share=900)])
        assert answer.is_appended
    await store_lines(own, allocation, [LogLine(attempt=2, rank=0, stream="stdout", time="t", text="y")])
    state = keys.log_state(allocation)
    await operator.command("DEL", state, key=state)
    await operator.add_raw(keys.logs(allocation), f"{1 << 45}-0", {"a": b"1"})
    await store_lines(own, allocation, [LogLine(attempt=3, rank=0, stream="stdout", time="t", text="z")])


Seen = set[tuple[str, str]]
"""{(command, key)}, a subcommand as `xgroup|create`."""


@asynccontextmanager
async def monitored(sockets: Sequence[Path]) -> AsyncGenerator[Seen]:
    """The commands that the servers run inside the context, commands of scripts too; complete when the context has
    ended."""
    seen: Seen = set()
    readers: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []
    try:
        for path in sockets:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writers.append(writer)
            writer.write(b"MONITOR\r\n")
            assert await reader.readline() == b"+OK\r\n"
            readers.append(asyncio.ensure_future(_note(reader, seen)))
        yield seen
        for path in sockets:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writers.append(writer)
            writer.write(b"ECHO end-of-monitor\r\n")
            await reader.readline()
        await asyncio.wait_for(asyncio.gather(*readers), 10)
    finally:
        for each in readers:
            each.cancel()
        for writer in writers:
            writer.close()


async def _note(reader: asyncio.StreamReader, seen: Seen) -> None:
    while line := await reader.readline():
        words = shlex.split(line.decode("utf-8", "replace").partition("] ")[2].replace("\\x", "x"))
        if words[:2] == ["ECHO", "end-of-monitor"]:
            return
        seen |= {(name, key) for name, found in [_parsed(words)] for key in found}


def _parsed(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """(command, its keys) of one line."""
    name = words[0].lower()
    match name:
        case "xgroup" | "xinfo":
            return f"{name}|{words[1].lower()}", words[2:3]
        case "eval" | "evalsha":
            return name, words[3 : 3 + int(words[2])]
        case "xread" | "xreadgroup":
            rest = words[[word.upper() for word in words].index("STREAMS") + 1 :]
            return name, rest[: len(rest) // 2]
        case _:
            return name, words[1:2]


def family_of(key: str) -> KeyFamily | None:
    """The family of a key; None when it is not a key of ours."""
    for family in sorted(keys.TABLE, key=lambda each: len(each.prefix), reverse=True):
        if key == family.prefix or (family.prefix.endswith(":") and key.startswith(family.prefix)):
            return family
    return None
