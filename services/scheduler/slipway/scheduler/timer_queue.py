"""Keys in order of a time: which are due, and when the next one is.

Pure data. A key has one time; setting another one replaces it. Setting costs the logarithm of the number of keys,
asking when the next is due costs nothing, asking which are due costs their number.
"""

from heapq import heapify, heappop, heappush

STALE_MAX = 1000
"""So many replaced times are kept beyond as many as there are current ones."""


class Alarms:
    """Times by key."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """Also holds times that were replaced since; those are dropped when they come up."""

    def set(self, key: str, at: float | None) -> None:
        """The time of `key` (epoch seconds), or none any more."""
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
        """How many times are kept, the replaced ones included."""
        return len(self._heap)

    def due(self, now: float) -> list[str]:
        """The keys whose time has come, the earliest first; they stay due until they are set again."""
        found: dict[str, float] = {}
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._at.get(key) == at:
                found[key] = at
        for key, at in found.items():
            heappush(self._heap, (at, key))
        return list(found)

    def next(self) -> float | None:
        """The earliest time, past or not."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._at)
