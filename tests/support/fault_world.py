"""The faults that are more than an answer: of a process, of its clocks, of Redis.

Owns what each fault does and how long it lasts. Must not know any scenario.
"""

import asyncio
from typing import TYPE_CHECKING

from slipway.streams.memory_server import ServerRefusal
from tests.support.fault_kinds import PAUSES_S, Effect, Fault, Kind
from tests.support.faults import Process

if TYPE_CHECKING:
    from tests.support.world import World

HOLD_S = 45.0
"""A held process that no fault thaws wakes after this time, in seconds."""
OUTAGE_S = 12.0
"""Longer than a leader trusts its last renewal."""
REDIS_S = 10.0
STALE_S = 8.0
STALE_VERSIONS = 12
"""How many versions a lagging replica of the API lacks."""
JUMP_S = 600.0
CORRECTED_S = 20.0
RATE = 1.5
RATE_S = 60.0
LOST_MAX = 6
REFUSALS = {Kind.LOADING: ServerRefusal.LOADING, Kind.READONLY: ServerRefusal.READONLY, Kind.OOM: ServerRefusal.OOM}
REDIS_FAULTS = (
    Kind.EVICT,
    Kind.UNGROUP,
    Kind.FAILOVER,
    Kind.AWAY,
    Kind.LOADING,
    Kind.READONLY,
    Kind.OOM,
    Kind.TRIM,
)
CLOCK_FAULTS = (Kind.CLOCK_AHEAD, Kind.CLOCK_BEHIND, Kind.CLOCK_FAST, Kind.CLOCK_SLOW)


class WorldFaults:
    """Injects faults into one world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def inject(self, process: Process, effect: Effect, fault: Fault) -> bool:
        """Do a fault that is more than an answer; return whether it was one. For a killed process this call never
        returns."""
        world, kind = self._world, fault.kind
        if kind in PAUSES_S or kind is Kind.HOLD:
            world.freeze(process, PAUSES_S.get(kind, HOLD_S))
            await asyncio.sleep(0)
            return True
        if kind in (Kind.CRASH, Kind.CRASH_STALE):
            if kind is Kind.CRASH_STALE:
                world.stale[process.role] = max(1, world.core.version - STALE_VERSIONS)
                world.troubled_for(STALE_S)
            world.crash(process)
            await asyncio.get_running_loop().create_future()
        if kind is Kind.THAW:
            for other in list(world.processes.values()):
                world.thaw(other)
            return True
        if kind is Kind.OUTAGE:
            process.cut_until = world.loop.time() + OUTAGE_S
            world.troubled_for(OUTAGE_S)
            return True
        return self._turn_clock(process, kind) or self._break_redis(effect, kind)

    def _turn_clock(self, process: Process, kind: Kind) -> bool:
        world, clock = self._world, process.clock
        match kind:
            case Kind.CLOCK_AHEAD | Kind.CLOCK_BEHIND:
                clock.jump(JUMP_S if kind is Kind.CLOCK_AHEAD else -JUMP_S)
                world.troubled_for(CORRECTED_S)
                world.after(CORRECTED_S, clock.set_right)
            case Kind.CLOCK_FAST | Kind.CLOCK_SLOW:
                clock.run_at(RATE if kind is Kind.CLOCK_FAST else 1 / RATE)
                world.troubled_for(RATE_S)
                world.after(RATE_S, lambda: (clock.run_at(1.0), clock.set_right()))
            case _:
                return False
        return True

    def _break_redis(self, effect: Effect, kind: Kind) -> bool:
        world, server = self._world, self._world.server
        match kind:
            case Kind.FLUSH:
                server.flush()
            case Kind.EVICT:
                server.evict(effect.number)
            case Kind.UNGROUP:
                server.ungroup()
            case Kind.FAILOVER:
                server.fail_over(1 + effect.number % LOST_MAX)
            case Kind.TRIM:
                server.trim()
            case Kind.AWAY:
                server.absent = True
                world.troubled_for(REDIS_S)
                world.after(REDIS_S, self._come_back)
            case Kind.LOADING | Kind.READONLY | Kind.OOM:
                server.refuses = REFUSALS[kind]
                server.notify()
                world.troubled_for(REDIS_S)
                world.after(REDIS_S, self._accept)
            case _:
                return False
        return True

    def _come_back(self) -> None:
        self._world.server.absent = False

    def _accept(self) -> None:
        self._world.server.refuses = None
        self._world.server.notify()
