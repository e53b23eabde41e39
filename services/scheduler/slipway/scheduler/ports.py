"""What the scheduler needs of the outside, in its own words."""

from collections.abc import Sequence
from typing import Protocol

from slipway.kube.ports import Creates, Deletes, Gets, Lists, Patches, ReplacesStatus
from slipway.streams.decisions import DecisionEntry
from slipway.streams.ports import WorkHint


class Kube(Gets, Lists, ReplacesStatus, Patches, Protocol):
    """Reads of everything that placement depends on, and the two objects that the scheduler writes."""


class CapacityKube(Gets, Lists, Creates, Patches, Deletes, Protocol):
    """The requests for nodes, in our own namespace."""


class RecordSink(Protocol):
    """Where recorded ticks are kept."""

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None) -> str | None:
        """Keep one, and answer its cursor; None when its base (of cursor `base`) is gone, and nothing was written.

        Raises `TransientError` (whether it is there is not known) and `InvalidError` (it is too large).
        """
        ...


class LaunchHints(Protocol):
    """Where work is announced; what is lost here is announced again by the watcher."""

    async def send(self, hints: Sequence[WorkHint]) -> None: ...
