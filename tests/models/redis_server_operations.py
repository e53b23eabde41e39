"""Operations on logs, traces, activity, dead letters, gatherings, decisions and webhooks in a differential run, and the
effects of an operator and of time on the server.

Owns the same as `redis_operations.py` for these.
"""

import random
from typing import Any

import msgspec

from slipway.streams import keys
from slipway.streams.allgather import GatherKey, Seat
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits
from slipway.streams.logpacks import LogKey, LogPack, LogPosition, StoredLine
from slipway.streams.ports import SpanRecord
from tests.models.redis_player import CONSUMERS, HOOKS, NAMES, Operation, Player, alloc, some
from tests.support.redis import an_id

IDLE_S = (0, 0, 5, 25)
POOLS = ("default", "gpu")
ELSEWHERE: tuple[dict[str, Any], ...] = ({"number": 7}, {"second": "r"}, {"seen": 3})


async def log_append(player: Player, chance: random.Random) -> Any:
    """Append packs of several logs, after their last line or another one; small shares, so that some are cut."""
    packs: list[LogPack] = []
    for name in chance.sample(NAMES, 2):
        source = LogKey(attempt=chance.choice((1, 2, 3)), rank=chance.choice((0, 1)))
        position = await player.streams.logs.position(an_id(name), source)
        elsewhere = [LogPosition(), *(msgspec.structs.replace(position, **wrong) for wrong in ELSEWHERE)]
        after = chance.choice((*elsewhere, *[position] * 6))
        count, left_out = chance.choice((0, 1, 5, 30)), chance.choice((0, 0, 3))
        is_event = chance.random() < 0.2
        pack = LogPack(
            allocation=an_id(name),
            source=source,
            after=after,
            first=after.number + 1 + left_out,
            lines=[chance.choice((b"t said", b"t \x00\xff\xe2", b"t")) for _ in range(count)],
            position=LogPosition(second="s", seen=count, time="t", is_ended=chance.random() < 0.1),
            share_bytes=chance.choice((400, 4_000)),
            key=f"event-{chance.choice((1, 2))}" if is_event else "",
            count=chance.choice((1, 2)) if is_event else 0,
        )
        packs.append(pack)
    answers = await player.streams.logs.append(packs)
    return answers, [await player.streams.logs.positions(pack.allocation) for pack in packs]


async def log_read(player: Player, chance: random.Random) -> Any:
    """Read from the start or a line, the newest lines, or in the way that waits for more."""
    logs, allocation = player.streams.logs, alloc(chance)
    scope = keys.logs(allocation)
    after, limit = player.cursor(scope, chance), chance.choice((1, 7, 500))
    found = await logs.read(allocation, after=after, limit=limit)
    if chance.random() < 0.3:
        found = await logs.tail(allocation, limit=limit)
    elif chance.random() < 0.3:
        following = logs.follow(allocation, after=after)
        try:
            met: list[StoredLine] = []
            while len(met) < len(found):
                met += await anext(following)
            found = met[: len(found)]
        finally:
            await following.aclose()
    return [(player.label(scope, each.cursor), each.line) for each in found]


async def trace_append(player: Player, chance: random.Random) -> Any:
    """Append spans of several allocations; many are packed."""
    spans = {
        an_id(name): [
            SpanRecord(trace_id="t", span_id=str(number), name="n", service="api", start_ns=number, end_ns=number + 1)
            for number in range(chance.choice((0, 1, 5, 70)))
        ]
        for name in chance.sample(NAMES, 2)
    }
    return await player.streams.traces.append(spans)


async def trace_read(player: Player, chance: random.Random) -> Any:
    """Read the newest spans."""
    return await player.streams.traces.read(alloc(chance), limit=chance.choice((1, 10, 500)))


async def touch(player: Player, chance: random.Random) -> Any:
    """Report activity; times never go back."""
    times = {
        an_id(name): {source: 1_700_000_000 + chance.randrange(9_999) / 1_000 for source in chance.sample("pqr", 2)}
        for name in chance.sample(NAMES, 2)
    }
    return await player.streams.activity.touch(times)


async def activity(player: Player, chance: random.Random) -> Any:
    """Read the activity of all, also of an unknown allocation."""
    return await player.streams.activity.read([an_id(name) for name in (*NAMES, "nobody")])


