"""Points without their prefix: the run forks at the boundary where a fault strikes.

Owns the tree of processes of one run. The trunk plays the scenario undisturbed, and forks wherever a wanted fault
strikes. The child injects the fault, runs to the end, audits itself and sends its outcome. The trunk waits for it and
continues undisturbed. A child forks again for the second fault of a pair, and so on. Only one process of a tree runs at
a time, so as many trees as cores keep the cores busy.

A child is the same run as one with these faults from the start: nothing in it depends on the fork.
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
"""CPU seconds that no run needs; the kernel ends a run that uses more."""

TELLING = "hold@"
"""The prefix of faults that also send the effects of others while a process was held: these show where to resume it."""
Point = tuple[Fault, ...]
Send = Callable[[Outcome], None]
_Key = tuple[str, int, str]


def grow(name: str, seed: int, replicas: int, wanted: Iterable[Point], send: Send, *, traced: bool = False) -> None:
    """Play every wanted point of one undisturbed run; the process that plays a point sends its outcome.

    A point that is never reached is sent too, with fewer struck faults than it has. The caller's process is the trunk,
    and may be ended.
    """
    tree = _Tree(wanted, send)
    outcome = run(name, seed, replicas=replicas, traced=traced, begin=tree.begin, finish=tree.finish)
    tree.finish(outcome)


class _Tree:
    """One process of the tree, and the faults that it still has to try."""

    def __init__(self, wanted: Iterable[Point], send: Send) -> None:
        self._send = send
        self._planted: Point = ()
        self._is_wanted = False
        self._expect(wanted)

    def begin(self, world: World, outcome: Outcome, replays: Replays) -> None:
        """The run begins."""
        self._world, self._outcome, self._replays = world, outcome, replays
        world.injector.reached = self._reached
        world.injector.may_come = lambda kind: kind in self._kinds

    def finish(self, outcome: Outcome) -> None:
        """End the run: in a child this ends the process."""
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
        """In the child: let `fault` strike here, and continue with the rest of its points."""
        signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
        # asyncio knows a running loop only in the process that registered it.
        events._set_running_loop(self._world.loop)
        rests = [tuple(other for other in point if other != fault) for point in points]
        self._is_wanted = () in rests
        self._expect(rest for rest in rests if rest)
        self._planted = (*self._planted, fault)
        self._outcome.faults = tuple(map(str, self._planted))
        self._world.injector.plant((fault,))

    def _outlive(self, child: int, fault: Fault) -> None:
        """Wait for the child's end; a child that ends without having sent its outcome is a finding."""
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            struck = tuple(map(str, (*self._planted, fault)))
            of = self._outcome
            why = f"RUN the process ended with {code}"
            self._send(
                Outcome(scenario=of.scenario, seed=of.seed, replicas=of.replicas, faults=struck, violations=[why])
            )
