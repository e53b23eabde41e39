"""Candidates for one lease on virtual time, over the local cluster's core."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.lease import Leadership, LeaseElector, LeaseTiming
from slipway.kube.objects import Lease
from slipway.kube.resources import LEASES
from slipway.local.apiserver.core import ClusterCore
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from tests.support.kube_core import CoreKube
from tests.support.virtual_time import VirtualClock, run_virtual

RETRY_S = 2.0
LOOK_S = 0.5


class Candidate:
    """One process that wants to lead; `terms` are the (begin, end) times of its leading scope."""

    def __init__(self, world: "World", name: str, clock: VirtualClock, timing: LeaseTiming | None = None) -> None:
        self.kube = CoreKube(world.core, random=SeededRandom(name))
        self.clock = clock
        self.exits: list[int] = []
        self.health = ProcessHealth(clock, exit_process=self.exits.append)
        self.elector = LeaseElector(
            self.kube,
            "lease",
            name,
            namespace="default",
            clock=clock,
            random=SeededRandom(name),
            timing=timing,
            health=self.health,
        )
        self.terms: list[tuple[float, float]] = []
        self.stop = asyncio.Event()
        self.leadership: Leadership | None = None

    async def lead(self, leadership: Leadership) -> None:
        self.leadership = leadership
        begun = now()
        try:
            await self.stop.wait()
        finally:
            self.terms.append((begun, now()))

    @property
    def leads(self) -> bool:
        return self.elector.is_leader()

    def cut_off(self) -> None:
        """From now on no call of this candidate reaches the server or is answered."""

        async def hang(_verb: Verb, _plural: str) -> None:
            await asyncio.Event().wait()

        self.kube.before = hang

    def answer_nothing(self) -> None:
        """From now on the server does each write of this candidate, but never answers it."""

        async def hang(verb: Verb, _plural: str) -> None:
            if verb is not Verb.GET:
                await asyncio.Event().wait()

        self.kube.after = hang

    def refuse(self) -> None:
        """From now on each call of this candidate fails."""

        async def fail(_verb: Verb, _plural: str) -> None:
            raise UnavailableError("down")

        self.kube.before = fail

    def reconnect(self) -> None:
        async def pass_(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(0)

        self.kube.before = self.kube.after = pass_


class World:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        uids = count(1)
        self.core = ClusterCore(clock=VirtualClock().now, new_uid=lambda: f"uid-{next(uids)}")
        self.core.bootstrap()
        self.tasks = tasks
        self.candidates: list[Candidate] = []

    def join(
        self, name: str, clock: VirtualClock | None = None, *, timing: LeaseTiming | None = None
    ) -> tuple[Candidate, asyncio.Task[None]]:
        """Start a candidate. A test may cancel the task as a crash; then the lease is not released."""
        candidate = Candidate(self, name, clock or VirtualClock(), timing)
        self.candidates.append(candidate)
        return candidate, self.tasks.create_task(candidate.elector.run(candidate.lead, candidate.stop))

    async def lease(self) -> Lease:
        return await CoreKube(self.core, random=SeededRandom(0)).get(LEASES, "lease", namespace="default")


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def a_world() -> AsyncGenerator[World, None]:
    async with asyncio.TaskGroup() as tasks:
        world = World(tasks)
        yield world
        for candidate in world.candidates:
            candidate.reconnect()
            candidate.stop.set()


def in_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_world() as world:
            await test(world)

    run_virtual(main)
