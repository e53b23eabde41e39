"""Output: how many of the lines that eight ranks print at a fixed rate are stored, and whether all others are counted.

It runs end to end on its own stack. The ranks are processes whose output a local node serves. A watcher reads the
output through the API server and stores it in a Valkey, from which it is read at the end. Each line contains its number
and the time of its printing. `SLIPWAY_BENCH_OUTPUT_S` (30) is the duration of the first rate in seconds.
"""

import asyncio
import os
import time
from contextlib import aclosing
from pathlib import Path

import msgspec

from bench.bench_stack import BenchStack, a_bench_stack
from bench.runner import Row, Target, percentile, row
from slipway.model.ids import AllocationId
from slipway.model.times import parse_time
from slipway.runtime.clock import SystemClock, SystemRandom
from slipway.streams.client import RedisSettings
from slipway.streams.logpacks import STDOUT, GapFinder, LogLine
from slipway.streams.ports import LogLines
from slipway.streams.redis_streams import connect

RANKS = 8
CLOCK = SystemClock()
RATE = 20_000
FOR_S = float(os.environ.get("SLIPWAY_BENCH_OUTPUT_S", "30"))
BEYOND = (60_000, 200_000)
BEYOND_S = 10.0
LOOK_S = 0.5
COMPLETE_S = 180.0
LINES = 20_000
PROGRAM = """
import os, sys, time
rate, for_s = float(sys.argv[1]), float(sys.argv[2])
count, began, number, late = int(rate * for_s), time.monotonic(), 0, 0.0
while number < count:
    due = min(count, int((time.monotonic() - began + 0.02) * rate))
    now = time.time()
    text = "".join(f"step {n} of {count}: loss {1.0 / (n + 1):.6f} at {now:.3f}\\n" for n in range(number, due))
    data = text.encode()
    while data:
        data = data[os.write(1, data):]
    number = due
    time.sleep(max(0.0, began + number / rate - time.monotonic()))
print(f"took {time.monotonic() - began:.3f}", file=sys.stderr)
"""
"""The program of a rank: it prints the lines fifty times a second, as fast as they are read."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    printed: int
    took_s: float
    """seconds that the slowest rank printed"""
    stored: int
    missing: int
    """lines that are counted as missing at their place"""
    wrong: int
    """lines that are stored twice, or at a wrong place"""
    lag_p50_s: float
    lag_p99_s: float
    """age of the newest stored line while ranks print, in seconds"""
    complete_s: float
    """seconds from the last printed line until the logs are completely stored"""
    cpu_s: dict[str, float]

    @property
    def stored_percent(self) -> float:
        return 100.0 * (self.stored - self.wrong) / self.printed

    @property
    def accounted_percent(self) -> float:
        """The percentage of lines that are stored or counted exactly once: 100 when none is lost or duplicated."""
        return 100.0 - 100.0 * (abs(self.printed - self.stored - self.missing) + self.wrong) / self.printed


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    async with a_bench_stack(cpus=16) as bench_stack:
        await _play(bench_stack, RATE // 10, 1.0)
        at_rate = [await _play(bench_stack, RATE, FOR_S) for _ in range(runs)]
        beyond = {rate: [await _play(bench_stack, rate, BEYOND_S) for _ in range(runs)] for rate in BEYOND}
    rows = [*_rows("OUT-20k", RATE, FOR_S, at_rate, stored=Target(must=100, better="higher"))]
    for rate, stories in beyond.items():
        rows += _rows(f"OUT-{rate // 1000}k", rate, BEYOND_S, stories, stored=Target(better="higher"))
    return rows


def _rows(name: str, rate: int, for_s: float, stories: list[RunFigures], *, stored: Target) -> list[Row]:
    what = f"{rate:,} lines/s of {RANKS} ranks for {for_s:g} s"
    first = stories[0]
    whole = Target(must=100, better="higher")
    printed = [each.printed / each.took_s for each in stories]
    missing = ", ".join(f"{each.missing:,}" for each in stories)
    least = min(each.accounted_percent for each in stories)
    note = f"of {first.printed:,} lines a run {missing} counted as missing; the worst run: {least:.4f} %"
    made = [
        row(f"{name}-stored", f"{what}: stored", [each.stored_percent for each in stories], "%", target=stored),
        row(
            f"{name}-accounted",
            f"{what}: stored, or counted where it is missing",
            [each.accounted_percent for each in stories],
            "%",
            target=whole,
            note=note,
        ),
        row(f"{name}-printed", f"{what}: what the ranks got rid of", printed, "lines/s"),
        row(
            f"{name}-lag-p50", f"{what}: age of the newest stored line, p50", [each.lag_p50_s for each in stories], "s"
        ),
        row(
            f"{name}-lag-p99", f"{what}: age of the newest stored line, p99", [each.lag_p99_s for each in stories], "s"
        ),
        row(f"{name}-complete", f"{what}: from the last line to the whole log", [e.complete_s for e in stories], "s"),
    ]
    for part in first.cpu_s:
        spent = [each.cpu_s[part] / each.printed * 1_000_000 for each in stories]
        made.append(row(f"{name}-cpu-{part}", f"{what}: CPU of {part} for a million lines", spent, "s"))
    return made


async def _play(bench_stack: BenchStack, rate: int, for_s: float) -> RunFigures:
    """Make one run: launch, print, wait until the output is stored, count."""
    streams = connect(RedisSettings(url=bench_stack.stack.redis_url), clock=CLOCK, random=SystemRandom())
    async with aclosing(streams):
        before = _cpu_s(bench_stack)
        command = ["python3", "-c", PROGRAM, str(rate / RANKS), str(for_s)]
        role = {"name": "worker", "count": RANKS, "resources": {"cpu": "10m", "memory": "8Mi"}}
        body = {"kind": "training", "image": "local", "command": command, "ranks": [role]}
        id_, _, _ = await bench_stack.post(msgspec.json.encode(body))
        allocation = AllocationId(id_)
        lags = await _watch(bench_stack, streams.logs, allocation)
        whole_at = await _until_whole(streams.logs, allocation)
        spent = {name: after - before[name] for name, after in _cpu_s(bench_stack).items()}
        count = await _count(streams.logs, allocation)
    return RunFigures(
        printed=int(rate / RANKS * for_s) * RANKS,
        took_s=count.took_s,
        stored=count.stored,
        missing=count.missing,
        wrong=count.wrong,
        lag_p50_s=percentile(lags, 50),
        lag_p99_s=percentile(lags, 99),
        complete_s=whole_at - count.last_at,
        cpu_s=spent,
    )


async def _watch(bench_stack: BenchStack, logs: LogLines, allocation: AllocationId) -> list[float]:
    """Return the ages of the newest stored line, sampled until the ranks have ended."""
    lags: list[float] = []
    marks = bench_stack.watching.of(allocation)
    until = time.monotonic() + COMPLETE_S
    while "Terminated" not in marks.at:
        if time.monotonic() > until:
            raise RuntimeError(f"{allocation} has not ended after {COMPLETE_S:.0f} s")
        for newest in await logs.tail(allocation, limit=1):
            _, is_numbered, printed_at = newest.line.text.rpartition(" at ")
            if is_numbered:
                lags.append(CLOCK.now() - float(printed_at))
        await asyncio.sleep(LOOK_S)
    return lags


async def _until_whole(logs: LogLines, allocation: AllocationId) -> float:
    """Return when the log of each rank is completely stored (epoch seconds)."""
    until = time.monotonic() + COMPLETE_S
    while True:
        found = await logs.positions(allocation)
        positions = [position for source, position in found.items() if source.stream == STDOUT]
        if len(positions) == RANKS and all(each.is_ended for each in positions):
            return CLOCK.now()
        if time.monotonic() > until:
            raise RuntimeError(f"the logs of {allocation} are not whole after {COMPLETE_S:.0f} s")
        await asyncio.sleep(LOOK_S / 5)


class Count:
    """The lines of all ranks, as a reader of the whole log sees them."""

    def __init__(self) -> None:
        self.stored = self.missing = self.wrong = 0
        self.took_s = self.last_at = 0.0
        self._gaps = GapFinder({}, is_whole=True)
        self._next: dict[int, int] = {}

    def add(self, line: LogLine) -> None:
        """Add the next line."""
        if line.stream != STDOUT:
            return
        mark = self._gaps.before(line)
        self.missing += mark.missing if mark is not None else 0
        self.last_at = max(self.last_at, parse_time(line.time))
        if line.text.startswith("took "):
            self.took_s = max(self.took_s, float(line.text.split()[1]))
            return
        self.stored += 1
        number = int(line.text.split(None, 2)[1])
        # A rank numbers its lines from 0; the log numbers them from 1.
        self.wrong += number != line.number - 1 or number < self._next.get(line.rank, 0)
        self._next[line.rank] = number + 1


async def _count(logs: LogLines, allocation: AllocationId) -> Count:
    count, cursor = Count(), None
    while found := await logs.read(allocation, after=cursor, limit=LINES):
        for each in found:
            count.add(each.line)
        cursor = found[-1].cursor
    return count


def _cpu_s(bench_stack: BenchStack) -> dict[str, float]:
    """Return the CPU seconds of each part so far."""
    valkey = bench_stack.stack.valkey
    if valkey is None or valkey.pid is None:
        raise RuntimeError("the stand has no Valkey")
    pids = {name: bench_stack.stack.children[name].pid for name in ("watcher", "cluster", "nodes")} | {
        "redis": valkey.pid
    }
    found: dict[str, float] = {}
    for name, pid in pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
