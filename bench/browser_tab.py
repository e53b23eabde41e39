"""A measured browser tab, and the slow network connection in front of it.

Owns how a figure of a browser is measured: paints and bytes with the page's own `performance`, the main thread with
Chromium's tracing, memory with the kernel. Knows nothing of our pages.

A frame is 1/60 s. Its figure is the CPU time in milliseconds of the main thread for the tasks that began in it:
scripts, style, layout and painting together. Above 16.7 ms the next frame is late. It is the CPU time of the thread, so
other work of the machine does not change it. The wall time is reported too.

Source: Chrome DevTools Protocol, domains Tracing, IO, Emulation; Trace Event Format.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import msgspec

from bench.runner import percentile
from tests.browser.chromium import Browser, Json, Page

FRAME_MS = 1_000 / 60
RTT_S = 0.15
DOWN_BYTES_S = 1.6e6 / 8
UP_BYTES_S = 0.75e6 / 8
"""the bandwidth of Lighthouse's slow 4G"""
CHUNK = 4 * 1024
CPU_SLOWDOWN = 4
_CATEGORIES = "toplevel,disabled-by-default-devtools.timeline,devtools.timeline"
_TASKS = ("ThreadControllerImpl::RunTask", "RunTask")
_WATCH = """
addEventListener("DOMContentLoaded", () => {
  const look = () => {
    if (!(READY)) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => (window.benchContent = performance.now())));
  };
  const observer = new MutationObserver(look);
  observer.observe(document, { childList: true, subtree: true });
  look();
});
"""


class Loaded(msgspec.Struct, frozen=True):
    """One load of a page with an empty cache; times are in milliseconds from the start of the navigation."""

    paint_ms: float
    content_ms: float
    bytes_before: int
    """the bytes of the responses that were complete before the content"""
    bytes_all: int
    requests: int


class Frames(msgspec.Struct, frozen=True):
    """The main thread during an action."""

    p95_ms: float
    longest_ms: float
    """the CPU time of the longest task"""
    busy: float
    """the fraction of the time in which the thread was busy"""
    wall_p95_ms: float
    """like `p95_ms` in wall time, which includes waiting for a processor"""


class Tab(Page):
    """A measured tab."""

    def __init__(self, browser: Browser, context: str) -> None:
        self._stream = ""
        super().__init__(browser, context)

    def heard(self, event: Json) -> None:
        """Note the end of a trace; pass all events on to the page."""
        if event["method"] == "Tracing.tracingComplete":
            self._stream = str(event["params"]["stream"])
        super().heard(event)

    def slow_cpu(self, times: float) -> None:
        """Slow the CPU of the tab down by this factor."""
        self.call("Emulation.setCPUThrottlingRate", rate=times)

    def load(self, url: str, ready: str, *, timeout_s: float = 120.0) -> Loaded:
        """Load a page with an empty cache, until the expression `ready` is true."""
        self.call("Network.enable")
        self.call("Network.clearBrowserCache")
        script = self.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH.replace("READY", ready))
        self.goto(url)
        try:
            self.wait_for("window.benchContent > 0", timeout_s=timeout_s)
        finally:
            self.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
        time.sleep(1.0)
        found = self.run(
            "(() => { const all = [...performance.getEntriesByType('navigation'), "
            "...performance.getEntriesByType('resource')].filter((each) => each.responseEnd > 0); "
            "const sum = (items) => items.reduce((total, each) => total + each.transferSize, 0); "
            "return [performance.getEntriesByName('first-contentful-paint')[0].startTime, window.benchContent, "
            "sum(all.filter((each) => each.responseEnd <= window.benchContent)), sum(all), all.length]; })()"
        )
        return Loaded(float(found[0]), float(found[1]), int(found[2]), int(found[3]), int(found[4]))

    def frames(self, act: Callable[[], object]) -> Frames:
        """Return the main thread's frames while `act` runs."""
        self._stream = ""
        self.call(
            "Tracing.start", transferMode="ReturnAsStream", traceConfig={"includedCategories": _CATEGORIES.split(",")}
        )
        began_us = self._clock_us()
        act()
        ended_us = self._clock_us()
        self.call("Tracing.end")
        deadline = time.monotonic() + 60.0
        while not self._stream:
            assert time.monotonic() < deadline, "the trace did not end"
            self.run("0")
            time.sleep(0.05)
        return frames_of(self._read(), began_us, ended_us, self._mark)

    def memory_mb(self) -> float:
        """Return the memory of the tab's process in MB; shared memory is counted proportionally."""
        self.call("HeapProfiler.enable")
        self.call("HeapProfiler.collectGarbage")
        return sum(_pss_mb(pid) for pid in self._renderers())

    def heap_mb(self) -> float:
        """Return the size of the JavaScript heap in MB."""
        return float(self.call("Runtime.getHeapUsage")["usedSize"]) / 1e6

    def _renderers(self) -> list[int]:
        told = self._browser.call("SystemInfo.getProcessInfo")["processInfo"]
        found = [int(each["id"]) for each in told if each["type"] == "renderer"]
        # Chromium keeps a spare renderer that has drawn nothing.
        return [max(found, key=_pss_mb)] if found else []

    def _clock_us(self) -> float:
        """Return the time on the clock of the trace, and mark the tab's process in the trace."""
        self._mark = f"bench-{time.monotonic_ns()}"
        self.run(f"console.timeStamp('{self._mark}')")
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1_000

    def _read(self) -> list[Json]:
        text: list[str] = []
        while True:
            told = self.call("IO.read", handle=self._stream, size=4 * 1024 * 1024)
            text.append(str(told["data"]))
            if told["eof"]:
                break
        self.call("IO.close", handle=self._stream)
        events: list[Json] = json.loads("".join(text))["traceEvents"]
        return events


