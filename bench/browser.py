"""PAGE: the web pages in a real Chromium: first content, bytes, frames, memory, and the load of 500 viewers.

A small installation is the local cluster with all its services. A large one is an api over a cluster in memory
(`browser_world.py`): 5,000 nodes with 8 GPUs, 10,000 queued, 2,500 running and 10,000 ended allocations, and a log of
200,000 lines (SLIPWAY_BENCH_NODES, _QUEUED, _RUNNING, _ENDED, _LINES). The browser is headless, without a graphics
card, in a window of 1,280 by 800 pixels; it shares the machine with the api. `browser_tab.py` defines how a frame is
measured.

    python -m bench --only browser              all parts; takes minutes
    SLIPWAY_BENCH_PARTS=load,log ...            some of the parts of SMALL and LARGE
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bench.browser_tab import CPU_SLOWDOWN, Frames, Tab, a_tab, slow_line
from bench.runner import Row, Target, percentile, row, table
from tests.browser.chromium import Browser, find, running_browser
from tests.conformance.cluster.binaries import ensure_debian
from tests.support.local_stack import RunningStack, running_stack

NODES = int(os.environ.get("SLIPWAY_BENCH_NODES", "5000"))
RUNNING = int(os.environ.get("SLIPWAY_BENCH_RUNNING", "2500"))
QUEUED = int(os.environ.get("SLIPWAY_BENCH_QUEUED", "10000"))
ENDED = int(os.environ.get("SLIPWAY_BENCH_ENDED", "10000"))
LINES = int(os.environ.get("SLIPWAY_BENCH_LINES", "200000"))
SMALL, LARGE = ("load", "update", "viewers"), ("home", "queue", "cluster", "log", "events")
PARTS = tuple(os.environ.get("SLIPWAY_BENCH_PARTS", ",".join((*SMALL, *LARGE))).split(","))
CALL_S = 180.0
VIEWERS = 500
REST_S = 30.0
"""the interval in seconds at which an open, idle page reads again the data that changes without an event"""
RESTING = (
    "/nodes?fields=name,pool,ready,schedulable,scheduling,gpuType,gpus,gpusUsed",
    "/queue-stats?days=false",
    "/gpu-use",
)
"""the requests that an idle page repeats"""
RATE = 200
WATCH_S = 8.0
MOVES = 6
SHOWN = "!!document.querySelector('main table.allocations')"
KIB = 1024.0


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder, running_browser(_program()) as browser:
        browser.call_s = CALL_S
        if set(SMALL) & set(PARTS):
            stack = await asyncio.to_thread(lambda: _Small(Path(folder)))
            try:
                rows += await stack.measure(browser, runs)
            finally:
                await asyncio.to_thread(stack.close)
        if set(LARGE) & set(PARTS):
            rows += await asyncio.to_thread(_scale, browser, runs)
    return rows


def _program() -> str:
    return find() or ensure_debian("chromium")


# --- a small installation ---------------------------------------------------------------------------------------------


class _Small:
    """The local cluster with a few allocations: single ranks that have ended."""

    def __init__(self, folder: Path) -> None:
        self._running = running_stack(folder / "stack", cpus=32, memory="64Gi")
        self.stack: RunningStack = self._running.__enter__()
        ids = [self.stack.launch(_body(["true"])) for _ in range(20)]
        for id_ in ids:
            self.stack.wait_for(id_, "Terminated")

    def close(self) -> None:
        """Stop the cluster."""
        self._running.__exit__(None, None, None)

    async def measure(self, browser: Browser, runs: int) -> list[Row]:
        """Return the rows of a small installation."""
        rows: list[Row] = []
        if "load" in PARTS:
            rows += await self._load(browser, runs)
        if "update" in PARTS:
            rows += await asyncio.to_thread(self._update, browser, runs)
        if "viewers" in PARTS:
            rows += await self._viewers(runs)
        return rows

    async def _load(self, browser: Browser, runs: int) -> list[Row]:
        fast = await asyncio.to_thread(self._loads, browser, runs)
        slow_cpu = await asyncio.to_thread(self._loads, browser, runs, cpu=CPU_SLOWDOWN)
        async with slow_line(int(self.stack.url.rpartition(":")[2])) as port:
            slow = await asyncio.to_thread(self._loads, browser, runs, port=port)
            slow_both = await asyncio.to_thread(self._loads, browser, runs, port=port, cpu=CPU_SLOWDOWN)
        rows: list[Row] = []
        profiles = (
            ("loopback", "loopback", fast, 1_000.0),
            ("cpu", f"loopback, CPU {CPU_SLOWDOWN}x slower", slow_cpu, None),
            ("4g", "4G (150 ms round trip, 1.6 Mbit/s)", slow, 2_500.0),
            ("4g-cpu", f"4G, CPU {CPU_SLOWDOWN}x slower", slow_both, None),
        )
        for name, what, found, must in profiles:
            target = Target(must=must)
            rows += [
                row(f"PAGE-paint-{name}", f"home page, empty cache, first contentful paint, {what}",
                    [each.paint_ms for each in found], "ms", target=target),
                row(f"PAGE-content-{name}", f"home page, empty cache, until the workloads are shown, {what}",
                    [each.content_ms for each in found], "ms", target=target),
            ]  # fmt: skip
        return [
            *rows,
            row("PAGE-bytes-first", "bytes on the wire before the workloads are shown, heads included",
                [each.bytes_before / KIB for each in slow], "KiB", target=Target(must=120)),
            row("PAGE-bytes-all", "bytes on the wire of the home page in all, heads included",
                [each.bytes_all / KIB for each in fast], "KiB", target=Target(must=350),
                note=f"{fast[0].requests} requests"),
        ]  # fmt: skip

    def _loads(self, browser: Browser, runs: int, *, port: int = 0, cpu: float = 1) -> list[Any]:
        with a_tab(browser) as tab:
            url = self._log_in(tab, port)
            tab.load(url, SHOWN)
            tab.slow_cpu(cpu)
            return [tab.load(url, SHOWN) for _ in range(runs)]

    def _log_in(self, tab: Tab, port: int = 0) -> str:
        """Log in; return the home page's address, through `port` if it is given. Cookies do not depend on the port."""
        tab.goto(self.stack.link("/?of=everyone"))
        tab.wait_for(SHOWN)
        url = str(tab.run("location.href"))
        host, _, rest = url.rpartition(":")
        own, _, path = rest.partition("/")
        return f"{host}:{port or own}/{path}"

    def _update(self, browser: Browser, runs: int) -> list[Row]:
        """Launch single ranks, one after the other, and measure when the home page shows their transitions."""
        with a_tab(browser) as tab:
            tab.goto(self._log_in(tab))
            tab.wait_for("!!document.querySelector('.connection .good')")
            tab.run(_SEEN)
            found: list[list[float]] = []
            for _ in range(runs):
                tab.run("window.benchLater = []")
                for _ in range(MOVES):
                    self.stack.wait_for(self.stack.launch(_body(["sleep", "1"])), "Terminated")
                    time.sleep(1.0)
                found.append([float(each) for each in tab.run("window.benchLater")])
        count = sum(map(len, found))
        return [
            row(f"PAGE-update-p{percent}", f"home page: from an event at the browser until it is shown, p{percent}",
                [percentile(each, percent) for each in found], "ms", target=Target(must=300 if percent == 95 else None),
                note=f"{count} events of launches, one at a time")
            for percent in (50, 95)
        ]  # fmt: skip

    async def _viewers(self, runs: int) -> list[Row]:
        """Measure the CPU of the api while 500 pages are open and nothing changes."""
        pid = self.stack.pid("api")
        await asyncio.sleep(5.0)
        empty = await _cpu(pid, 10.0)
        headers = self.stack.headers
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        connector = aiohttp.TCPConnector(limit=0)
        root = f"{self.stack.url}/api/v1"
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
            tasks = [
                asyncio.ensure_future(_viewer(session, root, number / VIEWERS * REST_S)) for number in range(VIEWERS)
            ]
            try:
                await asyncio.sleep(REST_S + 5.0)
                for task in tasks:
                    if task.done():
                        task.result()
                samples = [100 * await _cpu(pid, REST_S) for _ in range(runs)]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        note = f"{100 * empty:.1f} % without viewers"
        return [
            row("PAGE-viewers", f"api: CPU beside {VIEWERS} open home pages at rest", samples, "% of a core",
                target=Target(must=20), note=note)
        ]  # fmt: skip


