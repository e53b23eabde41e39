"""What queues and users have used of GPUs before, as a plan looks at it: faded, in whole numbers. Pure.

Owns how a queue's past is held against what it deserved (`step_of`) and how users of one queue are compared
(`UserTurns`). Knows nothing of the tree. A pool without `fairShare` has no past: then nothing here is asked.

Invariants: of two equal queues the one that has used more never gets the larger step; of two users of a queue the one
that has used more never goes first among work of one priority.
"""

from collections.abc import Iterable, Mapping

import msgspec

from slipway.model.decay import ByUser, level
from slipway.model.facts import LEAST_USED, PoolFact, QueueFact

STEPS = 8
"""The step of a queue whose past does not count: what queues deserve shifts in eighths."""
STEP_MIN, STEP_MAX = 4, 16
"""The least and the most: a queue's weight is halved or doubled, no more."""


class PastUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pool at the time of one plan."""

    half_life_ms: int
    history: int = 1000
    """thousandths: how much the past shifts what queues deserve"""
    used: ByUser = {}
    """{queue: {user: GPU-milliseconds}}; of leaf queues"""
    held: Mapping[tuple[str, str], int] = {}
    """{(queue, user): GPUs in use, in `GPU_UNITS`}"""

    def of_queue(self, queue: str) -> int:
        """What the work of `queue` itself has used (GPU-milliseconds)."""
        return sum(self.used.get(queue, {}).values())


def user_queues(pool: PoolFact, queues: Iterable[QueueFact]) -> frozenset[str]:
    """The queues whose users take turns."""
    if pool.fair_share is None:
        return frozenset()
    return frozenset(queue.name for queue in queues if queue.user_order == LEAST_USED)


def step_of(used: int, expected: int, history: int) -> int:
    """By how many eighths a queue's weight counts, which has used `used` and deserved `expected`.

    KAI's formula, weight + k * (weight - usage), where usage is measured in what the queue deserved over the same time.
    """
    if used and expected <= 0:
        return STEP_MIN if history else STEPS
    excess = 1000 - (used * 1000 // expected if expected > 0 else 0)
    eighths = (STEPS * (1_000_000 + history * excess) + 500_000) // 1_000_000
    return min(max(eighths, STEP_MIN), STEP_MAX)


class UserTurns:
    """The users of one queue during one plan: whose work goes first. What is admitted counts at once."""

    def __init__(self, past: PastUse, queue: str) -> None:
        self._used = past.used.get(queue, {})
        self._held = {user: units for (name, user), units in past.held.items() if name == queue}
        self._levels: dict[str, int] = {}

    def charge(self, user: str, gpu_units: int) -> None:
        """Work of `user` with so many GPUs starts."""
        self._held[user] = self._held.get(user, 0) + gpu_units
        self._levels.pop(user, None)

    def level(self, user: str) -> int:
        """Ascending: who has used least goes first."""
        found = self._levels.get(user)
        if found is None:
            found = self._levels[user] = level(self._used.get(user, 0), self._held.get(user, 0))
        return found
