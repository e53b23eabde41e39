"""Bugs that the simulation has to find: each breaks one rule of the design in the real services.

A checker that does not find them proves nothing by its silence. One module per area; `hunt.py` looks for one,
`python -m tests.simulation.bugs` for all, `tests/simulation/test_checker.py` where each was found last. They are
installed with pytest's monkeypatch and gone after the test: the product has no hook for them.
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
