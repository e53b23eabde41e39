"""Bugs that the simulation has to find: each breaks one rule of the design in the real services.

If a checker does not find them, its silence proves nothing. There is one module per area. `hunt.py` searches for one
bug, `python -m tests.simulation.bugs` for all, and `tests/simulation/test_checker.py` tries the point where each was
found last. The bugs are installed with pytest's monkeypatch and removed after the test: the product has no hook for
them.
"""

from tests.simulation.bugs import (
    accounts,
    api,
    leadership,
    ledger,
    logs,
    podworker,
    preemption,
    scheduler,
    streams,
    watcher,
)
from tests.simulation.bugs.bug import Bug

AREAS: dict[str, tuple[Bug, ...]] = {
    "scheduler": scheduler.BUGS,
    "ledger": ledger.BUGS,
    "leadership": leadership.BUGS,
    "preemption": preemption.BUGS,
    "pod worker": podworker.BUGS,
    "watcher": watcher.BUGS,
    "streams": streams.BUGS,
    "logs": logs.BUGS,
    "accounts": accounts.BUGS,
    "api": api.BUGS,
}
BUGS: tuple[Bug, ...] = tuple(bug for bugs in AREAS.values() for bug in bugs)

__all__ = ["AREAS", "BUGS", "Bug"]
