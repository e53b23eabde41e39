"""What can go wrong between a process and the world: every call of a simulated process passes here.

Owns the numbering of effects, reads and deliveries, and where a fault strikes. An effect is a call that may change
Kubernetes or Redis; each process role numbers its own from 1, over all its restarts, so that an equal run has equal
numbers. A `Fault` names one (role, number, moment) and what happens there. Must not know what the services are for.

A crash kills the process inside the call: nothing of it runs afterwards (`support/loop.py`). An answer that is lost
after the call took effect is raised after it, the others before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from slipway.errors import ControlPlaneError
from slipway.runtime.clock import Random
from slipway.streams.ports import Claimed
from tests.support.fault_answers import error_of
from tests.support.fault_kinds import Effect, Fault, Kind
from tests.support.loop import Owner
from tests.support.world_clock import ProcessClock

__all__ = ["Effect", "Fault", "Kind", "Process", "Trouble", "noted"]

RECURRING_MAX = 3
"""Of what a process repeats for ever (renewals, beats, heartbeats) so many are numbered."""
READS_MAX = 4
"""Of the reads of one kind of object by one role so many are numbered."""


class _AtOnce(Awaitable[None]):
    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


_AT_ONCE = _AtOnce()


class Process(Owner):
    """One incarnation of one service: an owner that knows its role."""

    def __init__(self, role: str, generation: int, clock: ProcessClock) -> None:
        super().__init__(f"{role}-{generation}")
        self.role = role
        self.clock = clock
        self.generation = generation
        self.has_ended = False
        """It was asked to end, and did."""
        self.cut_until = -1.0
        """By the loop's time: no call of it reaches the API server before."""
        self.stale_until = -1.0
        self.stale_version = 0
        """Its API replica stands still at this version until then."""


class Trouble:
    """Numbers the effects of all processes, and lets the planned faults strike.

    `befall` is what the world does for faults that are more than an answer; it may await.
    """

    def __init__(self, faults: tuple[Fault, ...], random: Random, now: Callable[[], float]) -> None:
        self.effects: list[Effect] = []
        self.struck: list[tuple[float, Fault]] = []
        self.reads: list[Effect] = []
        self.deliveries: list[Effect] = []
        self.befall: Callable[[Process, Effect, Fault], Awaitable[bool]] = _nothing
        self.claimed: Callable[[list[Claimed]], None] = lambda _claimed: None
        self.later: Callable[[float, Callable[[], Awaitable[Any]]], None] = lambda _seconds, _call: None
        """Has a call happen without anybody waiting for it."""
        self.lasts: Callable[[float], None] = lambda _seconds: None
        """Told how long a fault goes on that is not over at once."""
        self.acking: Callable[[Process, list[Claimed]], None] = lambda _process, _claimed: None
        self.latency_s = 0.002
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.is_closed = False
        """The run is over: nobody reaches anything any more."""
        self.reached: Callable[[str, int, str], None] = lambda _role, _number, _moment: None
        """Told of every boundary just before what is planned there is looked up; it may plant something there."""
        self.may_come: Callable[[Kind], bool] = lambda _kind: False
        """Whether a fault of the kind may still be planted."""
        self._faults: dict[tuple[str, int, str], Fault] = {}
        self._numbers: dict[str, int] = {}
        self._recurring: dict[tuple[str, str, str], int] = {}
        self._delivered: set[tuple[str, int]] = set()
        self._random = random
        self._now = now
        self.plant(faults)

    def plant(self, faults: Iterable[Fault]) -> None:
        """These strike too, when their boundary comes."""
        self._faults |= {(fault.role, fault.number, fault.moment): fault for fault in faults}

    def expects(self, kind: Kind) -> bool:
        """Whether a fault of the kind may still strike: nobody need be prepared for others."""
        return any(fault.kind is kind for fault in self._faults.values()) or self.may_come(kind)

    def latency(self) -> Awaitable[None]:
        """The way there, or back. Half of them take no time: who waits for nobody is overtaken by nobody."""
        drawn = 2.0 * self._random.random() - 1.0
        return self.sleep(drawn * self.latency_s) if drawn > 0.0 else _AT_ONCE

    def check(self, process: Process) -> None:
        """A process that is being thrown away reaches nothing any more."""
        if process.is_dead or self.is_closed:
            raise asyncio.CancelledError

    @property
    def boundaries(self) -> list[Effect]:
        """Everything that has a number: effects, reads and deliveries."""
        return [each for each in (*self.effects, *self.reads, *self.deliveries) if each.number]

    def number(self, process: Process, effect: Effect) -> None:
        """Give the effect its number and log it. What recurs for ever is numbered a few times only."""
        self._count(process, effect, RECURRING_MAX if effect.is_recurring else 0)
        self.effects.append(effect)

    def number_read(self, process: Process, effect: Effect) -> None:
        """The same for a read: of equal ones, a few."""
        self._count(process, effect, READS_MAX)
        if effect.number:
            self.reads.append(effect)

    def number_delivery(self, effect: Effect, number: int) -> None:
        """What a watch delivers has its version for a number."""
        effect.number, effect.at = number, self._now()
        if (effect.role, number) not in self._delivered:
            self._delivered.add((effect.role, number))
            self.deliveries.append(effect)

    async def strike(self, process: Process, effect: Effect, moment: str) -> Kind | None:
        """What is planned for this moment happens: it is raised, the world does it, or the caller gets it to do."""
        if not effect.number:
            return None
        self.reached(effect.role, effect.number, moment)
        fault = self._faults.pop((effect.role, effect.number, moment), None)
        if fault is None:
            return None
        self.struck.append((self._now(), fault))
        if await self.befall(process, effect, fault):
            return None
        error = error_of(fault.kind, effect)
        if error is None:
            return fault.kind
        effect.outcome = type(error).__name__
        raise error

    def _count(self, process: Process, effect: Effect, often_max: int) -> None:
        effect.at = self._now()
        if often_max:
            kind = (effect.role, effect.verb, effect.target)
            self._recurring[kind] = self._recurring.get(kind, 0) + 1
            if self._recurring[kind] > often_max:
                return
        effect.number = self._numbers[effect.role] = self._numbers.get(effect.role, 0) + 1


@contextmanager
def noted(effect: Effect) -> Generator[None]:
    try:
        yield
    except ControlPlaneError as error:
        effect.outcome = type(error).__name__
        raise
    effect.outcome = "ok"


async def _nothing(_process: Process, _effect: Effect, _fault: Fault) -> bool:
    return False
