"""Points without their prefix: the run forks at the boundary where a fault strikes.

Owns the tree of processes of one run. The trunk plays the scenario undisturbed; wherever a wanted fault strikes, it
forks: the child plants the fault and goes on to the end, audits itself and sends what it found; the trunk waits for it
and goes on as if nothing had happened. A child forks again for the second fault of a pair, and so on. One process of a
tree runs at a time, so whoever grows as many trees as there are cores keeps them busy.

A child is the very run that the same faults give from the start: nothing in it can tell that it was forked.
"""

import os
import signal
from asyncio import events
from collections.abc import Callable, Iterable

from tests.simulation.replays import Replays
from tests.simulation.run import Outcome, run
from tests.support.faults import Fault
from tests.support.world import World

CPU_S_MAX = 60
"""No run computes so long; one that does is ended by the kernel."""

TELLING = "hold@"
"""What others did while somebody was held tells where to resume it."""
Point = tuple[Fault, ...]
Send = Callable[[Outcome], None]
_Key = tuple[str, int, str]


def grow(name: str, seed: int, replicas: int, wanted: Iterable[Point], send: Send, *, traced: bool = False) -> None:
    """Plays every wanted point of one undisturbed run; each outcome is sent by the process that played it.

    A point that is never reached is sent too, with fewer faults struck than it has. The caller's process must be one
    that may be ended: it is the trunk.
    """
    tree = _Tree(wanted, send)
    outcome = run(name, seed, replicas=replicas, traced=traced, begin=tree.begin, finish=tree.finish)
    tree.finish(outcome)


class _Tree:
    """One process of the tree, as it goes: what is still wanted from here on."""

    def __init__(self, wanted: Iterable[Point], send: Send) -> None:
        self._send = send
        self._planted: Point = ()
        self._is_wanted = False
        self._expect(wanted)

    def begin(self, world: World, outcome: Outcome, replays: Replays) -> None:
        """The run begins."""
        self._world, self._outcome, self._replays = world, outcome, replays
        world.trouble.reached = self._reached
        world.trouble.may_come = lambda kind: kind in self._kinds

    def finish(self, outcome: Outcome) -> None:
        """The run is over: in a child, this is the end of the process."""
        for point in self._wanted:
            missed = tuple(map(str, (*self._planted, *point)))
            self._send(Outcome(scenario=outcome.scenario, seed=outcome.seed, replicas=outcome.replicas, faults=missed))
        self._wanted = {}
        if self._is_wanted:
            if not any(text.startswith(TELLING) for text in outcome.faults):
                outcome.effects = []
            self._send(outcome)
        if self._planted:
            os._exit(0)

    def _expect(self, wanted: Iterable[Point]) -> None:
        self._wanted = dict.fromkeys(wanted)
        self._kinds = {fault.kind for point in self._wanted for fault in point}
        self._by_key: dict[_Key, list[Fault]] = {}
        for point in self._wanted:
            for fault in point:
                here = self._by_key.setdefault((fault.role, fault.number, fault.moment), [])
                if fault not in here:
                    here.append(fault)

    def _reached(self, role: str, number: int, moment: str) -> None:
        for fault in self._by_key.pop((role, number, moment), ()):
            points = [point for point in self._wanted if fault in point]
            if not points:
                continue
            self._replays.follow()
            child = os.fork()
            if child == 0:
                self._become(fault, points)
                return
            self._outlive(child, fault)
            for point in points:
                del self._wanted[point]
        if not self._wanted and not self._is_wanted:
            os._exit(0)

    def _become(self, fault: Fault, points: list[Point]) -> None:
        """The child: `fault` strikes here, and the rest of its points is still to come."""
        signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
        # asyncio takes a loop for running only in the process that said so.
        events._set_running_loop(self._world.loop)
        rests = [tuple(other for other in point if other != fault) for point in points]
        self._is_wanted = () in rests
        self._expect(rest for rest in rests if rest)
        self._planted = (*self._planted, fault)
        self._outcome.faults = tuple(map(str, self._planted))
        self._world.trouble.plant((fault,))

    def _outlive(self, child: int, fault: Fault) -> None:
        """Wait for the child's end; one that ends otherwise than by having sent its outcome is a finding."""
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            struck = tuple(map(str, (*self._planted, fault)))
            of = self._outcome
            why = f"RUN the process ended with {code}"
            self._send(
                Outcome(scenario=of.scenario, seed=of.seed, replicas=of.replicas, faults=struck, violations=[why])
            )
