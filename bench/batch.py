"""A thousand kills in one request to the local cluster, until the answer, compared with as many single requests.

The allocations are held, so they wait and nothing but the kills runs. The batch names its allocations by their ids, as
the command does after its confirmation. The single kills come from 16 clients with kept connections.
"""

import asyncio
import time

import msgspec

from bench.bench_stack import LAUNCH_PATH, BenchStack, a_bench_stack
from bench.runner import Row, Target, paired, row

COUNT = 1000
CLIENTS = 16
BODY = msgspec.json.encode(
    {"kind": "command", "image": "python:3.11", "command": ["true"], "hold": True, "ranks": [{"count": 1}]}
)
MUST_S = 5.0


class Batched(msgspec.Struct):
    """The part of an answer that is decoded."""

    counts: dict[str, int]


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    async with a_bench_stack(nodes=0) as bench_stack:
        ours, singles = await paired(runs, lambda _run: _batch(bench_stack), lambda _run: _singles(bench_stack))
    return [
        row(
            "BATCH-kill-1000",
            f"{COUNT:,} kills in one request, to its answer",
            ours,
            "s",
            peer=singles,
            peer_name=f"the same by single requests of {CLIENTS} clients",
            target=Target(must=MUST_S),
        )
    ]


async def _launched(bench_stack: BenchStack) -> list[str]:
    """Launch `COUNT` held allocations; return their ids."""
    left, ids = iter(range(COUNT)), list[str]()

    async def client() -> None:
        for _ in left:
            ids.append((await bench_stack.post(BODY))[0])

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return ids


async def _batch(bench_stack: BenchStack) -> float:
    """Kill all in one request; return the seconds."""
    body = msgspec.json.encode({"verb": "kill", "ids": await _launched(bench_stack)})
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"bench-{time.perf_counter_ns()}"}
    started_s = time.perf_counter()
    async with bench_stack.session.post(
        f"{bench_stack.stack.api_url}{LAUNCH_PATH}/batch", data=body, headers=headers
    ) as answer:
        content = await answer.read()
    taken_s = time.perf_counter() - started_s
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {content[:500]!r}")
    counts = msgspec.json.decode(content, type=Batched).counts
    if counts != {"done": COUNT}:
        raise RuntimeError(f"not all were killed: {counts}")
    return taken_s


async def _singles(bench_stack: BenchStack) -> float:
    """Kill all in single requests; return the seconds."""
    ids = await _launched(bench_stack)
    left = iter(ids)
    started_s = time.perf_counter()

    async def client() -> None:
        for id_ in left:
            async with bench_stack.session.post(f"{bench_stack.stack.api_url}{LAUNCH_PATH}/{id_}/kill") as answer:
                if answer.status >= 300:
                    raise RuntimeError(f"{answer.status}: {await answer.text()}")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - started_s
