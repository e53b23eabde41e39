"""The ports of the watcher: what it needs of Kubernetes, Redis and its own parts."""

from collections.abc import Sequence
from typing import Protocol

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.kube.ports import Creates, Deletes, Gets, Lists, Patches, ReadsLogs, Replaces, ReplacesStatus
from slipway.model.ids import AllocationId
from slipway.streams.logpacks import LogAppended, LogKey, LogPack, LogPosition
from slipway.streams.ports import Appended, StreamEntry, WorkHint


class ConsistentReader(Gets, Lists, Protocol):
    """Consistent reads of the API server."""


class WatcherWriter(ReplacesStatus, Patches, Deletes, Protocol):
    """The writes of the watcher: statuses, finalizers, deletes."""


class Kube(ConsistentReader, WatcherWriter, Protocol):
    """The consistent reads and the writes."""


class DailyTotals(Gets, Creates, Replaces, Protocol):
    """Reads and writes of the daily totals."""


class EventWriter(Creates, Gets, Patches, Protocol):
    """Writes of the Kubernetes Events about allocations."""


LogReader = ReadsLogs


class EventStreamWriter(Protocol):
    """The event streams, as the relay writes them."""

    async def append(self, entries: Sequence[StreamEntry]) -> list[Appended]: ...

    async def last_seqs(self, allocations: Sequence[AllocationId]) -> list[int | None]: ...


class HintSink(Protocol):
    """Sends hints about work to the pod worker."""

    async def send(self, hints: Sequence[WorkHint]) -> None: ...


class WakeSink(Protocol):
    """Wakes the scheduler."""

    async def ring(self, reason: str) -> None: ...


class LogStore(Protocol):
    """Stores log lines."""

    async def append(self, packs: Sequence[LogPack]) -> list[LogAppended]: ...

    async def position(self, allocation: AllocationId, source: LogKey) -> LogPosition: ...

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]: ...


class ActivitySink(Protocol):
    """Records activity of allocations; it is written later, in the background."""

    def offer_activity(self, allocation: AllocationId, source: str, at_s: float) -> bool: ...


class Outbox(Protocol):
    """The relay of transitions, as the reconciler uses it; no call waits."""

    def offer(self, allocation: Allocation) -> None:
        """Relay the transitions of this version of the allocation."""
        ...

    def is_published(self, allocation: Allocation) -> bool:
        """Whether its stream has its last transition, or there is no stream to wait for."""
        ...


class UsageLedger(Protocol):
    """Adds the usage of an allocation to the daily totals, before its object may be deleted."""

    def offer(self, allocation: Allocation) -> None:
        """Add the allocation, unless it is settled; it is reconciled again when it is."""
        ...

    def is_settled(self, allocation: Allocation) -> bool:
        """Whether there is nothing to wait for."""
        ...

    def is_added(self, allocation: Allocation) -> bool:
        """Whether it is known to be in the totals."""
        ...


class HintQueue(Protocol):
    """Queues hints for the pod worker."""

    def offer(self, allocation: Allocation) -> None:
        """Send a hint for the allocation: once per version, and again after a while."""
        ...


class LogProgress(Protocol):
    """The reading of logs, as the reconciler sees it."""

    def is_open(self, pod: Pod) -> bool:
        """Whether the logs of a pod's running containers are being read, or need not be."""
        ...

    def is_drained(self, pod: Pod) -> bool:
        """Whether the log of an ended pod has been read to its end, or need not be."""
        ...
