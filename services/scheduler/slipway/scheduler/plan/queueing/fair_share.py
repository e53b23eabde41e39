"""Which queue's head is next: a tournament through the queue tree, level by level.

At each inner queue the heads of its children compete. The winner is the head whose branch would be left least above its
due after that head's admission; it continues to the next level. So what one team of a department leaves unused is given
to its other teams before it is given to another department.

Equal shares are decided by `ordering.head_key`, which depends on the head and its own queue. Where the pool counts past
use, it comes right after the priority of the head's queue: the branch with less past use by weight wins. In a tree
without inner queues the result is the plain order by share. Knows nothing of why a head is blocked.

Costs O(depth x log queues) per step: an admission changes only the branches above its queue. A queue whose use
decreases is entered again (`update`).
Source: Kueue's fair-sharing tournament, Volcano's hdrf.
"""

import heapq
from collections.abc import Iterable, Mapping

from slipway.scheduler.plan.queueing.branches import Due
from slipway.scheduler.plan.queueing.queue_tree import ROOT, QueueTree
from slipway.scheduler.plan.state.ordering import HeadKey

_Entry = tuple[Due, int, int, HeadKey, str, int]
"""(share, first part of the head's key, past use of the child, key of the head, child, version)

Only the newest entry of a child is valid.
"""


class FairShareTournament:
    """The heads of all queues of one tick."""

    def __init__(self, tree: QueueTree) -> None:
        self._tree = tree
        self._heads: dict[str, tuple[Mapping[str, int], HeadKey]] = {}
        """{leaf queue: (what its head requests, the head's key)}"""
        self._entries: dict[str, list[_Entry]] = {ROOT: []}
        """{inner queue: the entries of its children}"""
        self._versions: dict[str, int] = {}
        self._stale: str | None = None
        """the queue whose head was taken last; its use since then is not yet in the shares above it"""

    def enter(self, name: str, demand: Mapping[str, int], key: HeadKey) -> None:
        """Set the head of queue `name`."""
        self._heads[name] = (demand, key)
        if self._stale == name:
            self._stale = None  # the shares are updated below, with what the queue has used since `pop`
        self._settle()
        self._promote(name)

    def update(self, names: Iterable[str]) -> None:
        """Update the shares of queues whose use has decreased."""
        for name in sorted(set(names)):
            self._promote(name)

    def pop(self) -> str | None:
        """Return the queue whose head is next, which leaves until it enters again; None when none is left."""
        self._settle()
        name = ROOT
        while (top := self._top(name)) is not None:
            name = top[4]
            if name in self._heads:
                del self._heads[name]
                self._stale = name
                return name
        return None

    def _settle(self) -> None:
        stale, self._stale = self._stale, None
        if stale is not None:
            self._promote(stale)

    def _promote(self, name: str) -> None:
        """Enter the best head of `name` into the queue above it, and so on to the root."""
        while name != ROOT:
            above = self._tree.parent(name)
            version = self._versions[name] = self._versions.get(name, 0) + 1
            best = self._best(name)
            if best is not None:
                demand, key = self._heads[best]
                share, before = self._tree.shifted_share(name, demand), self._tree.used_before(name)
                entry = (share, key[0], before, key, name, version)
                heapq.heappush(self._entries.setdefault(above, []), entry)
            name = above

    def _best(self, name: str) -> str | None:
        """Return the leaf queue whose head wins within `name`; None when there is no head."""
        while name not in self._heads:
            top = self._top(name)
            if top is None:
                return None
            name = top[4]
        return name

    def _top(self, name: str) -> _Entry | None:
        entries = self._entries.get(name, [])
        while entries and entries[0][5] != self._versions[entries[0][4]]:
            heapq.heappop(entries)
        return entries[0] if entries else None
