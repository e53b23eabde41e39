"""What the leader knows of the cluster: tables of facts, each with the version it was seen at.

Owns the merge of LISTs, feed deltas and our own writes into one view that never goes back: an older version of an
object is ignored, and a deleted object stays deleted for every version up to its deletion, or up to that of the last
LIST that did not have it. Only `rewind` goes back, with a server that has lost its history. Must not know where the
facts came from. No IO.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from slipway.model.decay import DecayedUsage
from slipway.model.facts import (
    AllocationFact,
    JobFact,
    LimitRangeFact,
    NodeFact,
    PodFact,
    PoolFact,
    QueueFact,
    QuotaFact,
    VolumeFact,
    WorkspaceFact,
)
from slipway.model.limitrange import Ranges
from slipway.scheduler.plan.state.budgets import QueueUsage

T = TypeVar("T")

TOMBSTONES_MAX = 10_000


class ChangedKeys:
    """The keys that have changed since this reader last took them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: dict[str, None] = dict.fromkeys(keys)

    def note(self, key: str) -> None:
        """It has changed."""
        self._keys[key] = None

    def take(self) -> list[str]:
        """The keys, each once; then none until something changes."""
        taken, self._keys = self._keys, {}
        return list(taken)


class FactTable(Generic[T]):
    """Facts of one kind by key, each at its version (resourceVersion as an integer).

    `read` makes of a fact, and of what was known before it, what is taken.
    """

    def __init__(self, read: Callable[[T, T | None], T] = lambda fact, _before: fact) -> None:
        self._read = read
        self._facts: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._listed = 0
        """the version of the last LIST: what was not in it, and is not newer, is gone"""
        self._changed: dict[str, T | None] = {}
        self._readers: list[ChangedKeys] = []
        self.generation = 0
        """Rises with each change, so that an unchanged table is cheap to recognise."""

    def put(self, key: str, fact: T, version: int, *, is_news: bool = True) -> bool:
        """Take the fact unless a newer version, or a later deletion, is known. True when it changed something.

        What is no news is taken in like everything, but is no reason to plan again. The same version may come with
        another fact: that of an allocation depends on the defaults of its pool, too.
        """
        if version < self._versions.get(key, -1) or version <= self._gone.get(key, -1):
            return False
        if key not in self._facts and version <= self._listed:
            return False  # an entry of the feed that is as old comes too late, whoever sends it again
        self._versions[key] = version
        before = self._facts.get(key)
        if fact is before:
            return False
        fact = self._read(fact, before)
        if before == fact:
            return False
        self._note(key, before)
        self._facts[key] = fact
        self._gone.pop(key, None)
        self.generation += is_news
        return is_news

    def drop(self, key: str, version: int) -> bool:
        """Forget the object as of `version`. True when it was known."""
        if version < self._versions.get(key, -1):
            return False
        self._gone[key] = version
        if len(self._gone) > TOMBSTONES_MAX:
            # Oldest first: a delta that old has long been read, because the feed is read in order.
            del self._gone[next(iter(self._gone))]
        self._versions.pop(key, None)
        fact = self._facts.pop(key, None)
        if fact is None:
            return False
        self._note(key, fact)
        self.generation += 1
        return True

    def replace(self, facts: Mapping[str, tuple[T, int]], version: int) -> None:
        """Take a consistent LIST made at `version`: what it lacks, and is not newer, is gone."""
        for key in [key for key in self._facts if key not in facts and self._versions.get(key, 0) <= version]:
            self.drop(key, version)
        self._listed = 0
        for key, (fact, at) in facts.items():
            self.put(key, fact, at)
        self._listed = version

    def rewind(self, facts: Mapping[str, tuple[T, int]]) -> None:
        """Take a LIST of a server that has gone back in time: it is the truth, whatever was newer."""
        self._versions.clear()
        self._gone.clear()
        self.replace(facts, 0)

    def take_changes(self) -> list[tuple[T | None, T | None]]:
        """(before, after) of every key that has changed since the last call; None: not there."""
        changed, self._changed = self._changed, {}
        return [(before, self._facts.get(key)) for key, before in changed.items()]

    def changes(self) -> ChangedKeys:
        """Another reader of what changes, which begins with all there is."""
        reader = ChangedKeys(self._facts)
        self._readers.append(reader)
        return reader

    def get(self, key: str) -> T | None:
        """The fact, if known."""
        return self._facts.get(key)

    def version(self, key: str) -> int:
        """The version the object was last seen at; 0 when it is not known."""
        return self._versions.get(key, 0)

    @property
    def newest(self) -> int:
        """The highest version of any object in it."""
        return max(self._versions.values(), default=0)

    @property
    def seen(self) -> int:
        """The highest version of anything that was ever told of it, deletions included."""
        return max(self.newest, max(self._gone.values(), default=0))

    def values(self) -> Iterable[T]:
        """All facts, in the order of their keys' first arrival."""
        return self._facts.values()

    def _note(self, key: str, before: T | None) -> None:
        self._changed.setdefault(key, before)
        for reader in self._readers:
            reader.note(key)

    def __len__(self) -> int:
        return len(self._facts)


