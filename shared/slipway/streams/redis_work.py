"""The work queue on Redis: consumer groups over 16 shards.

This module owns delivery, claims, heartbeats, dead letters and trimming. It must not know the effect of a hint.

Invariants: a group is created at id 0 (at `$` it would lose waiting entries). An entry is removed from the stream only
when every group has acknowledged it. A consumer with pending entries is never deleted. A dead letter is written before
its entry is acknowledged: the two keys have two slots, and a crash between the writes leaves a second letter, never
none.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

from slipway.errors import ControlPlaneError, TransientError, UnavailableError
from slipway.streams import codec, keys, rows, scripts
from slipway.streams.client import Command, RedisClient, command
from slipway.streams.pages import id_text
from slipway.streams.ports import Claimed, StreamBacklog, Tally, WorkHint
from slipway.streams.replies import GroupMissingError
from slipway.streams.routes import Reply

_SCAN_ROUNDS_MAX: Final = 100
_LENGTH_EVERY: Final = 500
"""The length of a shard is read after this many hints; its cap is a hundred times that."""
_BATCH: Final = 512


class RedisHints:
    """The `WorkHints` on Redis."""

    def __init__(self, client: RedisClient, tally: Tally) -> None:
        self._client, self._tally = client, tally
        self._full: set[int] = set()
        self._sent: Counter[int] = Counter()
        """{shard: hints sent since its length was read}."""

    async def send(self, hints: Sequence[WorkHint]) -> None:
        for start in range(0, len(hints), _BATCH):
            await self._send(hints[start : start + _BATCH])

    async def _send(self, hints: Sequence[WorkHint]) -> None:
        commands: list[Command] = []
        shards = [keys.shard_of(hint.allocation) for hint in hints]
        for shard, hint in zip(shards, hints, strict=True):
            if shard in self._full:
                self._tally.count("hints_dropped")
            else:
                commands.append(command("XADD", keys.work(shard), "*", *rows.flat(codec.encode_hint(hint))))
        sent = len(commands)
        self._sent.update(shards)
        touched = [shard for shard in sorted(set(shards)) if shard in self._full or self._sent[shard] >= _LENGTH_EVERY]
        commands += [command("XLEN", keys.work(shard)) for shard in touched]
        replies = await self._client.pipeline(commands)
        if self._client.is_cluster and sent:
            await self._client.run(
                command("XADD", keys.BELL.prefix, "MAXLEN", "~", keys.BELL.length_max, "*", "n", sent)
            )
        for shard, length in zip(touched, rows.checked(replies)[len(replies) - len(touched) :], strict=True):
            self._sent[shard] = 0
            (self._full.add if length >= keys.WORK_BACKLOG_MAX else self._full.discard)(shard)


class RedisWorkQueue:
    """The `WorkStream` on Redis. Both claims return at most `limit` entries, or one per shard if that is more."""

    def __init__(self, client: RedisClient, consumer: str) -> None:
        self._client, self._consumer = client, consumer
        self._turn = itertools.count()
        self._heard: str | None = None
        """The id of the last bell entry that was read, on a Redis Cluster."""

    async def claim(self, *, limit: int, block_s: float) -> list[Claimed]:
        for attempt in itertools.count():
            try:
                return await self._claim(limit, block_s)
            except GroupMissingError as exc:
                if attempt:
                    raise UnavailableError("the consumer group is deleted while it is created") from exc
                await self._create_groups()
        return []

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[Claimed]:
        found: list[tuple[int, rows.Entry]] = []
        start = next(self._turn)
        cursors = {(start + offset) % keys.SHARDS: "0-0" for offset in range(keys.SHARDS)}
        for _ in range(_SCAN_ROUNDS_MAX):
            if not cursors or len(found) >= limit:
                break
            found += await self._scan(cursors, min_idle_s, max(1, (limit - len(found)) // len(cursors)))
        return await self._with_deliveries(found)

    async def ack(self, claimed: Sequence[Claimed]) -> None:
        rows.checked(await self._client.pipeline([_ack(shard, ids) for shard, ids in _by_shard(claimed).items()]))

    async def heartbeat(self, claimed: Sequence[Claimed]) -> None:
        await self._touch({shard: [(each, "") for each in ids] for shard, ids in _by_shard(claimed).items()})

    async def release(self, claimed: Sequence[Claimed]) -> None:
        counts: dict[int, list[tuple[str, str]]] = {}
        for each in claimed:
            counts.setdefault(each.shard, []).append((each.entry_id, str(max(0, each.deliveries - 1))))
        await self._touch(counts)

    async def dead_letter(self, claimed: Claimed, *, cause: str) -> None:
        key, entry_id = keys.work(claimed.shard), claimed.entry_id
        original = rows.entries(await self._client.run(command("XRANGE", key, entry_id, entry_id)))
        fields = original[0][1] if original else {}
        letter = rows.flat(codec.encode_dead(key, entry_id, claimed.deliveries, cause, fields))
        await self._client.run(command("XADD", keys.DEAD.prefix, "MAXLEN", "~", keys.DEAD.length_max, "*", *letter))
        await self._client.run(_ack(claimed.shard, [entry_id]))

    async def trim(self) -> int:
        calls = [scripts.TRIM.call(key) for key in keys.WORK_KEYS]
        return sum(rows.checked(await scripts.run_all(self._client, scripts.TRIM, calls)))

    async def forget_consumers(self, *, idle_s: float = 3_600.0) -> int:
        calls = [scripts.FORGET.call(key, keys.WORK_GROUP, int(idle_s * 1_000)) for key in keys.WORK_KEYS]
        replies = await scripts.run_all(self._client, scripts.FORGET, calls)
        return sum(rows.checked([0 if isinstance(reply, GroupMissingError) else reply for reply in replies]))

    async def backlog(self) -> int:
        return sum(await self._count(keys.WORK_BACKLOG_MAX))

    async def standing(self) -> StreamBacklog:
        return await self._count(keys.STANDING_MAX)

    async def _count(self, most: int) -> StreamBacklog:
        """Count the entries, because the server's lag stays wrong after a trim of an entry that no consumer
        received.
        """
        replies = await self._client.pipeline([Command(key, ("XINFO", "GROUPS", key)) for key in keys.WORK_KEYS])
        found = [(key, *_standing(reply)) for key, reply in zip(keys.WORK_KEYS, replies, strict=True)]
        waiting = [command("XRANGE", key, f"({after}", "+", "COUNT", most) for key, _, after in found if after]
        pages = rows.checked(await self._client.pipeline(waiting))
        return StreamBacklog(waiting=sum(map(len, pages)), in_work=sum(pending for _, pending, _ in found))

    async def _claim(self, limit: int, block_s: float) -> list[Claimed]:
        count = max(1, limit // keys.SHARDS)
        if block_s <= 0:
            return await self._read_each(count)
        if self._client.is_cluster:
            return await self._read_at_bell(count, block_s)
        head = ("XREADGROUP", "GROUP", keys.WORK_GROUP, self._consumer, "COUNT", count)
        block = ("BLOCK", max(1, int(block_s * 1_000)), "STREAMS", *keys.WORK_KEYS, *(">" for _ in keys.WORK_KEYS))
        reply = await self._client.block(Command(keys.WORK_KEYS[0], (*head, *block)), block_s=block_s)
        return _delivered(reply)

    async def _read_each(self, count: int) -> list[Claimed]:
        """Read every shard once without blocking, in one pipeline (on a Redis Cluster the shards are on different
        nodes).
        """
        head = ("XREADGROUP", "GROUP", keys.WORK_GROUP, self._consumer, "COUNT", count, "STREAMS")
        replies = await self._client.pipeline([Command(key, (*head, key, ">")) for key in keys.WORK_KEYS])
        good = [reply for reply in replies if not isinstance(reply, ControlPlaneError)]
        found = [each for reply in good for each in _delivered(reply)]
        missing = [reply for reply in replies if isinstance(reply, GroupMissingError)]
        if missing and not found:
            raise missing[0]
        if missing:
            await self._create_groups()
        elif not good:
            rows.checked(replies)
        return found  # one unavailable node of a cluster does not block the hints of the others

    async def _read_at_bell(self, count: int, block_s: float) -> list[Claimed]:
        """Read every shard after each new bell entry, and at the end of `block_s`."""
        clock = self._client.clock
        deadline_s = clock.monotonic() + block_s
        if self._heard is None:
            newest = rows.entries(await self._client.run(command("XREVRANGE", keys.BELL.prefix, "+", "-", "COUNT", 1)))
            self._heard = id_text(newest[-1][0]) if newest else "0-0"
        while True:
            # A hint that is sent after this read adds a bell entry after `_heard`.
            found = await self._read_each(count)
            remaining_s = deadline_s - clock.monotonic()
            if found or remaining_s <= 0:
                return found
            args = ("XREAD", "BLOCK", max(1, int(remaining_s * 1_000)), "STREAMS", keys.BELL.prefix, self._heard)
            reply = await self._client.block(Command(keys.BELL.prefix, args), block_s=remaining_s)
            for _, page in rows.by_stream(reply):
                self._heard = id_text(page[-1][0])

    async def _create_groups(self) -> None:
        calls = [Command(key, ("XGROUP", "CREATE", key, keys.WORK_GROUP, "0", "MKSTREAM")) for key in keys.WORK_KEYS]
        for reply in await self._client.pipeline(calls):
            if isinstance(reply, ControlPlaneError) and "BUSYGROUP" not in str(reply):
                raise reply

    async def _scan(self, cursors: dict[int, str], min_idle_s: float, count: int) -> list[tuple[int, rows.Entry]]:
        """Do one XAUTOCLAIM step on each shard, advance the cursors and remove the finished ones."""
        shards = list(cursors)
        tail = (keys.WORK_GROUP, self._consumer, int(min_idle_s * 1_000))
        replies = await self._client.pipeline(
            [command("XAUTOCLAIM", keys.work(shard), *tail, cursors[shard], "COUNT", count) for shard in shards]
        )
        found: list[tuple[int, rows.Entry]] = []
        gone: list[Command] = []
        if all(isinstance(reply, TransientError) for reply in replies):
            rows.checked(replies)
        for shard, reply in zip(shards, replies, strict=True):
            if isinstance(reply, GroupMissingError | TransientError):  # transient: one node of a cluster is away
                del cursors[shard]
                continue
            following, page, *deleted = rows.checked([reply])[0]
            found += [(shard, entry) for entry in rows.entries(page)]
            if deleted and deleted[0]:
                gone.append(_ack(shard, [raw.decode() for raw in deleted[0]]))
            cursors[shard] = following.decode()
            if cursors[shard] == "0-0":
                del cursors[shard]
        await self._client.pipeline(gone)
        return found

    async def _with_deliveries(self, found: Sequence[tuple[int, rows.Entry]]) -> list[Claimed]:
        asked = [(shard, id_text(entry_id), fields) for shard, (entry_id, fields) in found]
        replies = await self._client.pipeline(
            [command("XPENDING", keys.work(shard), keys.WORK_GROUP, each, each, 1) for shard, each, _ in asked]
        )
        claimed: list[Claimed] = []
        for (shard, each, fields), reply in zip(asked, replies, strict=True):
            deliveries = 1 if isinstance(reply, ControlPlaneError) or not reply else int(reply[0][3])
            claimed.append(codec.decode_claim(shard, each, deliveries, fields))
        return claimed

    async def _touch(self, counts: dict[int, list[tuple[str, str]]]) -> None:
        calls = [
            scripts.TOUCH.call(keys.work(shard), keys.WORK_GROUP, self._consumer, *itertools.chain.from_iterable(pairs))
            for shard, pairs in counts.items()
        ]
        rows.checked(await scripts.run_all(self._client, scripts.TOUCH, calls))


def _ack(shard: int, ids: Sequence[str]) -> Command:
    return command("XACK", keys.work(shard), keys.WORK_GROUP, *ids)


def _by_shard(claimed: Sequence[Claimed]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for each in claimed:
        found.setdefault(each.shard, []).append(each.entry_id)
    return found


def _delivered(reply: Reply) -> list[Claimed]:
    return [
        codec.decode_claim(keys.WORK_KEYS.index(key), id_text(entry_id), 1, fields)
        for key, page in rows.by_stream(reply)
        for entry_id, fields in page
    ]


def _standing(groups: Reply | ControlPlaneError) -> tuple[int, str]:
    """Return (entries pending, the id after which nothing was delivered) of the workers' group in an XINFO GROUPS
    reply.

    Without the group, all entries are waiting. Without the stream there are none, and the id is empty.
    """
    if isinstance(groups, TransientError):
        raise groups
    if isinstance(groups, ControlPlaneError):
        return 0, ""
    for group in groups:
        row = dict(zip(group[::2], group[1::2], strict=True))
        if row[b"name"].decode() == keys.WORK_GROUP:
            return row[b"pending"], row[b"last-delivered-id"].decode()
    return 0, "0-0"
