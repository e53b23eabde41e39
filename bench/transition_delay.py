"""P10: how long after a transition its event reaches a client of the REST API's stream of all events (SSE).

The reference time of a transition is when a client that watches the Kubernetes API sees the new phase. Both clients run
in one process with one clock. A figure is the delay of the stream, 0 when the stream was first. On the local cluster,
single ranks run `true` from launch to end: one at a time, and then SLIPWAY_BENCH_RATE (10) per second for ten seconds.
"""

import asyncio
import os
import time

import aiohttp
import msgspec

from bench.bench_stack import BenchStack, a_bench_stack, launch_body
from bench.runner import Row, Target, percentile, row

RATE = float(os.environ.get("SLIPWAY_BENCH_RATE", "10"))
RATE_S = 10.0
ALONE, WARM_UP = 10, 3
LINE = 1024 * 1024
TAIL_S = 2.0
PHASES = ("Assigned", "Pulling", "Starting", "Running", "Terminated")


class EventData(msgspec.Struct):
    phase: str


class Event(msgspec.Struct):
    subject: str = ""
    data: EventData = msgspec.field(default_factory=lambda: EventData(phase=""))


class EventTimes:
    """When the stream first reported each (allocation, phase)."""

    def __init__(self, bench_stack: BenchStack) -> None:
        self._bench_stack = bench_stack
        self.at: dict[tuple[str, str], float] = {}
        self.ready = asyncio.Event()

    async def follow(self) -> None:
        """Read until cancelled."""
        url = f"{self._bench_stack.stack.api_url}/api/v1/events"
        decode = msgspec.json.Decoder(Event).decode
        headers = {"Accept": "text/event-stream"}
        async with self._bench_stack.session.get(
            url, headers=headers, timeout=aiohttp.ClientTimeout(total=None)
        ) as answer:
            answer.raise_for_status()
            self.ready.set()
            async for line in answer.content:
                now = time.perf_counter()
                if line.startswith(b"data: {"):
                    event = decode(line[6:])
                    self.at.setdefault((event.subject.rpartition("/")[2], event.data.phase), now)


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    async with a_bench_stack() as bench_stack:
        stream = EventTimes(bench_stack)
        following = asyncio.ensure_future(stream.follow())
        try:
            await stream.ready.wait()
            await _alone(bench_stack, WARM_UP)
            alone = [_later(bench_stack, stream, await _alone(bench_stack, ALONE)) for _ in range(runs)]
            busy = [_later(bench_stack, stream, await _at_a_rate(bench_stack)) for _ in range(runs)]
        finally:
            following.cancel()
    rows: list[Row] = []
    for name, what, found in (("idle", "one launch at a time", alone), ("rate", f"{RATE:g} launches/s", busy)):
        count = sum(len(run) for run in found)
        for percent, target in ((50, Target()), (99, Target(must=100, moonshot=20))):
            samples = [percentile(run, percent) for run in found]
            work = f"SSE event after the transition, p{percent}, {what}"
            rows.append(
                row(f"P10-sse-{name}-p{percent}", work, samples, "ms", target=target, note=f"{count} transitions")
            )
    return rows


async def _alone(bench_stack: BenchStack, count: int) -> list[str]:
    """Make launches one at a time; return their ids."""
    ids: list[str] = []
    for _ in range(count):
        id_, _, _ = await bench_stack.post(launch_body(1))
        marks = bench_stack.watching.of(id_)
        await marks.until(lambda marks=marks: "Terminated" in marks.at and len(marks.gone) >= 1, "its end")
        ids.append(id_)
    await asyncio.sleep(TAIL_S)
    return ids


async def _at_a_rate(bench_stack: BenchStack) -> list[str]:
    """Make launches at a fixed rate; return their ids after all have ended."""
    started_s, ids = time.perf_counter(), list[str]()

    async def one() -> None:
        ids.append((await bench_stack.post(launch_body(1)))[0])

    async with asyncio.TaskGroup() as group:
        for number in range(int(RATE * RATE_S)):
            await asyncio.sleep(max(0.0, started_s + number / RATE - time.perf_counter()))
            group.create_task(one())
    for id_ in ids:
        marks = bench_stack.watching.of(id_)
        await marks.until(lambda marks=marks: "Terminated" in marks.at, "its end")
    await asyncio.sleep(TAIL_S)
    return ids


def _later(bench_stack: BenchStack, stream: EventTimes, ids: list[str]) -> list[float]:
    """Return the milliseconds from the watch to the stream's event. Raises RuntimeError when an event is missing."""
    found: list[float] = []
    for id_ in ids:
        seen = bench_stack.watching.of(id_).at
        for phase in PHASES:
            if phase in seen:
                if (id_, phase) not in stream.at:
                    raise RuntimeError(f"no event told of {id_} {phase}")
                found.append(max(0.0, (stream.at[id_, phase] - seen[phase]) * 1_000))
    return found
