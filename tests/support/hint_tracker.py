"""The fate of each work hint, as the model of Redis saw it: sent, how often delivered, done, or a dead letter.

Owns the observation. When Redis itself loses something (FLUSHALL, a failover, a lost key or group, a trim by hand), all
hints sent until then are forgotten here too: no promise covers them.
"""

from collections.abc import Callable
from typing import Any

from slipway.errors import InvalidError
from slipway.ops.audit.evidence import HintHistory
from slipway.runtime.clock import Clock
from slipway.streams import codec, keys
from slipway.streams.memory_server import MemoryServer
from slipway.streams.pages import Id, id_text

_LOSSES = ("flush", "evict", "ungroup", "fail_over", "trim")
_Place = tuple[str, Id]


class _Hint:
    """One hint that was sent."""

    def __init__(self, allocation: str, added_at: float, *, is_poison: bool) -> None:
        self.allocation, self.added_at, self.is_poison = allocation, added_at, is_poison
        self.times = 0
        self.done_at: float | None = None
        self.dead_at: float | None = None


class HintTracker:
    """Listens to one server; create it before any hint is sent."""

    def __init__(self, server: MemoryServer, clock: Clock) -> None:
        self._clock = clock
        self._hints: dict[_Place, _Hint] = {}
        self._listen(server, "add", self._added)
        self._listen(server, "deliver", self._delivered)
        self._listen(server, "claim", self._claimed)
        self._listen(server, "acknowledge", self._acknowledged)
        for loss in _LOSSES:
            if hasattr(server, loss):
                self._listen(server, loss, lambda *_given, **_more: self._hints.clear())

    def deliveries(self) -> list[HintHistory]:
        """Every hint, in the order in which they were sent."""
        return [
            HintHistory(
                hint=f"{key}/{id_text(entry_id)}",
                allocation=hint.allocation,
                times=hint.times,
                added_at=hint.added_at,
                done_at=hint.done_at,
                dead_at=hint.dead_at,
                is_poison=hint.is_poison,
            )
            for (key, entry_id), hint in self._hints.items()
        ]

    def _listen(self, server: Any, method: str, take: Callable[..., None]) -> None:
        call = getattr(server, method)

        def heard(*given: Any, **more: Any) -> Any:
            answer = call(*given, **more)
            take(answer, *given, **more)
            return answer

        setattr(server, method, heard)

    def _added(self, entry_id: Id, key: str, fields: dict[str, bytes], /, **_more: Any) -> None:
        if key == keys.DEAD.prefix:
            place = fields.get("source", b"").decode(), codec.cursor_parts(fields.get("entry", b"0-0").decode())
            if place in self._hints:
                self._hints[place].dead_at = self._clock.now()
        elif key in keys.WORK_KEYS:
            try:
                hint = codec.decode_claim(0, id_text(entry_id), 1, fields).hint
            except InvalidError:
                hint = None
            name = str(hint.allocation) if hint is not None else ""
            self._hints[key, entry_id] = _Hint(name, self._clock.now(), is_poison=hint is None)

    def _delivered(self, answer: list[tuple[Id, Any]], key: str, *_given: Any, **_more: Any) -> None:
        if answer:  # most polls find nothing
            self._count(key, [entry_id for entry_id, _ in answer])

    def _claimed(self, answer: tuple[Id, list[tuple[Id, Any, int]]], key: str, *_given: Any, **_more: Any) -> None:
        self._count(key, [entry_id for entry_id, _, _ in answer[1]])

    def _acknowledged(self, _answer: None, key: str, _group: str, entry_ids: list[Id]) -> None:
        for entry_id in entry_ids:
            hint = self._hints.get((key, entry_id))
            if hint is not None and hint.dead_at is None:
                hint.done_at = self._clock.now()

    def _count(self, key: str, entry_ids: list[Id]) -> None:
        for entry_id in entry_ids:
            if (key, entry_id) in self._hints:
                self._hints[key, entry_id].times += 1
