"""The faults of a run, and their order: drawn from a seed. Pure.

Owns the list of kinds. `nemesis.py` injects them.

Invariants: every kind occurs once before any occurs twice; kinds of one group affect the same thing and never overlap;
an equal seed and length give equal waves.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from tests.support import chart

WAVE_S = 18.0
"""The seconds of one wave, including its recovery."""
WIDTH_MAX = 8


class Group(StrEnum):
    """The part that a fault affects."""

    KILLS = "kills"
    STOPS = "stops"
    CLOCKS = "clocks"
    REDIS = "redis"
    WIRE = "wire"
    """the connection between our services and Redis"""
    SERVER = "server"
    CALLS = "calls"
    WATCHES = "watches"
    NODES = "nodes"
    OBJECTS = "objects"
    OTHERS = "others"
    """trouble of one tenant, which must not affect others"""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A class of faults. `lasts_s`: the least and most seconds that it lasts; in short runs less."""

    name: str
    group: Group
    lasts_s: tuple[float, float] = (0.0, 0.0)
    needs: str = ""
    """the program that the machine must have for it"""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a run. `chance` seeds the choices made during it: its victims."""

    kind: str
    group: Group
    lasts_s: float
    chance: int

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.kind}{lasts}"


ROLES = ("api", "leader", "standby", "podworker", "watcher")
"""The roles of processes that are killed and stopped; a scheduler is the leader or the standby."""
FAKETIME = "faketime"
EMPTYING = frozenset({"redis FLUSHALL", "redis comes back empty"})
"""Faults after which Redis contains nothing of the time before."""
_SHORT, _LONG = (2.0, 5.0), (5.0, 40.0)


def _kinds() -> Iterator[Kind]:
    for role in ROLES:
        yield Kind(name=f"kill -9 {role}", group=Group.KILLS)
        yield Kind(name=f"SIGSTOP {role}", group=Group.STOPS, lasts_s=_LONG)
    yield Kind(name="rolling restart", group=Group.KILLS)
    yield Kind(name="rolling upgrade", group=Group.KILLS, lasts_s=(5.0, 15.0))
    for name in ("clock +10 min", "clock -10 min", "clock rate 1.5", "clock rate 0.5"):
        yield Kind(name=name, group=Group.CLOCKS, lasts_s=(4.0, 12.0), needs=FAKETIME)
    for name in ("redis kill -9", "redis torn tail", "redis FLUSHALL", "redis comes back empty"):
        yield Kind(name=name, group=Group.REDIS, lasts_s=(0.5, 3.0))
    yield Kind(name="redis failover", group=Group.REDIS, lasts_s=(1.0, 5.0))
    for name in ("redis SIGSTOP", "redis OOM"):
        yield Kind(name=name, group=Group.REDIS, lasts_s=(3.0, 8.0))
    for name in ("redis cut off", "redis silent", "redis slow", "redis torn replies"):
        yield Kind(name=name, group=Group.WIRE, lasts_s=(3.0, 8.0))
    for name in ("apiserver restart", "apiserver kill -9", "etcd restart"):
        yield Kind(name=name, group=Group.SERVER, lasts_s=(0.5, 3.0))
    yield Kind(name="etcd SIGSTOP", group=Group.SERVER, lasts_s=(2.0, 8.0))
    for name in ("429 Retry-After", "500", "503", "504", "reset mid body"):
        yield Kind(name=name, group=Group.CALLS, lasts_s=_SHORT)
    for name in ("slow body 1 B/s", "timeout applied", "timeout not applied"):
        yield Kind(name=name, group=Group.CALLS, lasts_s=(4.0, 8.0))
    for name in ("watch stalled", "watch closed", "watch 410", "watch duplicated", "watch delayed"):
        yield Kind(name=name, group=Group.WATCHES, lasts_s=_SHORT)
    yield Kind(name="node lost", group=Group.NODES, lasts_s=_SHORT)
    yield Kind(name="node removed", group=Group.NODES, lasts_s=_SHORT)
    yield Kind(name="pods deleted", group=Group.OBJECTS)
    yield Kind(name="namespace deleted", group=Group.OBJECTS)
    for name in ("others over quota", "others refused"):
        yield Kind(name=name, group=Group.OTHERS, lasts_s=(6.0, 10.0))


KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _kinds()}


class Schedule:
    """The waves of one run: each has a few faults at the same time, of different groups."""

    def __init__(self, seed: int, minutes: float, kinds: Sequence[Kind]) -> None:
        self.kinds = list(kinds)
        self.width = min(WIDTH_MAX, max(1, int(len(self.kinds) * WAVE_S / (minutes * 60.0))))
        """The number of faults at the same time at first; later up to one more."""
        self._longest_s = min(_LONG[1], max(_LONG[0] + 0.5, 3.0 * minutes))
        self._random = random.Random(f"chaos/{seed}")

    def waves(self) -> Iterator[tuple[bool, list[Fault]]]:
        """Yield endlessly: whether the wave is needed for every kind to occur once, and its faults."""
        is_needed, width = True, self.width
        while True:
            deck = list(self.kinds)
            self._random.shuffle(deck)
            while deck:
                yield is_needed, [self._fault(kind) for kind in _take(deck, width)]
                width = self.width if is_needed else self._random.randint(self.width, self.width + 1)
            is_needed = False

    def _fault(self, kind: Kind) -> Fault:
        low, high = kind.lasts_s
        high = max(low, min(high, self._longest_s))
        lasts_s = round(self._random.uniform(low, high), 1)
        return Fault(kind=kind.name, group=kind.group, lasts_s=lasts_s, chance=self._random.getrandbits(32))


def _take(deck: list[Kind], width: int) -> list[Kind]:
    """Remove the next few from the deck: of different groups, and first of the groups with most left."""
    left: dict[Group, list[Kind]] = {}
    for kind in deck:
        left.setdefault(kind.group, []).append(kind)
    longest = sorted(left.values(), key=len, reverse=True)[:width]
    taken = [kinds[0] for kinds in longest]
    for kind in taken:
        deck.remove(kind)
    return taken


def replicas_of(service: str, names: Sequence[str]) -> list[str]:
    """The processes of a service among these."""
    assert service in chart.SERVICES
    return [name for name in names if name.partition("-")[0] == service]
