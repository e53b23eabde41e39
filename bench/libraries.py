"""Parts that we wrote ourselves beside the libraries that do the same: what each costs, and which promises it keeps.

Owns the list of comparisons; each is a module of its own. Both sides do the same work turn about, in one process, and
the processor time is that of this process alone: servers are others. A library that the product does not install
(fakeredis, lupa, httpx) is compared only where it is installed.
"""

from bench import libraries_http, libraries_memory, libraries_promises, libraries_redis, libraries_spans
from bench.runner import Row


async def measure(runs: int) -> list[Row]:
    """Rows of this benchmark."""
    rows = await libraries_redis.measure(runs)
    rows += await libraries_promises.measure()
    rows += await libraries_memory.measure(runs)
    rows += await libraries_spans.measure(runs)
    rows += await libraries_http.measure(runs)
    return rows
