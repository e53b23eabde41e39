"""`Streams` as one simulated process sees them: each call is numbered, and faults strike there.

Owns which calls are effects, and the faults of the entries that the feed delivers (the scheduler's view of the
cluster): an entry stalls, lags, is delivered twice or is lost. Must not know what entries mean.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from slipway.streams.ports import FeedEntry, FeedOp
from tests.support.faults import Effect, FaultInjector, Kind, Process, noted

STREAM_EFFECTS = frozenset(
    {"append", "send", "ring", "ack", "release", "dead_letter", "heartbeat", "touch", "replay", "drop"}
)
STREAM_TAKES = frozenset({"claim", "claim_abandoned", "trim"})
"""Calls that change something only when their answer is not empty. The answer is known afterwards, so there is no
"before"."""

FEED_FAULTS = (Kind.STALL, Kind.LAG, Kind.DUPLICATE, Kind.LOSE)
_LATE_S = {Kind.STALL: 20.0, Kind.LAG: 3.0}


class ProcessPort:
    """Any one port of the streams as one process sees it: the same methods, with faults."""

    def __init__(self, inner: Any, name: str, process: Process, injector: FaultInjector) -> None:
        self._inner = inner
        self._name = name
        self._process = process
        self._trouble = injector
        self._count = 0

    def __getattr__(self, method: str) -> Any:
        inner = getattr(self._inner, method)
        if method == "follow":
            return inner
        # `__getattr__` runs once for each method: from then on the method is an attribute.
        called = self.__dict__[method] = self._call(method, inner)
        return called

    def _call(self, method: str, inner: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        injector, process = self._trouble, self._process

        async def called(*args: Any, **options: Any) -> Any:
            injector.check(process)
            await injector.latency()
            effect = self._effect(method)
            if method in STREAM_EFFECTS:
                injector.number(process, effect)
                if method == "ack":
                    injector.acking(process, list(args[0]))
                await injector.strike(process, effect, "before")
                with noted(effect):
                    answer = await inner(*args, **options)
                await injector.strike(process, effect, "after")
            else:
                await self._asked(method)
                answer = await inner(*args, **options)
                if method in STREAM_TAKES and answer:
                    effect.has_before = False
                    if method != "trim":
                        injector.claimed(answer)
                    injector.number(process, effect)
                    await injector.strike(process, effect, "after")
                elif self._name == "feed" and method == "read":
                    answer = await self._heard(answer)
            await injector.latency()
            return answer

        return called

    async def _asked(self, method: str) -> None:
        effect = self._effect(method)
        effect.role = f"{self._process.role}.reads"
        self._trouble.number_read(self._process, effect)
        await self._trouble.strike(self._process, effect, "before")

    async def _heard(self, page: list[tuple[str, FeedEntry]]) -> list[tuple[str, FeedEntry]]:
        """Return the entries that the feed delivers: each may be late, repeated or lost."""
        injector, process = self._trouble, self._process
        heard: list[tuple[str, FeedEntry]] = []
        for cursor, entry in page:
            effect = self._effect("watch")
            effect.role = f"{process.role}.feed"
            if entry.op is not FeedOp.BEAT:
                self._count += 1
                injector.number_delivery(effect, self._count)
            kind = await injector.strike(process, effect, "before")
            if kind is not None and kind in _LATE_S:
                injector.lasts(_LATE_S[kind])
                await asyncio.sleep(_LATE_S[kind])
            if kind is not Kind.LOSE:
                heard.append((cursor, entry))
            if kind is Kind.DUPLICATE:
                heard.append((cursor, entry))
        return heard

    def _effect(self, method: str) -> Effect:
        return Effect(
            role=self._process.role,
            process=self._process.name,
            number=0,
            verb=method,
            target=self._name,
            is_kube=False,
            is_recurring=self._name == "feed" or method in ("heartbeat", "trim"),
        )


_PORTS = (
    "events",
    "firehose",
    "hints",
    "wake",
    "feed",
    "logs",
    "traces",
    "activity",
    "dead",
    "health",
    "decisions",
    "logouts",
    "gatherings",
    "conditions",
)


class ProcessStreams:
    """`Streams` as one process sees them."""

    def __init__(self, inner: Any, process: Process, injector: FaultInjector) -> None:
        self._inner, self._process, self._trouble = inner, process, injector
        for name in _PORTS:
            setattr(self, name, ProcessPort(getattr(inner, name), name, process, injector))

    def webhooks(self, consumer: str) -> Any:
        return ProcessPort(self._inner.webhooks(consumer), "webhooks", self._process, self._trouble)

    def work_queue(self, consumer: str) -> Any:
        return ProcessPort(self._inner.work_queue(consumer), "queue", self._process, self._trouble)

    def event_group(self, group: str, consumer: str) -> Any:
        return ProcessPort(self._inner.event_group(group, consumer), "events", self._process, self._trouble)

    async def aclose(self) -> None:
        return None
