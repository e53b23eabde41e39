"""FAIR: one user floods the api with calls and streams beside a quiet user, whose calls must stay quick.

The local cluster has the rate limit of a real cluster. The quiet user reads one allocation and the list ten times a
second. The flood is its own process, with 64 connections that call as fast as they are answered, and with streams that
it opens until it is refused. It begins `BURST_S` before the measured time, so that its burst (SLIPWAY_RATE_BURST) is
used up and the lasting state is measured. Times without the flood are measured alternately with times under it.
"""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from bench.bench_stack import BenchStack, a_bench_stack, launch_body
from bench.runner import Row, Target, percentile, row

CALLS = 100
EVERY_S = 0.1
BURST_S = 8.0
CONNECTIONS, STREAMS = 64, 600
USER = "X-Slipway-User"
RATIO_MAX = 3.0


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    answers: dict[str, int] = {}
    # The local cluster has no rate limit by default; a real cluster has this one.
    async with a_bench_stack(env={"SLIPWAY_RATE_PER_S": "50", "SLIPWAY_RATE_BURST": "500"}) as bench_stack:
        id_, _, _ = await bench_stack.post(launch_body(1))
        await _calls(bench_stack, id_, 20)
        for _ in range(runs):
            alone.append(await _calls(bench_stack, id_, CALLS))
            async with _flood(bench_stack, answers):
                await asyncio.sleep(BURST_S)
                beside.append(await _calls(bench_stack, id_, CALLS))
    told = ", ".join(f"{count} x {status}" for status, count in sorted(answers.items()))
    return [
        row(
            f"FAIR-quiet-p{percent}",
            f"a call of a quiet user beside a flooding one, p{percent}; the peer is the same without the flood",
            [percentile(each, percent) for each in beside],
            "ms",
            target=target,
            peer=[percentile(each, percent) for each in alone],
            peer_name="no flood",
            note=f"{CALLS} calls a run; the flood was answered {told}",
        )
        for percent, target in ((50, Target()), (99, Target(must=RATIO_MAX)))
    ]


async def _calls(bench_stack: BenchStack, id_: str, count: int) -> list[float]:
    """Return the milliseconds of calls at a fixed rate. Raises RuntimeError when one is refused."""
    found: list[float] = []
    started_s = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, started_s + number * EVERY_S - time.perf_counter()))
        path = f"/api/v1/allocations/{id_}" if number % 2 else "/api/v1/allocations?limit=50"
        sent = time.perf_counter()
        async with bench_stack.session.get(bench_stack.stack.api_url + path, headers={USER: "quiet"}) as answer:
            await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the quiet user is answered {answer.status}")
        found.append((time.perf_counter() - sent) * 1_000)
    return found


@asynccontextmanager
async def _flood(bench_stack: BenchStack, answers: dict[str, int]) -> AsyncGenerator[None]:
    """Run the flood as a process, which ends with its input; add up the answers that it got."""
    token = bench_stack.session.headers["Authorization"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.fair_use", bench_stack.stack.api_url, stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    process.stdin.write(f"{token}\n".encode())
    await process.stdin.drain()
    try:
        yield
    finally:
        process.stdin.close()
        out, _ = await process.communicate()
        for line in out.decode().splitlines():
            status, _, count = line.partition(" ")
            answers[status] = answers.get(status, 0) + int(count)


async def flood(url: str, token: str, over: asyncio.Event) -> dict[str, int]:
    """Make calls and streams of one user until `over` is set; return {status: number of answers}."""
    answers: dict[str, int] = {}
    headers = {"Authorization": token, USER: "flood"}

    def count(status: int | str) -> None:
        answers[str(status)] = answers.get(str(status), 0) + 1

    async def calls() -> None:
        while not over.is_set():
            try:
                async with session.get(f"{url}/api/v1/allocations?limit=50") as answer:
                    await answer.read()
                    count(answer.status)
            except aiohttp.ClientError:
                count("broken")

    async def stream() -> None:
        while not over.is_set():
            try:
                async with session.get(f"{url}/api/v1/events", headers={"Accept": "text/event-stream"}) as answer:
                    count(f"stream-{answer.status}")
                    if answer.status == 200:
                        await over.wait()
                    await answer.read() if answer.status != 200 else None
            except aiohttp.ClientError:
                count("broken")

    connector = aiohttp.TCPConnector(limit=0)
    endless = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=endless) as session:
        tasks = [asyncio.ensure_future(calls()) for _ in range(CONNECTIONS)]
        for _ in range(STREAMS):
            tasks.append(asyncio.ensure_future(stream()))
            await asyncio.sleep(0.002)
        await over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return answers


async def _main(url: str) -> None:
    over = asyncio.Event()
    token = (await asyncio.to_thread(sys.stdin.readline)).strip()
    flooding = asyncio.ensure_future(flood(url, token, over))
    await asyncio.to_thread(sys.stdin.read)
    over.set()
    for status, number in (await flooding).items():
        print(status, number)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
