"""Decides when a status that only reports progress is written: at once or, under load, together with the next status.

A status write costs the API server about as much as the rest of a launch, and a pod that has a node usually runs a
moment later. While many allocations start, the transitions Pulling and Starting are therefore delayed and written
together with Running. Does not know how anything is written.

Promises: only progress to Pulling and Starting is delayed. A delayed status is written at most `HELD_S_MAX` after it
was first seen. Under low load, the active replica delays only the progress of large gangs.
"""

from collections.abc import Callable

from slipway.crd.members import rank_count
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.runtime.clock import Clock
from slipway.watcher.reduce import Reduction

AT_ONCE_MAX = 10.0
AT_ONCE_PER_S = 2.0
"""After a pause, `AT_ONCE_MAX` writes are made without delay; under steady load, `AT_ONCE_PER_S` a second."""
HELD_S_MAX = 5.0
LARGE_RANKS = 64
"""A status with so many ranks is large: its progress is always delayed."""
_BEFORE = (Phase.ASSIGNED, Phase.PULLING)
_AFTER = (Phase.PULLING, Phase.STARTING)


class WritePace:
    """Limits the writes without delay by a token bucket.

    `acts_first` is whether this replica may write without delay. A standby may not: it leaves progress to the primary.
    """

    def __init__(self, clock: Clock, acts_first: Callable[[], bool] = lambda: True) -> None:
        self._clock = clock
        self._acts_first = acts_first
        self._places = AT_ONCE_MAX
        self._filled_at = clock.monotonic()
        self._held: dict[str, tuple[int, float]] = {}
        """{uid: (seq of the status before the delayed write, since when)}"""

    def wait_s(self, before: Allocation, reduction: Reduction) -> float:
        """Return how many seconds to wait before `reduction` is written; 0: now."""
        uid = before.metadata.uid
        if not _is_mere_progress(before, reduction):
            self._held.pop(uid, None)
            return 0.0
        now = self._clock.monotonic()
        seq, since = self._held.get(uid, (-1, now))
        if seq == before.status.seq:
            wait_s = since + HELD_S_MAX - now
        else:
            is_large = rank_count(before) >= LARGE_RANKS
            wait_s = HELD_S_MAX if is_large or not self._take_token(now) else 0.0
            self._held[uid] = before.status.seq, now
        if wait_s <= 0:
            self._held.pop(uid, None)
        return wait_s

    def forget(self, uid: str) -> None:
        """Forget an allocation that is gone."""
        self._held.pop(uid, None)

    def _take_token(self, now: float) -> bool:
        self._places = min(AT_ONCE_MAX, self._places + (now - self._filled_at) * AT_ONCE_PER_S)
        self._filled_at = now
        if self._places < 1 or not self._acts_first():
            return False
        self._places -= 1
        return True


def _is_mere_progress(before: Allocation, reduction: Reduction) -> bool:
    phases = before.status.phase in _BEFORE and reduction.allocation.status.phase in _AFTER
    clears = reduction.drop_pod_finalizers or reduction.force_deletes or reduction.drop_cr_finalizer
    return reduction.changed and phases and not clears
