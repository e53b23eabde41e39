"""Spans: compares our recorder with OpenTelemetry's SDK in an equal configuration.

Owns one span as in a launch: with a parent, a link, attributes, an event, and an id that is derived from its subject.
Both sides pass the ended span to a function that counts.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from bench.runner import Row, paired, row
from slipway.runtime.spans import RecordedSpan, RecordingTracer

SPANS = 4_000
PEER = "opentelemetry-sdk"
ATTRIBUTES = {
    "slipway.allocation.id": "train-0123abcd",
    "slipway.workspace": "default",
    "slipway.attempt": 1,
    "slipway.rank": 7,
    "slipway.pool": "default",
    "slipway.node": "node-1",
}
_FLAGS = otel.TraceFlags(otel.TraceFlags.SAMPLED)
PARENT = otel.SpanContext(0xA1, 0xB2, True, _FLAGS)
LINKED = otel.SpanContext(0xC3, 0xD4, True, _FLAGS)
_READ = "print([int(line.split()[1]) / 1024 for line in open('/proc/self/status') if line.startswith('VmRSS')][0])"
_MODULES = {"ours": "slipway.watcher.main", "peer": "slipway.watcher.main, opentelemetry.sdk.trace"}


class _Known(RandomIdGenerator):
    """The SDK's way to use our own ids: it asks this generator for the next id."""

    span_id = 1

    def generate_span_id(self) -> int:
        return self.span_id


class _Counting(SpanProcessor):
    def __init__(self) -> None:
        self.count = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.count += 1


def _ours() -> float:
    """Return the CPU time per span in microseconds."""
    ended: list[RecordedSpan] = []
    tracer = RecordingTracer(ended.append, 1.0)
    context = otel.set_span_in_context(otel.NonRecordingSpan(PARENT))

    def one(number: int) -> None:
        known = otel.SpanContext(PARENT.trace_id, number + 1, False, _FLAGS)
        span = tracer.start_span("launch", context, links=[LINKED], attributes=ATTRIBUTES, known=known)
        span.add_event("released", {"slipway.node": "node-1"})
        span.set_attribute("slipway.outcome", "ok")
        span.end()

    return _timed(one, lambda: len(ended))


def _peer() -> float:
    """Return the same figure for the SDK."""
    ids, counting = _Known(), _Counting()
    provider = TracerProvider(id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(counting)
    tracer = provider.get_tracer("slipway")
    context = otel.set_span_in_context(otel.NonRecordingSpan(PARENT))

    def one(number: int) -> None:
        ids.span_id = number + 1
        span = tracer.start_span("launch", context, links=[otel.Link(LINKED)], attributes=ATTRIBUTES)
        span.add_event("released", {"slipway.node": "node-1"})
        span.set_attribute("slipway.outcome", "ok")
        span.end()

    return _timed(one, lambda: counting.count)


def _timed(one: Callable[[int], None], ended: Callable[[], int]) -> float:
    cpu_s = time.process_time()
    for number in range(SPANS):
        one(number)
    spent_s = time.process_time() - cpu_s
    if ended() != SPANS:
        raise RuntimeError(f"{ended()} of {SPANS} spans ended")
    return spent_s / SPANS * 1e6


async def _memory_mib(side: str) -> float:
    """Return the memory in MiB of a process that has imported the watcher, for `peer` also the SDK."""
    program = f"import {_MODULES[side]}; {_READ}"
    return float(
        (
            await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, check=True)
        ).stdout
    )


async def measure(runs: int) -> list[Row]:
    """Return the rows of this comparison."""

    async def cost(side: Callable[[], float]) -> float:
        return side()

    costs = await paired(runs, lambda _: cost(_ours), lambda _: cost(_peer))
    memory = await paired(runs, lambda _: _memory_mib("ours"), lambda _: _memory_mib("peer"))
    work: dict[str, Any] = {"peer_name": PEER}
    return [
        row("LIB-spans", "a span with a parent, a link, its own id: cpu", costs[0], "us", peer=costs[1], **work),
        row("LIB-spans-memory", "a watcher, imported", memory[0], "MiB", peer=memory[1], **work),
    ]
