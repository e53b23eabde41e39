"""The leader's view of the cluster: tables of facts, each with the version at which it was seen.

Owns the merge of LISTs, feed deltas and our own writes into one view that never goes back: an older version of an
object is ignored. A deleted object stays deleted for every version up to its deletion, or up to the version of the last
LIST without it. Only `rewind` goes back, after the server has lost its history. Must not know the source of the facts.
No IO.
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
from slipway.model.namespace_limits import Ranges
from slipway.scheduler.plan.state.past_use import QueueUsage

T = TypeVar("T")

TOMBSTONES_MAX = 10_000


class ChangedKeys:
    """The keys that have changed since this reader last read them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: dict[str, None] = dict.fromkeys(keys)

    def note(self, key: str) -> None:
        """Note that the fact of this key has changed."""
        self._keys[key] = None

    def take(self) -> list[str]:
        """Return the changed keys, each once, and forget them."""
        taken, self._keys = self._keys, {}
        return list(taken)


class FactTable(Generic[T]):
    """Facts of one kind by key, each at its version (resourceVersion as an integer).

    `read` converts a new fact, given the fact that was known before, to the fact that is stored.
    """

    def __init__(self, read: Callable[[T, T | None], T] = lambda fact, _before: fact) -> None:
        self._read = read
        self._facts: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._listed = 0
        """the version of the last LIST: an object that was not in it, and is not newer, is gone"""
        self._changed: dict[str, T | None] = {}
        self._readers: list[ChangedKeys] = []
        self.generation = 0
        """A number that rises with each change that is news, so that an unchanged table is cheap to recognise."""

    def put(self, key: str, fact: T, version: int, *, is_news: bool = True) -> bool:
        """Store the fact unless a newer version, or a later deletion, is known; return True when that is news for
        planning.

        A fact with `is_news=False` is stored too, but is no reason to plan again. The same version may have another
        fact than before, because an allocation's fact also depends on the defaults of its pool.
        """
        if version < self._versions.get(key, -1) or version <= self._gone.get(key, -1):
            return False
        if key not in self._facts and version <= self._listed:
            return False  # a feed entry that is as old as the LIST is outdated, even if it is sent again
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
        """Forget the object that was deleted at `version`; return True when it was known."""
        if version < self._versions.get(key, -1):
            return False
        self._gone[key] = max(version, self._gone.get(key, -1))
        if len(self._gone) > TOMBSTONES_MAX:
            # The oldest one is dropped: a delta that old was read long ago, because the feed is read in order.
            del self._gone[next(iter(self._gone))]
        self._versions.pop(key, None)
        fact = self._facts.pop(key, None)
        if fact is None:
            return False
        self._note(key, fact)
        self.generation += 1
        return True

    def replace(self, facts: Mapping[str, tuple[T, int]], version: int) -> None:
        """Store a consistent LIST made at `version`: objects that are not in it, and are not newer, are gone."""
        for key in [key for key in self._facts if key not in facts and self._versions.get(key, 0) <= version]:
            self.drop(key, version)
        self._listed = 0
        for key, (fact, at) in facts.items():
            self.put(key, fact, at)
        self._listed = version

    def rewind(self, facts: Mapping[str, tuple[T, int]]) -> None:
        """Store a LIST of a server that has gone back in time: it replaces newer versions too."""
        self._versions.clear()
        self._gone.clear()
        self.replace(facts, 0)

    def take_changes(self) -> list[tuple[T | None, T | None]]:
        """Return (before, after) of every key that has changed since the last call; None when it does not exist."""
        changed, self._changed = self._changed, {}
        return [(before, self._facts.get(key)) for key, before in changed.items()]

    def changes(self) -> ChangedKeys:
        """Return a new reader of changes, which begins with all present keys."""
        reader = ChangedKeys(self._facts)
        self._readers.append(reader)
        return reader

    def get(self, key: str) -> T | None:
        """Return the fact; None when it is not known."""
        return self._facts.get(key)

    def version(self, key: str) -> int:
        """Return the version at which the object was last seen; 0 when it is not known."""
        return self._versions.get(key, 0)

    @property
    def newest(self) -> int:
        """The highest version of any object in the table."""
        return max(self._versions.values(), default=0)

    @property
    def seen(self) -> int:
        """The highest version of any object or remembered deletion in the table."""
        return max(self.newest, max(self._gone.values(), default=0))

    def values(self) -> Iterable[T]:
        """Return all facts, in the order in which their keys were first seen."""
        return self._facts.values()

    def _note(self, key: str, before: T | None) -> None:
        self._changed.setdefault(key, before)
        for reader in self._readers:
            reader.note(key)

    def __len__(self) -> int:
        return len(self._facts)


class Cluster:
    """All tables of one pool's leader. `now` is its clock (epoch seconds); without it, no times are corrected."""

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
        """their effect on a plan is already in the facts of allocations"""
        self.volumes: FactTable[VolumeFact] = FactTable()
        """the claims of waiting allocations, as they were read; they are not in the feed"""
        self.accounts = QueueUsage()
        """what the queues have used, if any queue has a budget"""
        self._accounts_seen = 0
        self.decayed = DecayedUsage()
        """the past usage of queues and users, if the pool has `fairShare`"""

    def table(self, kind: str) -> FactTable[Any] | None:
        """Return the table of a feed kind (the plural of a resource), or None."""
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
        """A value that changes whenever the input of planning has changed."""
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
        """Return the LimitRanges of a namespace, sorted by name."""
        own = (fact for fact in self.ranges.values() if fact.namespace == namespace)
        return tuple(sorted(own, key=lambda fact: fact.name))

    def set_accounts(self, accounts: QueueUsage) -> None:
        """Store what the queues have used, as it was just read."""
        self.accounts = accounts
        self._accounts_seen += 1

    def set_decayed(self, usage: DecayedUsage) -> None:
        """Store the past usage of queues and users, as it was just read or updated."""
        self.decayed = usage
        self._accounts_seen += 1

    def epoch_max(self) -> int:
        """Return the highest epoch on any allocation: a new leader's epoch must be higher."""
        return max((fact.epoch for fact in self.allocations.values()), default=0)


def by_our_clock(fact: AllocationFact, before: AllocationFact | None, now: float) -> AllocationFact:
    """Return the fact, with a backoff that ends no later than if it began now.

    The clock of the process that wrote it may be ahead of ours, and the backoff would last too long. So it begins when
    it is first seen; `before` is the fact that was known for the same key.
    """
    if fact.not_before <= now or fact.phase_since <= now:
        return fact
    until = now + max(0.0, fact.not_before - fact.phase_since)
    if before is not None and (before.uid, before.attempt) == (fact.uid, fact.attempt) and before.not_before:
        until = min(until, before.not_before)
    return msgspec.structs.replace(fact, not_before=until)
