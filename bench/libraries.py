"""Compares parts that we wrote ourselves with equivalent libraries: the cost of each, and the promises that each keeps.

Owns the list of comparisons; each is its own module. Both sides do the same work alternately in one process. The CPU
time is that of this process only, because servers are other processes. A library that the product does not install
(fakeredis, lupa, httpx) is compared only when it is installed.
"""

from bench import libraries_http, libraries_memory, libraries_promises, libraries_redis, libraries_spans
from bench.runner import Row


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    rows = await libraries_redis.measure(runs)
    rows += await libraries_promises.measure()
    rows += await libraries_memory.measure(runs)
    rows += await libraries_spans.measure(runs)
    rows += await libraries_http.measure(runs)
    return rows
