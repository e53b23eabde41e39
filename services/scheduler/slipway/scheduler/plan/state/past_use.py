"""The past GPU use of queues and users, as a plan sees it: decayed, in whole numbers. Pure.

Owns how a queue's past changes its weight (`step_of`) and how the users of one queue are compared (`UserTurns`). Knows
nothing of the tree. A pool without `fairShare` has no past, and then nothing here is called.

Invariants: of two equal queues, the one that has used more never gets the larger step. Of two users of a queue with
work of one priority, the one that has used more never comes first.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

import msgspec

from slipway.model.decay import ByUser, level
from slipway.model.facts import LEAST_USED, PoolFact, QueueFact

STEPS = 8
"""The step of a queue whose past has no effect: weights change in eighths."""
STEP_MIN, STEP_MAX = 4, 16
"""The least and the greatest step: a queue's weight is at most halved or doubled."""


class PastUse(msgspec.Struct, frozen=True, kw_only=True):
    """The past use of one pool at the time of one plan."""

    half_life_ms: int
    history: int = 1000
    """thousandths: how strongly past use changes what queues deserve"""
    used: ByUser = {}
    """{queue: {user: GPU-milliseconds}}, for leaf queues"""
    held: Mapping[str, Mapping[str, int]] = {}
    """{queue: {user: GPUs in use, in `GPU_UNITS`}}"""

    def of_queue(self, queue: str) -> int:
        """Return what the work of `queue` itself has used (GPU-milliseconds)."""
        return sum(self.used.get(queue, {}).values())


def user_queues(pool: PoolFact, queues: Iterable[QueueFact]) -> frozenset[str]:
    """Return the queues whose users take turns."""
    if pool.fair_share is None:
        return frozenset()
    return frozenset(queue.name for queue in queues if queue.user_order == LEAST_USED)


def step_of(used: int, expected: int, history: int) -> int:
    """Return the eighths of its weight that a queue gets when it has used `used` and deserved `expected`.

    This is KAI's formula, weight + k * (weight - usage). Usage is measured relative to what the queue deserved in the
    same time.
    """
    if used and expected <= 0:
        return STEP_MIN if history else STEPS
    excess = 1000 - (used * 1000 // expected if expected > 0 else 0)
    eighths = (STEPS * (1_000_000 + history * excess) + 500_000) // 1_000_000
    return min(max(eighths, STEP_MIN), STEP_MAX)


class UserTurns(dict[str, int]):
    """{user: level of use} of one queue during one plan. The user with the lowest level comes first.

    A level is computed when it is read first. An admission changes the order at once.
    """

    def __init__(self, past: PastUse, queue: str, waiting: Iterable[str] = ()) -> None:
        super().__init__()
        self._used = past.used.get(queue, {})
        self._held = dict(past.held.get(queue, {}))
        self.order = sorted((self[user], user) for user in waiting)
        """(level, user) of the users whose work waits, ascending"""
        self.charges = 0
        """how often `charge` was called: until it changes, the levels stay the same"""

    def __missing__(self, user: str) -> int:
        found = self[user] = level(self._used.get(user, 0), self._held.get(user, 0))
        return found

    def charge(self, user: str, gpu_units: int) -> None:
        """Record that work of `user` with `gpu_units` GPUs starts."""
        self.charges += 1
        before = (self[user], user)
        self._held[user] = self._held.get(user, 0) + gpu_units
        del self[user]
        at = bisect_left(self.order, before)
        if self.order[at : at + 1] == [before]:
            del self.order[at]
            insort(self.order, (self[user], user))
