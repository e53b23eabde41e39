"""Makes the streams for a composition root: those of a URL, or streams that are always absent. Also buffers spans.

This module owns the choice between a server and none, and the adapters from telemetry to the streams and back. Without
a server (R0 mode) every call raises `UnavailableError`, as if the server were away.
"""

from typing import Any

from slipway.model.ids import AllocationId
from slipway.runtime import service, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.service import ServiceContext
from slipway.runtime.tasks import TaskGroup
from slipway.streams import redis_streams
from slipway.streams.client import RedisSettings
from slipway.streams.macs import Macs
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import SpanRecord, Streams
from slipway.streams.producer import WRITE_BEHIND, BestEffortWriter

_BACKOFF_MAX_S = 5.0
_DELIVERIES = {
    "hints_done": ("work", "ok"),
    "hints_retried": ("work", "retry"),
    "hints_failed": ("work", "failed"),
    "hints_dropped": ("work", "dropped"),
    "hints_dead": ("work", "dead"),
    "activity_dropped": ("activity", "dropped"),
    "entries_undecodable": ("any", "undecodable"),
}
"""{name of a count of the streams: (stream, outcome)}."""


def open_streams(
    url: str,
    *,
    clock: Clock,
    random: Random,
    name: str,
    feed_macs: Macs | None = None,
    gather_macs: Macs | None = None,
) -> Streams:
    """Return the streams at `url`; an empty URL means that there is no Redis. Does no IO.

    With `feed_macs` and `gather_macs`, the cluster feed and the gatherings are signed, and signatures are required on
    reading.

    Raises:
        InvalidError: not a Redis URL.
    """
    if url:
        return redis_streams.connect(
            RedisSettings(url=url, name=name),
            clock=clock,
            random=random,
            tally=MetricTally(),
            feed_macs=feed_macs,
            gather_macs=gather_macs,
        )
    nobody = MemoryServer(clock)
    nobody.absent = True
    return MemoryStreams(nobody)


async def write_behind(behind: BestEffortWriter, context: ServiceContext[Any]) -> None:
    """Run the buffered writers until the process stops, then write the rest of the buffers."""
    async with TaskGroup() as tasks:
        writing = tasks.create_task(
            service.loop(
                WRITE_BEHIND,
                behind.step,
                clock=context.clock,
                random=context.random,
                health=context.health,
                stop=context.stop,
                min_interval_s=0.0,
                max_backoff_s=_BACKOFF_MAX_S,
            )
        )
        await context.stop.wait()
        writing.cancel()
    await behind.flush()


class MetricTally:
    """Reports the counts of the streams as metrics."""

    def count(self, name: str, amount: int = 1) -> None:
        """Add to the counter of that name."""
        if name == "spans_dropped":
            telemetry.SPANS_DROPPED.labels(to="waterfall").inc(amount)
            return
        if name == "hints_claimed":
            telemetry.CLAIMS.labels(stream="work").inc(amount)
            return
        if name == "hints_dead":
            telemetry.DEAD_LETTERS.labels(stream="work").inc(amount)
        stream, outcome = _DELIVERIES[name]
        telemetry.DELIVERIES.labels(stream=stream, outcome=outcome).inc(amount)

    def took(self, spent_s: float, traceparent: str) -> None:
        """Record that a hint was handled in `spent_s` seconds."""
        telemetry.DELIVERY_DURATION.labels(stream="work").observe(spent_s, of=traceparent)


class TraceWriter:
    """A `telemetry.SpanSink` that buffers ended spans of allocations and writes them to `slipway:trace:{id}`."""

    def __init__(self, behind: BestEffortWriter) -> None:
        self._behind = behind

    def offer(self, allocation_id: str, span: dict[str, Any]) -> None:
        """Buffer one span; drop it when the buffer is full."""
        attributes = {key: str(value) for key, value in span.get("attributes", {}).items()}
        for event in span.get("events", ()):
            attributes[f"event.{event.get('name', '')}"] = str(event.get("attributes", ""))
        record = SpanRecord(
            trace_id=span["traceId"],
            span_id=span["spanId"],
            parent_id=span.get("parentSpanId") or "",
            name=span["name"],
            service=span["service"],
            start_ns=span["startNs"],
            end_ns=span["endNs"],
            ok=span.get("status") == "ok",
            attributes=attributes,
            kind=span.get("kind") or "internal",
            links=tuple(span.get("links", ())),
        )
        self._behind.offer_span(AllocationId(allocation_id), record)