async def _viewer(session: aiohttp.ClientSession, root: str, after_s: float) -> None:
    """Do what an open home page does at rest: keep its stream open, and repeat its requests."""
    await asyncio.sleep(after_s / 10)
    async with session.get(f"{root}/events", headers={"Accept": "text/event-stream"}) as stream:
        stream.raise_for_status()

        async def ask() -> None:
            await asyncio.sleep(after_s)
            while True:
                for path in RESTING:
                    async with session.get(f"{root}{path}") as answer:
                        answer.raise_for_status()
                        await answer.read()
                await asyncio.sleep(REST_S)

        asking = asyncio.ensure_future(ask())
        try:
            async for _ in stream.content:
                if asking.done():
                    asking.result()
        finally:
            asking.cancel()


async def _cpu(pid: int, seconds: float) -> float:
    """Return the fraction of a core that a process uses."""
    before, began_s = _ticks(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (_ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - began_s)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _body(command: list[str]) -> dict[str, Any]:
    asked = {"cpu": "10m", "memory": "8Mi"}
    return {
        "kind": "command",
        "image": "local",
        "command": command,
        "ranks": [{"name": "worker", "count": 1, "resources": asked}],
    }


_SEEN = """
(() => {
  // A second reader of the same stream records when an event arrives. `look` finds when its row in the list shows it.
  const told = new Map();
  window.benchLater = [];
  const ends = ["Succeeded", "Failed"];
  new EventSource("/api/v1/events").onmessage = (message) => {
    const event = JSON.parse(message.data);
    told.set(event.subject, { phase: event.data.phase, at: performance.now() });
  };
  const look = () => {
    const now = performance.now();
    for (const link of document.querySelectorAll("main table.allocations th a")) {
      const id = decodeURIComponent(link.getAttribute("href").slice(3));
      const wanted = told.get(id);
      const word = link.closest("tr").querySelector(".state").textContent;
      if (!wanted || !(word === wanted.phase || (wanted.phase === "Terminated" && ends.includes(word)))) continue;
      told.delete(id);
      requestAnimationFrame(() => setTimeout(() => window.benchLater.push(performance.now() - wanted.at)));
    }
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
})()
"""


# --- a large installation ---------------------------------------------------------------------------------------------


class _Large:
    """The process of `browser_world.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        told = self._answer()
        self.url, self.log = str(told["url"]), str(told["log"])

    def rate(self, per_s: int) -> None:
        """Set the number of transitions per second."""
        self._tell(f"rate {per_s}")

    def move(self) -> dict[str, Any]:
        """Make one transition; return what the page must show."""
        return self._tell("move")

    def _tell(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


@contextmanager
def _large() -> Generator[_Large]:
    argv = [sys.executable, "-m", "bench.browser_world", "--nodes", str(NODES), "--running", str(RUNNING)]
    argv += ["--queued", str(QUEUED), "--ended", str(ENDED), "--lines", str(LINES if "log" in PARTS else 0)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Large(process)
        finally:
            process.terminate()


class _View:
    """A page of the large installation: when it is ready, and how it is scrolled and filtered."""

    def __init__(self, name: str, path: str, ready: str, *, box: str = "", filter_: str = "") -> None:
        self.name, self.path, self.ready, self.box, self.filter = name, path, ready, box, filter_

    def scroll(self, tab: Tab) -> None:
        """Scroll up and down for three seconds, by one usual wheel step per frame."""
        at = json.dumps(self.box)
        tab.run(
            f"(async () => {{ const box = {at} ? document.querySelector({at}) : document.scrollingElement; "
            "const step = 120; let by = step; const until = performance.now() + 3000; "
            "while (performance.now() < until) { await new Promise(requestAnimationFrame); box.scrollTop += by; "
            "if (box.scrollTop + box.clientHeight >= box.scrollHeight - 2) by = -step; "
            "if (box.scrollTop <= 0) by = step; } })()"
        )

    def type(self, tab: Tab) -> None:
        """Type a word into the filter, a letter at a time, and delete it again."""
        at = json.dumps(self.filter)
        tab.run(
            f"(async () => {{ const box = document.querySelector({at}); "
            "const put = async (text) => { box.value = text; box.dispatchEvent(new Event('input', { bubbles: true })); "
            "await new Promise((resolve) => setTimeout(resolve, 150)); }; "
            "for (const text of ['9', '99', '999', '99', '9', '']) await put(text); })()"
        )


VIEWS = (
    _View("home", "/?of=everyone", SHOWN, filter_="main input[type=search]"),
    _View(
        "queue", "/queues/default", "!!document.querySelector('main table.waiting')", filter_="main input[type=search]"
    ),
    _View("cluster", "/cluster", "!!document.querySelector('main .node')", filter_="main input[type=search]"),
)


def _scale(browser: Browser, runs: int) -> list[Row]:
    rows: list[Row] = []
    with _large() as large:
        for view in VIEWS:
            if view.name in PARTS:
                rows += _told(_view(browser, large, view, runs))
        if "log" in PARTS:
            rows += _told(_log(browser, large, runs))
        if "events" in PARTS:
            rows += _told(_storm(browser, large, runs))
    return rows


def _told(rows: list[Row]) -> list[Row]:
    """Print the rows at once, because the others take minutes; return them."""
    print(table(rows), file=sys.stderr, flush=True)
    return rows


def _view(browser: Browser, large: _Large, view: _View, runs: int) -> list[Row]:
    size = f"{NODES:,} nodes, {QUEUED:,} queued"
    with a_tab(browser) as tab:
        loaded = [tab.load(large.url + view.path, view.ready) for _ in range(2)]
        scrolled = [tab.frames(lambda: view.scroll(tab)) for _ in range(runs)]
        typed = [tab.frames(lambda: view.type(tab)) for _ in range(runs)]
        memory, heap = tab.memory_mb(), tab.heap_mb()
    return [
        row(f"PAGE-{view.name}-content", f"{view.name} page until it shows its list, {size}",
            [each.content_ms for each in loaded], "ms"),
        row(f"PAGE-{view.name}-bytes", f"{view.name} page: bytes on the wire in all, {size}",
            [each.bytes_all / KIB for each in loaded], "KiB"),
        *_frame_rows(f"{view.name}-scroll", f"{view.name} page, scrolled by 120 px a frame, {size}", scrolled),
        *_frame_rows(f"{view.name}-filter", f"{view.name} page, letters in the filter, {size}", typed),
        row(f"PAGE-{view.name}-memory", f"{view.name} page: memory of the tab, {size}", [memory], "MB",
            target=Target(must=250), note=f"scripts hold {heap:.0f} MB"),
    ]  # fmt: skip


def _frame_rows(id_: str, what: str, found: list[Frames]) -> list[Row]:
    busy = 100 * statistics.median(each.busy for each in found)
    wall = statistics.median(each.wall_p95_ms for each in found)
    return [
        row(f"PAGE-{id_}-p95", f"{what}: frame, p95", [each.p95_ms for each in found], "ms",
            target=Target(must=16), note=f"busy {busy:.0f} % of the time; wall time {wall:.1f} ms"),
        row(f"PAGE-{id_}-task", f"{what}: longest task", [each.longest_ms for each in found], "ms"),
    ]  # fmt: skip


def _log(browser: Browser, large: _Large, runs: int) -> list[Row]:
    view = _View("log", "", "", box=".log .lines", filter_=".log input[type=search]")
    with a_tab(browser) as tab:
        began_s = time.perf_counter()
        tab.goto(f"{large.url}/w/{large.log}?tab=log")
        tab.wait_for("!!document.querySelector('.log .lines')", timeout_s=120)
        shown_s = time.perf_counter() - began_s
        tab.wait_for(
            f"document.querySelector('.log [role=status]')?.textContent.includes('{LINES:,} lines')", timeout_s=240
        )
        whole_s = time.perf_counter() - began_s
        scrolled = [tab.frames(lambda: view.scroll(tab)) for _ in range(runs)]
        typed = [tab.frames(lambda: view.type(tab)) for _ in range(runs)]
        memory, heap = tab.memory_mb(), tab.heap_mb()
    return [
        row("PAGE-log-shown", f"a log of {LINES:,} lines: until its end is shown", [shown_s * 1_000], "ms"),
        row("PAGE-log-whole", f"a log of {LINES:,} lines: until all of it is there", [whole_s * 1_000], "ms"),
        *_frame_rows("log-scroll", f"a log of {LINES:,} lines, scrolled by 120 px a frame", scrolled),
        *_frame_rows("log-filter", f"a log of {LINES:,} lines, letters in the search", typed),
        row("PAGE-log-memory", f"a log of {LINES:,} lines: memory of the tab", [memory], "MB",
            target=Target(must=250), note=f"scripts hold {heap:.0f} MB"),
    ]  # fmt: skip


def _storm(browser: Browser, large: _Large, runs: int) -> list[Row]:
    """Measure at `RATE` events per second: the frames of the pages that follow them, and how late a change is shown."""
    rows: list[Row] = []
    large.rate(RATE)
    try:
        for view in VIEWS[:2]:
            with a_tab(browser) as tab:
                tab.load(large.url + view.path, view.ready)
                found = [tab.frames(lambda: time.sleep(WATCH_S)) for _ in range(runs)]
                later = [_later(tab, large) for _ in range(runs)] if view.name == "home" else []
            what = f"{view.name} page beside {RATE} events/s, {NODES:,} nodes, {QUEUED:,} queued"
            rows += _frame_rows(f"{view.name}-events", what, found)
            if later:
                rows.append(
                    row("PAGE-events-update", f"{what}: from an event until it is shown, p95",
                        [percentile(each, 95) for each in later], "ms", target=Target(must=300))
                )  # fmt: skip
    finally:
        large.rate(0)
    return rows


def _later(tab: Tab, large: _Large) -> list[float]:
    """Return the milliseconds from each of a few transitions until it is shown; 30,000 for one that is not shown.

    The list is filtered to this allocation, because other launches would move its row out of the window.
    """
    found: list[float] = []
    tab.run(
        "(() => { const box = document.querySelector('main input[type=search]'); box.value = 'moves'; "
        "box.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )
    for _ in range(MOVES):
        told = large.move()
        at = tab.run(
            f"new Promise((resolve) => {{ const id = {json.dumps(told['id'])}; "
            f"const word = {json.dumps(told['word'])}; "
            "const until = performance.now() + 30000; const look = () => { "
            "const row = document.querySelector(`main table.allocations a[href='/w/${id}']`)?.closest('tr'); "
            "if (row?.querySelector('.state').textContent === word || performance.now() > until) "
            "setTimeout(() => resolve(performance.timeOrigin + performance.now())); "
            "else requestAnimationFrame(look); }; look(); })"
        )
        found.append(min(30_000.0, float(at) - float(told["at_ms"])))
        time.sleep(0.3)
    return found
