"""A queue of keys ordered by time: which keys are due, and when the next one is due.

Pure data. A key has one time; setting another one replaces it. `set` costs the logarithm of the number of keys, `next`
costs next to nothing, `due` costs the number of due keys.
"""

from heapq import heapify, heappop, heappush

STALE_MAX = 1000
"""The number of replaced times that are kept, in addition to as many as there are keys."""


class TimerQueue:
    """The time of each key, and a heap of these times."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """A heap that also contains replaced times, which are dropped when they become due."""

    def set(self, key: str, at: float | None) -> None:
        """Set the time of `key` (epoch seconds), or remove it (None)."""
        if at is None:
            self._at.pop(key, None)
        elif self._at.get(key) != at:
            self._at[key] = at
            heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._at) + STALE_MAX:
            self._heap = [(at, key) for key, at in self._at.items()]
            heapify(self._heap)

    @property
    def size(self) -> int:
        """The number of times in the heap, including replaced ones."""
        return len(self._heap)

    def due(self, now: float) -> list[str]:
        """Return the keys whose time has come, the earliest first; they stay due until they are set again."""
        found: dict[str, float] = {}
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._at.get(key) == at:
                found[key] = at
        for key, at in found.items():
            heappush(self._heap, (at, key))
        return list(found)

    def next(self) -> float | None:
        """Return the earliest time, even if it has passed; None without any key."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._at)
