"""The code of docs/integrating.md that consumers of the streams copy: it continues when Redis returns empty."""

import asyncio
import re
from typing import Any

import redis

from slipway.crd.transitions import event_of, id_of, ring_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Event
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import RedisClient, RedisSettings
from slipway.streams.ports import StreamEntry
from slipway.streams.redis_streams import RedisStreams
from tests.support.builders import an_allocation
from tests.support.clock import wait_until
from tests.support.receiver import PAGE
from tests.support.redis import server_process

Fields = dict[bytes, bytes]
SOON_S = 20.0


def documented() -> dict[str, Any]:
    """The definitions of the page for readers of streams."""
    names: dict[str, Any] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        if "redis" in source or "xread" in source or "SHARDS" in source:
            exec(source, names)
    return names


class _StopConsuming(Exception):
    """Ends a consumer, which would run for ever."""


def entries_of(allocation: Allocation) -> list[StreamEntry]:
    """The entries that the relay appends for an allocation."""
    ring = ring_of(allocation)
    return [StreamEntry(event=event_of(allocation, entry), oldest_seq=ring[0].seq) for entry in ring]


async def test_both_consumers_survive_a_flush() -> None:
    """The streams are flushed while the consumers wait, then built again: each consumer continues, and repeated
    events differ only in their trace."""
    page = documented()
    story = an_allocation().assigned().started()
    before = story.it
    used = {"seconds": {"Running": 5.0, "Pending": 0.25}, "slots": 1}
    after = (
        story.recorded(Event.RUNNING, at_s=3)
        .recorded(Event.TERMINATING, at_s=8)
        .recorded(Event.TERMINATED, at_s=9, data=used)
        .it
    )
    handled: list[tuple[str, str]] = []
    raw: dict[bytes, list[Fields]] = {}

    def handle(event_id: str, type_: str, _data: Any) -> None:
        handled.append((event_id, type_))
        if type_.endswith("terminated"):
            raise _StopConsuming

    def note(*words: str) -> None:
        followed.append(" ".join(words))

    def consumed(client: Any) -> None:
        try:
            page["consume"](client)
        except _StopConsuming:
            return

    page["handle"] = handle
    followed: list[str] = []
    page["print"] = note
    async with server_process() as server:
        url = f"unix://{server.socket}"
        streams = RedisStreams(RedisClient(RedisSettings(url=url), SystemClock(), SeededRandom(1)))
        own: Any = redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]

        def keep() -> None:
            for _, fields in own.xrange(f"slipway:alloc:{{{id_of(before)}}}"):
                raw.setdefault(fields[b"id"], []).append(fields)

        await streams.events.append(entries_of(before))
        clients: list[Any] = [redis.Redis.from_url(url, socket_timeout=None) for _ in range(2)]  # pyright: ignore[reportUnknownMemberType]
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(consumed, clients[0]))
            tasks.create_task(asyncio.to_thread(page["follow"], clients[1], str(id_of(before))))
            await wait_until(lambda: len(handled) == len(followed) == 4, "what there is to be told")
            keep()
            own.flushall()
            await streams.events.append(entries_of(after))
        keep()
        await streams.aclose()
        for client in (own, *clients):
            client.close()
    assert [line.split()[1].rpartition(".")[2] for line in followed][-3:] == ["running", "terminating", "terminated"]
    assert len(followed) == 7, "none twice"
    assert len({event_id for event_id, _ in handled}) == 7
    for fields in raw.values():
        told = [{name: value for name, value in each.items() if name != b"traceparent"} for each in fields]
        assert all(each == told[0] for each in told)
