"""Deletes allocations that ended long ago: beyond an age, or beyond a number per workspace.

Owns which allocations are deleted. The object is the only record: once it is deleted, the exits of its ranks are gone
too, and its stream expires by itself. Usage is kept: an allocation is deleted only once it is in the daily totals.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import NotFoundError, StaleError, TransientError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.watcher.informers import Informers
from slipway.watcher.ports import UsageLedger, WatcherWriter

DELETES_MAX = 500
"""The most deletes of one round."""
AT_ONCE = 8

_log = log.get_logger(__name__)


class Retention:
    """Deletes ended allocations that are too old or too many."""

    def __init__(
        self,
        kube: WatcherWriter,
        informers: Informers,
        accounts: UsageLedger,
        clock: Clock,
        *,
        age_s: float,
        count_max: int,
        deletes_max: int = DELETES_MAX,
    ) -> None:
        self._kube = kube
        self._informers = informers
        self._accounts = accounts
        self._clock = clock
        self._age_s = age_s
        self._count_max = count_max
        self._deletes_max = deletes_max
        self.is_behind = False
        """whether the last round left due allocations: too many for one round, or not in the daily totals yet"""

    async def step(self) -> int:
        """Make one round; return how many allocations were deleted."""
        due = expired(
            self._informers.allocations.items(), now=self._clock.now(), age_s=self._age_s, count_max=self._count_max
        )
        # All due allocations are queued for the totals now, for the next round:
        # one write of a day's totals adds many of them.
        for allocation in due:
            self._accounts.offer(allocation)
        settled = [allocation for allocation in due if self._accounts.is_settled(allocation)][: self._deletes_max]
        deleted, gone, is_refused = 0, 0, False
        for start in range(0, len(settled), AT_ONCE):
            some = settled[start : start + AT_ONCE]
            answers = await asyncio.gather(*(self._delete(allocation) for allocation in some))
            deleted += answers.count(True)
            gone += answers.count(False)
            liveness.beat()
            if is_refused := None in answers:
                break
        self.is_behind = len(due) > deleted + gone and not is_refused
        if deleted:
            _log.info("ended allocations deleted", count=deleted)
        return deleted

    async def _delete(self, allocation: Allocation) -> bool | None:
        """Whether it existed and is deleted; None if the API server was not able to delete it now."""
        meta = allocation.metadata
        try:
            await self._kube.delete(ALLOCATIONS, meta.name, namespace=meta.namespace, uid=meta.uid)
        except (NotFoundError, StaleError):
            return False
        except TransientError as error:
            _log.warning("allocation not deleted yet", allocation=meta.name, error=str(error))
            return None
        return True


def expired(allocations: Iterable[Allocation], *, now: float, age_s: float, count_max: int) -> list[Allocation]:
    """Return the ended allocations that are too old, or too many in their workspace; the oldest first. Pure.

    An allocation that still has its finalizer is left out: its teardown has not ended.
    """
    by_workspace: dict[str, list[tuple[float, str, Allocation]]] = defaultdict(list)
    for allocation in allocations:
        meta, status = allocation.metadata, allocation.status
        is_over = status.phase is Phase.TERMINATED and status.ended_at
        if is_over and meta.deletion_timestamp is None and TEARDOWN_FINALIZER not in meta.finalizers:
            by_workspace[meta.namespace].append((parse_time(status.ended_at), meta.uid, allocation))
    due: list[tuple[float, str, Allocation]] = []
    for ended in by_workspace.values():
        ended.sort(key=lambda item: item[:2])
        surplus = max(0, len(ended) - count_max)
        due.extend(item for index, item in enumerate(ended) if index < surplus or item[0] < now - age_s)
    return [allocation for _, _, allocation in sorted(due, key=lambda item: item[:2])]