async def letters(player: Player, chance: random.Random) -> Any:
    """Read a page of dead letters, read one, replay it, or drop it."""
    dead, scope = player.streams.dead, keys.DEAD.prefix
    one = player.cursor(scope, chance)
    match chance.randrange(5):
        case 0 if one is not None:
            found = await dead.find(one)
            return found and (
                player.label(scope, found.id),
                _original(player, found.source, found.entry_id),
                found.fields,
            )
        case 1 if one is not None:
            return await dead.replay(one)
        case 2 if one is not None:
            return await dead.drop(one)
        case 3:
            return await dead.find(chance.choice(("x", "1-1", "00-01")))
        case _:
            page = await dead.page(after=one, limit=chance.choice((1, 10, 100)))
            return [
                (
                    player.label(scope, each.id),
                    _original(player, each.source, each.entry_id),
                    each.cause,
                    each.deliveries,
                    each.fields,
                )
                for each in page
            ]


def _original(player: Player, source: str, entry_id: str) -> Any:
    return source, player.label(source, entry_id) if source in keys.WORK_KEYS else None


async def gather(player: Player, chance: random.Random) -> Any:
    """Peers join, look, leave, join again, state another number, or bring too much data."""
    group = GatherKey(allocation=an_id(), attempt=1, group=chance.choice(NAMES[:3]))
    name, owner, gatherings = chance.choice("pqrs"), chance.choice(("api-1", "api-2")), player.streams.gatherings
    data = b"x" * chance.choice((1, 1, 1, 1, 10, 400_000))
    seat = Seat(request_id=name, token=chance.choice("12"), rank=chance.randrange(-1, 3), data=data)
    match chance.randrange(9):
        case 0:
            return await gatherings.leave(group, seat)
        case 1 | 2:
            return await gatherings.look(group, owner=owner)
        case 3:
            return await gatherings.tokens(group, chance.sample("pqrs", chance.randrange(4)))
        case 4:
            return await gatherings.seats(group)
        case _:
            return await gatherings.join(group, seat, peers=chance.choice((1, 3, 3, 3, 4)), owner=owner)


async def decide(player: Player, chance: random.Random) -> Any:
    """Append a recorded tick: a base, or one that builds on a base that may be gone."""
    pool = chance.choice(POOLS)
    scope = keys.decisions(pool)
    base = None if chance.random() < 0.3 else player.cursor(scope, chance)
    size = chance.choice((1, 10, 100, 600))
    entry = DecisionEntry(
        chain=chance.choice("cd"), number=0 if base is None else chance.randrange(1, 9), tick=7, data=b"d" * size
    )
    caps = DecisionLogLimits(entries=chance.choice((3, 8)), size=1_000)
    found = await player.streams.decisions.append(pool, entry, base=base, caps=caps)
    return found and player.label(scope, found)


async def decisions(player: Player, chance: random.Random) -> Any:
    """Read decisions from the start or an entry."""
    scope = keys.decisions(pool := chance.choice(POOLS))
    after = player.cursor(scope, chance)
    found = await player.streams.decisions.read(pool, after=after, limit=chance.choice((1, 100)))
    return [(player.label(scope, each.cursor), each.entry) for each in found]


async def hook_take(player: Player, chance: random.Random) -> Any:
    """Take entries of the firehose: new ones, one's own again, or abandoned ones. The consumer has announced itself
    before."""
    consumer, limit = chance.choice(CONSUMERS), chance.choice((1, 5, 200))
    hooks = player.hooks[consumer]
    left = await hooks.take_abandoned(min_idle_s=chance.choice(IDLE_S), limit=limit)
    found = left
    match chance.randrange(3):
        case 0:
            found = await hooks.take(limit=limit, block_s=0.001)
        case 1:
            found = await hooks.take_again()
        case _:
            pass
    player.taken[consumer] += [*left, *found]
    return [
        (each.shard, player.label(keys.events(each.shard), each.entry_id), dict(each.fields))
        for each in (*left, *found)
    ]


async def hook_first(player: Player, chance: random.Random) -> Any:
    """Ask for the first router among all that ever existed."""
    consumer = chance.choice(CONSUMERS)
    await player.hooks[consumer].take_abandoned(min_idle_s=1_000_000, limit=1)
    return await player.hooks[consumer].is_first(silence_s=10_000_000)


