"""What the watcher needs of the outside, in its own words."""

from collections.abc import Sequence
from typing import Protocol

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.kube.ports import Creates, Deletes, Gets, Lists, Patches, ReadsLogs, Replaces, ReplacesStatus
from slipway.model.ids import AllocationId
from slipway.streams.logpacks import LogAppended, LogKey, LogPack, LogPosition
from slipway.streams.ports import Appended, StreamEntry, WorkHint


class ConsistentReader(Gets, Lists, Protocol):
    """Consistent reads."""


class WatcherWriter(ReplacesStatus, Patches, Deletes, Protocol):
    """The writes of the watcher: statuses, finalizers, deletes."""


class Kube(ConsistentReader, WatcherWriter, Protocol):
    """Both."""


class DailyTotals(Gets, Creates, Replaces, Protocol):
    """The daily totals."""


class EventDesk(Creates, Gets, Patches, Protocol):
    """The Events that we write."""


LogReader = ReadsLogs


class Log(Protocol):
    """The event streams, as the relay writes them."""

    async def append(self, entries: Sequence[StreamEntry]) -> list[Appended]: ...

    async def last_seqs(self, allocations: Sequence[AllocationId]) -> list[int | None]: ...


class HintSink(Protocol):
    """Where work is announced."""

    async def send(self, hints: Sequence[WorkHint]) -> None: ...


class Bell(Protocol):
    """What wakes the scheduler."""

    async def ring(self, reason: str) -> None: ...


class LogStore(Protocol):
    """Where log lines are kept."""

    async def append(self, packs: Sequence[LogPack]) -> list[LogAppended]: ...

    async def position(self, allocation: AllocationId, source: LogKey) -> LogPosition: ...

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]: ...


class Marks(Protocol):
    """Where the signs of activity go; they are written behind."""

    def offer_activity(self, allocation: AllocationId, source: str, at_s: float) -> bool: ...


class Outbox(Protocol):
    """What the reconciler hands on; nothing here waits."""

    def offer(self, allocation: Allocation) -> None:
        """The allocation as it stands: relay its transitions."""
        ...

    def is_published(self, allocation: Allocation) -> bool:
        """Whether its stream holds its last transition, or there is no stream to wait for."""
        ...


class UsageLedger(Protocol):
    """Where what was used is added up before an allocation may go."""

    def offer(self, allocation: Allocation) -> None:
        """Add it, unless that was done; its uid is looked at again when it is."""
        ...

    def is_settled(self, allocation: Allocation) -> bool:
        """Whether there is nothing to wait for."""
        ...

    def is_added(self, allocation: Allocation) -> bool:
        """Whether it is known to be in the totals."""
        ...


class HintBox(Protocol):
    """Hints on their way to the pod worker."""

    def offer(self, allocation: Allocation) -> None:
        """It needs the pod worker; said once per version and again after a while."""
        ...


class Tails(Protocol):
    """Logs that are being read."""

    def is_open(self, pod: Pod) -> bool:
        """Whether the logs of what runs in a pod are being read, or need not be."""
        ...

    def is_drained(self, pod: Pod) -> bool:
        """Whether the log of an ended pod has been read to its end, or need not be."""
        ...
