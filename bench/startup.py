"""Startup: the help of the command, `slipway up` from the keystroke to "is up", and the services' memory at rest.

Memory is the resident set of the kernel; pages that several processes share are included in each process.
"""

import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.bench_stack import a_bench_stack
from bench.runner import Row, Target, paired, percentile, row

HELP_RUNS = 11
REST_S = 10.0
UP_S = 60.0
SERVICES = ("api", "scheduler", "podworker", "watcher")
BESIDE = ("cluster", "nodes")
IS_UP = b"Slipway is up"


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    ours, bare = await paired(max(runs, HELP_RUNS), _help, _bare)
    ups = [await _up() for _ in range(runs)]
    rows = [
        row("S1-help", "slipway --help, wall", ours, "ms", target=Target(must=150)),
        row("S1-help-p95", "slipway --help, wall, p95", [percentile(ours, 95)], "ms"),
        row("S1-python", "the same Python doing nothing, wall", bare, "ms"),
        row("S2-up", "slipway up, keystroke to ready", ups, "s", target=Target(must=5)),
    ]
    async with a_bench_stack() as bench_stack:
        await asyncio.sleep(REST_S)
        for name in (*SERVICES, *BESIDE):
            samples = [await _rss(bench_stack.stack.children[name].pid) for _ in range(3)]
            target = Target(must=90, moonshot=60) if name in SERVICES else Target()
            rows.append(
                row(f"P13-rss-{name}", f"{name}: resident after {REST_S:.0f} s at rest", samples, "MiB", target=target)
            )
    return rows


async def _help(_run: int) -> float:
    return await _wall_ms(str(Path(sys.executable).with_name("slipway")), "--help")


async def _bare(_run: int) -> float:
    return await _wall_ms(sys.executable, "-I", "-c", "pass")


async def _wall_ms(*argv: str) -> float:
    started_s = time.perf_counter()
    await asyncio.to_thread(subprocess.run, argv, stdout=subprocess.DEVNULL, check=True, timeout=30)
    return (time.perf_counter() - started_s) * 1_000


async def _up() -> float:
    """Return the seconds until `slipway up` reports that it is up; it is then stopped."""
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        started_s = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("slipway")),
            *("up", "--port", "0", "--data", f"{folder}/stack"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = b""
        try:
            async with asyncio.timeout(UP_S):
                while IS_UP not in said:
                    chunk = await process.stdout.read(4096) if process.stdout else b""
                    if not chunk:
                        raise RuntimeError(f"slipway up ended: {said[-2000:]!r}")
                    said += chunk
            took_s = time.perf_counter() - started_s
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()
    return took_s


async def _rss(pid: int) -> float:
    """Return the resident memory in MiB."""
    status = await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text)
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else statistics.fmean([])
