"""The loops reference: the bound of each loop of each service."""

from slipway.api import loops as api
from slipway.podworker import loops as podworker
from slipway.runtime import service
from slipway.runtime.liveness import Loop
from slipway.scheduler import loops as scheduler
from slipway.watcher import loops as watcher
from tools.reference.markdown import code, table

TOP = """# Loops and their bounds

A loop may make no progress for at most its bound. After that, `/livez` answers 503 and names the loop, and the process
neither renews nor acquires a lease ([what follows](../operating.md#liveness)). An announced pause, between two rounds
or after an error, does not count. A loop at rest waits for what the last column names, and may wait for it for ever. A
loop with an empty last column never rests.

A loop that runs several times has a suffix after a colon: `watch:pods`, `reconcile:3`, `tick:default`,
`hint:<AllocationID>`.
"""
TABLES: dict[str, tuple[Loop, ...]] = {
    "api": api.LOOPS,
    "scheduler": scheduler.LOOPS,
    "podworker": podworker.LOOPS,
    "watcher": watcher.LOOPS,
    "every service with a certificate": service.LOOPS,
}


def page() -> str:
    """Return the page."""
    parts = [TOP]
    for name, loops in TABLES.items():
        rows = [[code(each.name), f"{each.bound_s:g}", each.moves, each.rests] for each in loops]
        parts.append(
            f"## {name}\n\n" + table(["loop", "bound, s", "what counts as progress", "at rest, it waits for"], rows)
        )
    return "\n".join(parts)
