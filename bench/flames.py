"""`python -m bench.flames [--seconds N]`: records one flame graph per service under load, in bench/results/flames/.

The four services run on the local cluster without kubelets, and clients launch single ranks at a fixed rate. py-spy
samples the services in turn, so it slows down one at a time. An SVG larger than 300 KB is recorded again with fewer
samples. Needs py-spy, which is not one of our dependencies: `uv pip install py-spy` with the uv of `.venv`.
"""

import argparse
import asyncio
import contextlib
import re
import shutil
import sys
import time
from pathlib import Path

import uvloop

from bench.bench_stack import BenchStack, a_bench_stack, launch_body, launch_through
from bench.runner import RESULTS, machine_line
from bench.throughput import NODE, NODES, SERVICES

FLAMES = RESULTS / "flames"
BYTES_MAX = 300_000
RATES_PER_S = (200, 100, 50)
"""samples per second; the next rate is used when the picture is too large"""
LAUNCHES_PER_S = 25
AT_ONCE = 64
WARM_UP_S = 3.0
_TITLE = re.compile(r">[^<>]*py-spy record [^<>]*<")


async def record(seconds: int) -> list[Path]:
    """Record the pictures. Raises RuntimeError when py-spy is missing or fails."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise RuntimeError("py-spy is missing: .venv/bin/uv pip install --python .venv/bin/python py-spy")
    FLAMES.mkdir(parents=True, exist_ok=True)
    async with a_bench_stack(nodes=0) as bench_stack:
        for number in range(NODES):
            name = f"fake-{number}"
            labels = {"kubernetes.io/hostname": name}
            await bench_stack.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, **NODE})
        load = asyncio.ensure_future(_launch(bench_stack))
        try:
            await asyncio.sleep(WARM_UP_S)
            return [await _one(program, bench_stack, service, seconds) for service in SERVICES]
        finally:
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await load


async def _one(program: str, bench_stack: BenchStack, service: str, seconds: int) -> Path:
    path = FLAMES / f"{service}.svg"
    pid = str(bench_stack.stack.children[service].pid)
    for rate in RATES_PER_S:
        argv = [program, "record", "--pid", pid, "--duration", str(seconds), "--rate", str(rate), "--nonblocking"]
        argv += ["--output", str(path)]
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        if process.returncode or not path.exists():
            raise RuntimeError(f"py-spy of {service}: {said.decode(errors='replace')[-500:]}")
        # Its title is the command line, which contains local folder names.
        path.write_text(
            _TITLE.sub(f">{service} under {LAUNCHES_PER_S} launches/s<", path.read_text()), encoding="utf-8"
        )
        size = path.stat().st_size
        print(f"  {path.name}: {size // 1024} KiB at {rate} samples/s ({machine_line()})", file=sys.stderr, flush=True)
        if size <= BYTES_MAX:
            return path
    path.unlink()
    raise RuntimeError(f"{service}: more than {BYTES_MAX} bytes at {RATES_PER_S[-1]} samples/s: record fewer seconds")


async def _launch(bench_stack: BenchStack) -> None:
    """Launch at a fixed rate until cancelled; launches that the services cannot keep up with wait."""
    slots, body, started_s = asyncio.Semaphore(AT_ONCE), launch_body(1), time.perf_counter()

    async def one(number: int) -> None:
        try:
            await launch_through(bench_stack.session, bench_stack.stack.api_url, body, key=f"flame-{number}")
        finally:
            slots.release()

    number = 0
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(max(0.0, started_s + number / LAUNCHES_PER_S - time.perf_counter()))
            await slots.acquire()
            group.create_task(one(number))
            number += 1


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.flames", description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="how long each service is sampled (default 10)")
    options = parser.parse_args()
    try:
        found = uvloop.run(record(options.seconds))
    except RuntimeError as error:
        print(f"bench.flames: {error}", file=sys.stderr)
        return 1
    print("\n".join(str(path) for path in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
