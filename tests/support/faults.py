"""What can go wrong between a process and the world: every call of a simulated process passes through this module.

Owns the numbering of effects, reads and deliveries, and where a fault strikes. An effect is a call that may change
Kubernetes or Redis; each process role numbers its own from 1, over all its restarts, so that an equal run has equal
numbers. A `Fault` names one (role, number, moment) and what happens there. Must not know what the services are for.

A crash kills the process inside the call: nothing of it runs afterwards (`support/loop.py`). An answer that is lost
after the call took effect is raised after the call, the other errors before it.
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

__all__ = ["Effect", "Fault", "FaultInjector", "Kind", "Process", "noted"]

RECURRING_MAX = 3
"""Number of calls that are numbered of each kind that a process repeats for ever (renewals, beats, heartbeats)."""
READS_MAX = 4
"""Number of reads that are numbered of one kind of object by one role."""


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
        """Whether it was asked to end, and has ended."""
        self.cut_until = -1.0
        """The loop time before which none of its calls reaches the API server."""
        self.stale_until = -1.0
        self.stale_version = 0
        """Its API replica serves this version until `stale_until`."""


class FaultInjector:
    """Numbers the effects of all processes, and lets the planned faults strike.

    `inject` does the faults that are more than an answer to the call; it may await.
    """

    def __init__(self, faults: tuple[Fault, ...], random: Random, now: Callable[[], float]) -> None:
        self.effects: list[Effect] = []
        self.struck: list[tuple[float, Fault]] = []
        self.reads: list[Effect] = []
        self.deliveries: list[Effect] = []
        self.inject: Callable[[Process, Effect, Fault], Awaitable[bool]] = _nothing
        self.claimed: Callable[[list[Claimed]], None] = lambda _claimed: None
        self.later: Callable[[float, Callable[[], Awaitable[Any]]], None] = lambda _seconds, _call: None
        """Schedules a call for which no caller waits."""
        self.lasts: Callable[[float], None] = lambda _seconds: None
        """Called with the duration of a fault that lasts for a time."""
        self.acking: Callable[[Process, list[Claimed]], None] = lambda _process, _claimed: None
        self.latency_s = 0.002
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.is_closed = False
        """Whether the run is over: then no process reaches the servers any more."""
        self.reached: Callable[[str, int, str], None] = lambda _role, _number, _moment: None
        """Called at every boundary just before the planned fault is looked up; it may plant a fault there."""
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
        """Add faults, which strike when their boundary is reached."""
        self._faults |= {(fault.role, fault.number, fault.moment): fault for fault in faults}

    def expects(self, kind: Kind) -> bool:
        """Whether a fault of the kind may still strike; no preparation is needed for other kinds."""
        return any(fault.kind is kind for fault in self._faults.values()) or self.may_come(kind)

    def latency(self) -> Awaitable[None]:
        """Wait as a message does on its way. Half of the messages take no time, so that calls can overtake each
        other."""
        drawn = 2.0 * self._random.random() - 1.0
        return self.sleep(drawn * self.latency_s) if drawn > 0.0 else _AT_ONCE

    def check(self, process: Process) -> None:
        """Raise CancelledError for a dead process or after the run: it reaches the servers no more."""
        if process.is_dead or self.is_closed:
            raise asyncio.CancelledError

    @property
    def boundaries(self) -> list[Effect]:
        """Everything that has a number: effects, reads and deliveries."""
        return [each for each in (*self.effects, *self.reads, *self.deliveries) if each.number]

    def number(self, process: Process, effect: Effect) -> None:
        """Give the effect its number and log it. Calls that recur for ever are numbered a few times only."""
        self._count(process, effect, RECURRING_MAX if effect.is_recurring else 0)
        self.effects.append(effect)

    def number_read(self, process: Process, effect: Effect) -> None:
        """Like `number` for a read; of equal reads only a few are numbered and logged."""
        self._count(process, effect, READS_MAX)
        if effect.number:
            self.reads.append(effect)

    def number_delivery(self, effect: Effect, number: int) -> None:
        """Number a delivery (for a watch, by the version of the event) and log it once."""
        effect.number, effect.at = number, self._now()
        if (effect.role, number) not in self._delivered:
            self._delivered.add((effect.role, number))
            self.deliveries.append(effect)

    async def strike(self, process: Process, effect: Effect, moment: str) -> Kind | None:
        """Let the fault that is planned for this moment strike: raise its error, let `inject` do it, or return it to
        the caller, which does it."""
        if not effect.number:
            return None
        self.reached(effect.role, effect.number, moment)
        fault = self._faults.pop((effect.role, effect.number, moment), None)
        if fault is None:
            return None
        self.struck.append((self._now(), fault))
        if await self.inject(process, effect, fault):
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