class Cluster:
    """Every table of one pool's leader. `now` tells its time (epoch seconds); without one, no clock is compared."""

    def __init__(self, now: Callable[[], float] = lambda: math.inf) -> None:
        self.nodes: FactTable[NodeFact] = FactTable()
        self.pods: FactTable[PodFact] = FactTable()
        self.allocations: FactTable[AllocationFact] = FactTable(lambda fact, before: by_our_clock(fact, before, now()))
        self.queues: FactTable[QueueFact] = FactTable()
        self.jobs: FactTable[JobFact] = FactTable()
        self.pools: FactTable[PoolFact] = FactTable()
        self.workspaces: FactTable[WorkspaceFact] = FactTable()
        self.quotas: FactTable[QuotaFact] = FactTable()
        self.ranges: FactTable[LimitRangeFact] = FactTable()
        """what of them changes a plan is in the facts of allocations"""
        self.volumes: FactTable[VolumeFact] = FactTable()
        """the claims of waiting work, as they were read; they are not in the feed"""
        self.accounts = QueueUsage()
        """what the queues have used, where any has a budget"""
        self._accounts_seen = 0
        self.decayed = DecayedUsage()
        """what queues and users have used before, where the pool counts it"""

    def table(self, kind: str) -> FactTable[Any] | None:
        """The table of a feed kind (the plural of a resource), or None."""
        return {
            "nodes": self.nodes,
            "pods": self.pods,
            "allocations": self.allocations,
            "queues": self.queues,
            "jobs": self.jobs,
            "resourcepools": self.pools,
            "namespaces": self.workspaces,
            "resourcequotas": self.quotas,
            "limitranges": self.ranges,
        }.get(kind)

    @property
    def generation(self) -> tuple[int, ...]:
        """Changes whenever anything that planning reads has changed."""
        return (
            self.nodes.generation,
            self.pods.generation,
            self.allocations.generation,
            self.queues.generation,
            self.jobs.generation,
            self.pools.generation,
            self.workspaces.generation,
            self.quotas.generation,
            self.volumes.generation,
            self._accounts_seen,
        )

    def ranges_of(self, namespace: str) -> Ranges:
        """The LimitRanges of a namespace, by name."""
        own = (fact for fact in self.ranges.values() if fact.namespace == namespace)
        return tuple(sorted(own, key=lambda fact: fact.name))

    def set_accounts(self, accounts: QueueUsage) -> None:
        """What the queues have used, as it was just read."""
        self.accounts = accounts
        self._accounts_seen += 1

    def set_decayed(self, usage: DecayedUsage) -> None:
        """What queues and users have used before, as it was just read or goes on from now."""
        self.decayed = usage
        self._accounts_seen += 1

    def epoch_max(self) -> int:
        """The highest epoch on any allocation: a new leader's epoch is above it."""
        return max((fact.epoch for fact in self.allocations.values()), default=0)


def by_our_clock(fact: AllocationFact, before: AllocationFact | None, now: float) -> AllocationFact:
    """The fact, with a backoff that lasts no longer from now on than it was made for.

    Whoever wrote it may have a clock that is ahead of ours: it would last longer by that. It is counted from when it
    is first seen; `before` is what was known of the same key.
    """
    if fact.not_before <= now or fact.phase_since <= now:
        return fact
    until = now + max(0.0, fact.not_before - fact.phase_since)
    if before is not None and (before.uid, before.attempt) == (fact.uid, fact.attempt) and before.not_before:
        until = min(until, before.not_before)
    return msgspec.structs.replace(fact, not_before=until)
