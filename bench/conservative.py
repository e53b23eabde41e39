"""Conservative backfill, a policy for comparison: each waiting piece of work has a reservation.

A piece gets the earliest start at which it delays no earlier piece, given their run limits. When work ends before its
limit, all reservations are made again, in the order of arrival. A reservation is for nodes: ranks that need a part of a
node are placed where the least is free. It is not part of the product. Source: Mu'alem and Feitelson, IEEE TPDS 12(6),
2001.
"""

import heapq
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_ENDS, _ARRIVES, _IS_DUE = 0, 1, 2


class RigidWork(Protocol):
    """The properties of a piece of work that the policy needs; it uses whole nodes, or a part of one."""

    @property
    def name(self) -> str: ...
    @property
    def submit(self) -> float: ...
    @property
    def duration(self) -> float: ...
    @property
    def limit(self) -> float: ...
    @property
    def ranks(self) -> int: ...
    @property
    def gpus(self) -> int: ...


class _Profile:
    """The free GPUs of each node from each of `times` on."""

    def __init__(self, now: float, nodes: int, gpus: int) -> None:
        self.times = [now]
        self.free: Ints = np.full((1, nodes), gpus, dtype=np.int64)

    def take(self, start: float, end: float, nodes: Ints, gpus: int) -> None:
        """Reserve `gpus` on each of these nodes from `start` to `end`."""
        first, last = self._cut(start), self._cut(end)
        self.free[first:last, nodes] -= gpus

    def earliest(self, piece: RigidWork) -> tuple[float, Ints]:
        """Return (the earliest start, the nodes)."""
        ends = np.searchsorted(self.times, [start + piece.limit for start in self.times], side="left")
        for at, start in enumerate(self.times):
            least = self.free[at : max(int(ends[at]), at + 1)].min(axis=0)
            fitting = np.flatnonzero(least >= piece.gpus)
            if fitting.size >= piece.ranks:
                order = np.argsort(least[fitting], kind="stable")
                return start, fitting[order[: piece.ranks]]
        raise ValueError(f"{piece.name} is larger than the pool")

    def forget(self, now: float) -> None:
        """Drop the times before `now`."""
        if self.times[0] < now:
            place = self._cut(now)
            self.times, self.free = self.times[place:], self.free[place:]

    def _cut(self, at: float) -> int:
        place = int(np.searchsorted(self.times, at, side="left"))
        if place == len(self.times) or self.times[place] != at:
            self.times.insert(place, at)
            self.free = np.insert(self.free, place, self.free[place - 1], axis=0)
        return place


def conservative(pieces: Sequence[RigidWork], nodes: int, gpus: int) -> dict[str, float]:
    """Return {name: start time}; a rank has at most the GPUs of a node."""
    by_name = {piece.name: piece for piece in pieces}
    events: list[tuple[float, int, str]] = [(piece.submit, _ARRIVES, piece.name) for piece in pieces]
    heapq.heapify(events)
    starts: dict[str, float] = {}
    running: dict[str, tuple[float, Ints]] = {}
    waiting: dict[str, tuple[float, Ints]] = {}
    """{name: (reserved start, reserved nodes)}, in the order of arrival"""
    profile = _Profile(0.0, nodes, gpus)
    while events:
        now = events[0][0]
        has_ended_early = False
        arrived: list[str] = []
        while events and events[0][0] == now:
            _, kind, name = heapq.heappop(events)
            if kind == _ARRIVES:
                arrived.append(name)
            elif kind == _ENDS:
                until, _ = running.pop(name)
                has_ended_early = has_ended_early or until > now
        if has_ended_early:
            arrived = [*waiting, *arrived]
            profile = _Profile(now, nodes, gpus)
            for name, (until, places) in running.items():
                profile.take(now, until, places, by_name[name].gpus)
        for name in arrived:
            piece = by_name[name]
            profile.forget(now)
            start, places = profile.earliest(piece)
            profile.take(start, start + piece.limit, places, piece.gpus)
            waiting[name] = (start, places)
            if start > now:
                heapq.heappush(events, (start, _IS_DUE, name))
        for name, (start, places) in list(waiting.items()):
            if start == now:
                piece = by_name[name]
                starts[name], running[name] = now, (now + piece.limit, places)
                del waiting[name]
                heapq.heappush(events, (now + min(piece.duration, piece.limit), _ENDS, name))
    return starts
