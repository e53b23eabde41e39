"""What an earlier plan found out about this very state: a tick in which nothing moved does not find it out again.

Owns no truth: every entry is what the plan would compute. It belongs to one state of nodes, places, queues and jobs
(the columns begin a new one with every change of those, not with what merely arrives), and to one policy; a plan reads
and writes it only while it has taken nothing itself.
"""

from collections.abc import Hashable

from slipway.scheduler.plan.state.plan_types import Explanation, Remedy

ENTRIES_MAX = 4096
ChangeKey = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""(uid; the uids of its rivals, of the heads, of the rivals for which room is kept when they have their turn)"""


class Memo:
    """Findings on one state."""

    def __init__(self) -> None:
        self._policy: Hashable = None
        self.no_place: dict[bytes, Explanation] = {}
        """{shape: why it has no place}"""
        self.victims: object = None
        """what may be evicted (`preempt/victims.py`): of the state alone, under any policy"""
        self.lowest: dict[str, int] | None = None
        """{queue: the lowest priority of its work that may be evicted}; likewise"""
        self.on_nodes: dict[bytes, dict[str, dict[str, int]]] = {}
        """{set of nodes: {queue: what it holds there}}; likewise"""
        self.changes: dict[ChangeKey, tuple[Remedy, ...] | None] = {}

    def under(self, policy: Hashable) -> "Memo":
        """The findings, emptied if they were made under another policy or have become too many."""
        if policy != self._policy or len(self.no_place) + len(self.changes) > ENTRIES_MAX:
            self._policy = policy
            self.no_place, self.changes = {}, {}
        return self
