"""The ports of the scheduler: what it needs of Kubernetes and Redis."""

from collections.abc import Sequence
from typing import Protocol

from slipway.kube.ports import Creates, Deletes, Gets, Lists, Patches, ReplacesStatus
from slipway.streams.decisions import DecisionEntry
from slipway.streams.ports import WorkHint


class Kube(Gets, Lists, ReplacesStatus, Patches, Protocol):
    """Reads the input of placement, and writes the two kinds of objects that the scheduler changes."""


class CapacityKube(Gets, Lists, Creates, Patches, Deletes, Protocol):
    """Reads and writes the requests for nodes, in our own namespace."""


class RecordSink(Protocol):
    """The store of recorded ticks."""

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None) -> str | None:
        """Store one entry and return its cursor. Write nothing and return None when its base (cursor `base`) is gone.

        Raises `TransientError` (it may or may not have been stored) and `InvalidError` (it is too large).
        """
        ...


class LaunchHints(Protocol):
    """Sends hints about work to the pod workers; the watcher sends a lost hint again."""

    async def send(self, hints: Sequence[WorkHint]) -> None: ...