async def hook_route(player: Player, chance: random.Random) -> Any:
    """Route to some webhooks, or none."""
    consumer = chance.choice(CONSUMERS)
    entries = some(chance, player.taken[consumer], 10)
    routes = [(each, chance.sample(HOOKS, chance.randrange(3))) for each in entries]
    return await player.hooks[consumer].route(routes)


async def hook_claim(player: Player, chance: random.Random) -> Any:
    """Claim deliveries: new ones, one's own again, or abandoned ones."""
    consumer, names, limit = chance.choice(CONSUMERS), chance.sample(HOOKS, 2), chance.choice((1, 5, 200))
    hooks = player.hooks[consumer]
    match chance.randrange(3):
        case 0:
            found = await hooks.held(names)
        case 1:
            found = await hooks.claim_abandoned(names, min_idle_s=chance.choice(IDLE_S), limit=limit)
        case _:
            found = await hooks.claim(names, limit=limit)
    player.deliveries[consumer] += found
    return [
        (each.webhook, player.label(keys.webhook(each.webhook), each.entry_id), dict(each.fields)) for each in found
    ]


async def hook_settle(player: Player, chance: random.Random) -> Any:
    """Finish, bury or keep deliveries; count the queues, and rarely delete one."""
    consumer = chance.choice(CONSUMERS)
    hooks, held = player.hooks[consumer], player.deliveries[consumer]
    match chance.randrange(8):
        case 0:
            await hooks.heartbeat(held[-20:])
        case 1:
            for each in some(chance, held, 2):
                await hooks.dead_letter(each, cause="x", tries=3)
        case 2 if chance.random() < 0.1:
            await hooks.forget(chance.choice(HOOKS))
        case _:
            await hooks.done(some(chance, held, 10))
    return await hooks.backlog(HOOKS)


async def ping(player: Player, chance: random.Random) -> Any:
    """Check whether the server answers."""
    return await player.streams.health.ping() >= 0


async def flush(player: Player, chance: random.Random) -> Any:
    """FLUSHALL, or an empty server in place of the old one."""
    await player.compared_server.flush()


async def lose_key(player: Player, chance: random.Random) -> Any:
    """Evict a key, or delete it by hand."""
    if there := await player.compared_server.keys():
        await player.compared_server.delete(chance.choice(there))


async def lose_group(player: Player, chance: random.Random) -> Any:
    """XGROUP DESTROY."""
    key, group = chance.choice(
        (
            (keys.work(chance.randrange(keys.SHARDS)), keys.WORK_GROUP),
            (keys.events(chance.randrange(keys.SHARDS)), keys.WEBHOOK_GROUP),
            (keys.webhook(chance.choice(HOOKS)), keys.WEBHOOK_GROUP),
        )
    )
    await player.compared_server.lose_group(key, group)


async def remove(player: Player, chance: random.Random) -> Any:
    """Trim entries or delete them by hand under their readers: at either end, or in the middle."""
    key = chance.choice(await player.compared_server.keys() or [keys.work(0)])
    if chance.random() < 0.3:
        await player.compared_server.trim(key, chance.choice((0, 1, 5)))
    elif ids := await player.compared_server.ids(key):
        await player.compared_server.remove(key, chance.choice((ids[0], ids[-1], chance.choice(ids))))


async def poison(player: Player, chance: random.Random) -> Any:
    """Write entries that cannot be decoded."""
    key = chance.choice(
        (keys.work(chance.randrange(16)), keys.events(3), keys.logs(an_id("a")), keys.trace(an_id("a")))
    )
    await player.compared_server.add(key, {"v": b"\xff", "key": b"?"})


OPERATIONS: dict[str, tuple[float, Operation]] = {
    "log_append": (2, log_append),
    "log_read": (2, log_read),
    "trace_append": (2, trace_append),
    "trace_read": (1, trace_read),
    "touch": (1.5, touch),
    "activity": (1, activity),
    "letters": (3, letters),
    "gather": (8, gather),
    "decide": (4, decide),
    "decisions": (1.5, decisions),
    "hook_take": (4, hook_take),
    "hook_first": (0.5, hook_first),
    "hook_route": (4, hook_route),
    "hook_claim": (4, hook_claim),
    "hook_settle": (4, hook_settle),
    "ping": (0.3, ping),
    "flush": (0.5, flush),
    "lose_key": (1, lose_key),
    "lose_group": (1, lose_group),
    "remove": (1.5, remove),
    "poison": (0.7, poison),
}
"""{name: (relative frequency, operation)}"""
