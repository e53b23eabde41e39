"""Reads the volume claims of waiting allocations, so that a plan knows from which nodes each volume can be reached.

Owns which claims are read and how often. `facts/volumes.py` explains what a claim means,
`plan/placement/filters/volume_zone.py` what follows for a plan. Only pools with `binding: direct` need these reads: in
other pools kube-scheduler checks the volumes.

Promises: an allocation without claims costs no call; each claim is read by name, and only while a waiting allocation
names it. An allocation is not placed before each of its claims was read once. A tick waits at most `PATIENCE_S` for
reads, and not at all while they are slow; a late read wakes the next tick. If a claim cannot be read again, its last
state is used. Not promised: that a claim which could be mounted is read again while no plan is made.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

import msgspec

from slipway.errors import ControlPlaneError, InvariantError
from slipway.facts.volumes import DIRECT, ClaimKey, being_read, read_volume, unreadable
from slipway.kube.ports import Gets
from slipway.model.facts import AllocationFact, VolumeFact
from slipway.model.lifecycle import Phase
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.rate_limit import RateLimit

PATIENCE_S = 0.1
"""The longest wait of one tick for quick reads."""
READ_S = 5.0
"""The timeout of one read."""
FRESH_S = 60.0
"""How long a claim that can be mounted is used before it is read again for the next plan."""
UNBOUND_S = 1.0
"""The same for a claim that has no volume yet: it gets one with its first pod, or the claim is created for that pod."""
AGAIN_S = 5.0
"""The pause between reads of a claim that cannot be mounted yet."""
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 30.0
"""The pause between reads of a claim that cannot be read: the first one, and the longest."""
UNDER_WAY_MAX = 16
READS_PER_S, READS_BURST = 50.0, 100

_log = log.get_logger(__name__)


class _Claim(msgspec.Struct):
    """A claim that waiting allocations name."""

    wanted_by: set[str]
    """keys of allocations"""
    failures: int = 0
    is_read: bool = False


class ClaimReads:
    """Keeps `cluster.volumes` current for one leadership of `pool`.
    Reads are made in the background, after `run_in`."""

    def __init__(
        self, kube: Gets, cluster: Cluster, pool: str, clock: Clock, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._pool = pool
        self._clock = clock
        self._on_change = on_change
        self._changes = cluster.allocations.changes()
        self._is_direct = True
        self._claims: dict[ClaimKey, _Claim] = {}
        self._named: dict[str, tuple[ClaimKey, ...]] = {}
        """{key of an allocation: its claims}"""
        self._timers: list[tuple[float, ClaimKey]] = []
        """(when its next read is due, claim), a heap"""
        self._due: dict[ClaimKey, None] = {}
        """claims to read as soon as possible"""
        self._stale: dict[ClaimKey, None] = {}
        """claims to read before the next plan"""
        self._unknown: dict[ClaimKey, None] = {}
        """claims that are not in the table yet"""
        self._under_way: dict[ClaimKey, asyncio.Task[None]] = {}
        self._tasks: TaskGroup | None = None
        self._rate = RateLimit(READS_PER_S, READS_BURST)
        self._is_slow = False
        self._version = 0

    def run_in(self, tasks: TaskGroup) -> None:
        """Make reads in the background from now on, in `tasks`."""
        self._tasks = tasks

    def stop(self) -> None:
        """Cancel the reads that are in progress."""
        self._tasks = None
        for task in self._under_way.values():
            task.cancel()

    async def read_due(self, *, is_planning: bool) -> None:
        """Read the claims that are due; `is_planning`: also those that were read long ago."""
        self._note_changes()
        if not self._claims:
            return
        now_s = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            self._expire(heapq.heappop(self._timers)[1])
        if self._tasks is None:
            # Without background tasks, wait for the end of each read, which has a deadline.
            while batch := self._next(UNDER_WAY_MAX, is_planning=is_planning):
                await asyncio.gather(*map(self._read, batch))
            return
        room = min(UNDER_WAY_MAX - len(self._under_way), self._rate.left(now_s))
        begun = [self._begin(key, self._tasks) for key in self._next(room, is_planning=is_planning)]
        self._rate.spend(len(begun))
        if begun and not self._is_slow:
            await asyncio.wait(begun, timeout=PATIENCE_S)
        for key in list(self._unknown):
            self._put(key, being_read(*key))

    # --- which claims -----------------------------------------------------------------------------------------------

    def _note_changes(self) -> None:
        """Note the claims that changed allocations name."""
        allocations, keys = self._cluster.allocations, self._changes.take()
        pool = self._cluster.pools.get(self._pool)
        is_direct = pool is None or pool.binding == DIRECT
        if is_direct != self._is_direct:
            self._is_direct = is_direct
            keys += [fact.key for fact in allocations.values()]
        for key in keys:
            fact = allocations.get(key)
            self._name(key, self._claims_of(fact) if fact is not None and is_direct else ())

    def _claims_of(self, fact: AllocationFact) -> tuple[ClaimKey, ...]:
        """Return the claims of an allocation that a plan may place:
        one that waits, or a gang that may get more ranks."""
        is_growing = fact.phase is Phase.RUNNING and len(fact.placements) < fact.rank_count
        is_waiting = fact.phase is Phase.PENDING and not (fact.hold or fact.waits_for)
        if fact.pool != self._pool or not fact.is_wanted or not (is_waiting or is_growing):
            return ()
        return tuple(dict.fromkeys((fact.namespace, claim) for role in fact.roles for claim in role.claims))

    def _name(self, allocation: str, claims: tuple[ClaimKey, ...]) -> None:
        before = self._named.pop(allocation, ())
        if claims:
            self._named[allocation] = claims
        for key in claims:
            claim = self._claims.get(key)
            if claim is not None:
                claim.wanted_by.add(allocation)
                continue
            self._claims[key] = _Claim({allocation})
            self._unknown[key] = None
            if key not in self._under_way:
                self._due[key] = None
        for key in set(before) - set(claims):
            wanted_by = self._claims[key].wanted_by
            wanted_by.discard(allocation)
            if not wanted_by:
                self._forget(key)

    def _forget(self, key: ClaimKey) -> None:
        """Forget a claim that no waiting allocation names any more."""
        del self._claims[key]
        for keys in (self._due, self._stale, self._unknown):
            keys.pop(key, None)
        self._version += 1
        self._cluster.volumes.drop("/".join(key), self._version)

    # --- when they are read -----------------------------------------------------------------------------------------

    def _expire(self, key: ClaimKey) -> None:
        fact = self._cluster.volumes.get("/".join(key))
        if fact is not None and key not in self._under_way:
            (self._due if fact.waits else self._stale)[key] = None

    def _next(self, most: int, *, is_planning: bool) -> list[ClaimKey]:
        """Return the claims to read now, at most `most`."""
        ready = itertools.chain(self._due, self._stale if is_planning else ())
        keys = list(itertools.islice(ready, max(0, most)))
        for key in keys:
            self._due.pop(key, None)
            self._stale.pop(key, None)
        return keys

    def _begin(self, key: ClaimKey, tasks: TaskGroup) -> asyncio.Task[None]:
        task = self._under_way[key] = tasks.create_task(self._read_behind(key))
        return task

    async def _read_behind(self, key: ClaimKey) -> None:
        liveness.leave()  # a read has a deadline; the tick does not wait for it
        begun_s, version = self._clock.monotonic(), self._version
        try:
            await self._read(key)
        finally:
            self._under_way.pop(key, None)
        self._is_slow = self._clock.monotonic() - begun_s > PATIENCE_S / 2
        if self._version != version:
            self._on_change()

    async def _read(self, key: ClaimKey) -> None:
        try:
            async with asyncio.timeout(READ_S):
                fact = await read_volume(self._kube, *key, is_home=self._is_home(key))
        except InvariantError:
            raise
        except (ControlPlaneError, TimeoutError) as exc:
            self._fail(key, exc)
            return
        claim = self._claims.get(key)
        if claim is not None:
            claim.is_read, claim.failures = True, 0
            self._put(key, fact)
            self._read_again(key, AGAIN_S if fact.waits else FRESH_S if fact.volume else UNBOUND_S)

    def _is_home(self, key: ClaimKey) -> bool:
        claim, allocations = self._claims.get(key), self._cluster.allocations
        facts = (allocations.get(name) for name in claim.wanted_by) if claim is not None else ()
        return any(fact is not None and fact.home == key[1] for fact in facts)

    def _fail(self, key: ClaimKey, error: Exception) -> None:
        claim = self._claims.get(key)
        if claim is None:
            return
        claim.failures += 1
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(claim.failures - 1, 10))
        _log.warning("volume claim not read", claim="/".join(key), error=str(error), pause_s=pause_s)
        if not claim.is_read:
            self._put(key, unreadable(*key, error))
        self._read_again(key, pause_s)

    def _read_again(self, key: ClaimKey, in_s: float) -> None:
        heapq.heappush(self._timers, (self._clock.monotonic() + in_s, key))

    def _put(self, key: ClaimKey, fact: VolumeFact) -> None:
        self._unknown.pop(key, None)
        self._version += 1
        self._cluster.volumes.put("/".join(key), fact, self._version)
