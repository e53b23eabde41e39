"""Findings of earlier plans on the same state, so that a tick without changes does not compute them again.

Owns no truth: every entry is what the plan would compute. The cache belongs to one state of nodes, places, queues, jobs
and ResourceQuotas, and to one policy. Each change of these makes `pool_state` begin a new cache; the arrival of work
alone does not. A plan reads and writes the cache only until it makes its first change.
"""

from collections.abc import Hashable

from slipway.scheduler.plan.state.plan_types import Explanation, Remedy

ENTRIES_MAX = 4096
ChangeKey = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""(uid of the allocation; uids of its rivals; of the heads; of the rivals that may get reservations)"""


class PlanCache:
    """The findings on one state."""

    def __init__(self) -> None:
        self._policy: Hashable = None
        self.no_place: dict[bytes, Explanation] = {}
        """{shape: why it has no place}"""
        self.victims: object = None
        """the index of possible victims (`preemption/victims.py`); depends on the state alone, not on the policy"""
        self.lowest: dict[str, int] | None = None
        """{queue: the lowest priority of its work that may be evicted}; depends on the state alone"""
        self.on_nodes: dict[bytes, dict[str, dict[str, int]]] = {}
        """{set of nodes: {queue: what it uses there}}; depends on the state alone"""
        self.changes: dict[ChangeKey, tuple[Remedy, ...] | None] = {}

    def for_policy(self, policy: Hashable) -> "PlanCache":
        """Return the findings, emptied if they belong to another policy or have become too many."""
        if policy != self._policy or len(self.no_place) + len(self.changes) > ENTRIES_MAX:
            self._policy = policy
            self.no_place, self.changes = {}, {}
        return self
