"""Redis as the simulation breaks it: a server that reports each addition, and can lose data, refuse calls and fail over
to an old replica.

Owns what happens to the server's state. A failover is to a replica that lacks the last additions and all that came
after them (acknowledgements, deliveries, expiries), on a machine whose clock is behind. Must not know what entries
mean, nor which process calls.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from slipway.runtime.clock import Clock
from slipway.streams.memory_server import MemoryServer, MemoryStream
from slipway.streams.pages import Id

REPLICA_LAG_MAX = 8
"""The maximum number of additions that a replica may lack."""
READ_S = 15.0
"""The longest time in seconds from the end of a container until its log is stored."""
BEHIND_S = 7.0
"""How far the clock of the next replica is behind, in seconds."""


class _Behind:
    """A clock whose `now` is behind."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.monotonic = clock.monotonic
        self.sleep = clock.sleep

    def now(self) -> float:
        return self._clock.now() - BEHIND_S


_State = tuple[dict[str, MemoryStream], dict[str, dict[str, bytes]], dict[str, float]]


class FaultyServer(MemoryServer):
    """The model of Redis, with a replica."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._losses: list[tuple[float, float]] = []
        self._is_away, self._away_from = False, 0.0
        self._world_clock = clock
        self.on_add: Callable[[str, dict[str, bytes], Id], None] = lambda _key, _fields, _id: None
        self.is_replicated: Callable[[], bool] = lambda: True
        """Whether a replica may ever take over: keeping one costs more than the rest of the model."""
        self._replica: deque[_State] = deque(maxlen=REPLICA_LAG_MAX)

    @property
    def losses(self) -> list[tuple[float, float]]:
        """Spans of time (from, to): data of a container or an allocation that ended within a span may be lost, or could
        not be added."""
        return [*self._losses, (self._away_from, math.inf)] if self._is_away else self._losses

    def _lose(self) -> None:
        """Note that all data up to now may be lost, also data that is just being added."""
        self._losses.append((0.0, self._world_clock.now()))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name not in ("absent", "refuses") or not hasattr(self, "_world_clock"):
            return
        is_away = self.absent or self.refuses is not None
        if is_away and not self._is_away:
            self._away_from = self._world_clock.now() - READ_S
        elif self._is_away and not is_away:
            self._losses.append((self._away_from, self._world_clock.now()))
        self._is_away = is_away

    def flush(self) -> None:
        super().flush()
        self._lose()

    def add(self, key: str, fields: Mapping[str, bytes], *, entry_id: Id | None = None, length_max: int = 0) -> Id:
        if self.is_replicated():
            self._replica.append(self._copy())
        added = super().add(key, fields, entry_id=entry_id, length_max=length_max)
        self.on_add(key, dict(fields), added)
        return added

    def fail_over(self, lost: int) -> None:
        """Let the replica take over; it lacks the last `lost` additions."""
        for _ in range(min(lost, len(self._replica))):
            self._streams, self._hashes, self._expires = self._replica.pop()
        self.clock = _Behind(self.clock)
        self._lose()
        self.notify()

    def evict(self, turn: int) -> str:
        """Delete one key, as Redis does under maxmemory; return its name."""
        found = sorted(self.keys())
        if not found:
            return ""
        key = found[turn % len(found)]
        self.drop(key)
        self._lose()
        self.notify()
        return key

    def ungroup(self) -> None:
        """Destroy every consumer group, as by hand, or as on a server that was rebuilt from its streams."""
        for stream in self._streams.values():
            stream.groups.clear()
        self.notify()

    def trim(self) -> None:
        """Empty every stream, as by XTRIM; its last id stays, and pending entries stay pending."""
        for stream in self._streams.values():
            stream.entries = {}
        self._lose()

    def _copy(self) -> _State:
        streams = {key: _copied(stream) for key, stream in self._streams.items()}
        return streams, {key: dict(values) for key, values in self._hashes.items()}, dict(self._expires)


def _copied(stream: MemoryStream) -> MemoryStream:
    groups = {
        name: dataclasses.replace(
            group,
            pending={entry_id: dataclasses.replace(item) for entry_id, item in group.pending.items()},
            heard=dict(group.heard),
        )
        for name, group in stream.groups.items()
    }
    return dataclasses.replace(stream, entries=dict(stream.entries), groups=groups)