@contextmanager
def a_tab(browser: Browser, *, width: int = 1280, height: int = 800) -> Generator[Tab]:
    """Open a new tab with its own cookies and cache."""
    context = str(browser.call("Target.createBrowserContext")["browserContextId"])
    try:
        tab = Tab(browser, context)
        tab.look(width=width, height=height)
        yield tab
    finally:
        browser.call("Target.disposeBrowserContext", browserContextId=context)


def frames_of(events: list[Json], began_us: float, ended_us: float, mark: str) -> Frames:
    """Return the frames of the main thread that set the mark; times are in microseconds on the clock of the trace."""
    thread = next(
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "TimeStamp" and mark in json.dumps(each.get("args", {}))
    )
    tasks = [
        each
        for each in events
        if each.get("ph") == "X"
        and (each["pid"], each["tid"]) == thread
        and each["name"] in _TASKS
        and began_us <= each["ts"] < ended_us
    ]
    count = max(1, int((ended_us - began_us) / 1_000 / FRAME_MS))
    busy, wall = [0.0] * count, [0.0] * count
    longest, until_us = 0.0, began_us
    for task in sorted(tasks, key=lambda each: (each["ts"], -each["dur"])):
        if task["ts"] < until_us:
            continue  # a nested task: its time is part of the task before
        until_us = task["ts"] + task["dur"]
        took = task.get("tdur", task["dur"]) / 1_000
        longest = max(longest, took)
        # A task belongs to the frame in which it began, because it makes that frame late.
        index = min(count - 1, int((task["ts"] - began_us) / 1_000 / FRAME_MS))
        busy[index] += took
        wall[index] += task["dur"] / 1_000
    return Frames(percentile(busy, 95), longest, sum(busy) / (count * FRAME_MS), percentile(wall, 95))


def _pss_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1_000
    return 0.0


# --- the slow line ----------------------------------------------------------------------------------------------------


class _Way:
    """One direction of the line, for all its connections: limited bytes per second, delayed by half a round trip."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._free_at = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, connect_s: float) -> None:
        """Copy the data in order, delayed as the connection would delay it."""
        loop = asyncio.get_running_loop()
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1_024)
        first_at = loop.time() + connect_s

        async def deliver() -> None:
            while True:
                at, data = await due.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            while True:
                data = b""
                with suppress(OSError):
                    data = await reader.read(CHUNK)
                begins = max(first_at, loop.time(), self._free_at)
                self._free_at = begins + len(data) / self._bytes_s if data else self._free_at
                await due.put((max(begins, self._free_at) + RTT_S / 2, data))
                if not data:
                    return


@asynccontextmanager
async def slow_line(port: int) -> AsyncGenerator[int]:
    """Provide a port that leads to another port over slow 4G; a new connection first costs a round trip."""
    down, up = _Way(DOWN_BYTES_S), _Way(UP_BYTES_S)
    lines: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ExceptionGroup, OSError), closing(writer):
            there, back = await asyncio.open_connection("127.0.0.1", port)
            with closing(back):
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(up.carry(reader, back, connect_s=RTT_S))
                    ways.create_task(down.carry(there, writer, connect_s=0.0))

    async with asyncio.TaskGroup() as tasks:

        def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = tasks.create_task(carry(reader, writer))
            lines.add(line)
            line.add_done_callback(lines.discard)

        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for line in lines:
                line.cancel()
