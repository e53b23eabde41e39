"""A pod worker reports that it is alive while work proceeds or there is none; otherwise only for a short time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from slipway.crd.transitions import id_of
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.podworker.loops import HINT, STILL_S
from slipway.podworker.main import compose
from slipway.podworker.settings import Settings
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.runtime.listen import ListenAddress
from slipway.runtime.service import ServiceContext, ServiceStop
from slipway.runtime.settings import load
from slipway.runtime.tasks import TaskGroup
from slipway.streams.consumer import CLAIM
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.podworker_harness import Calls, PodWorkerHarness, hint_for, run_with_harness
from tests.support.small_cluster import a_client, look

REDIS = "redis://127.0.0.1:1"
"""An address that is never dialled, because a model stands for the server."""
LONG_S = 5 * STILL_S

Story = Callable[["RunningWorker"], Awaitable[None]]


class RunningWorker:
    """A composed pod worker in its harness: `calls` are its own, `server` is its Redis."""

    def __init__(self, harness: PodWorkerHarness, settings: Settings) -> None:
        self.harness, self.settings = harness, settings
        self.kube = a_client(harness.core, seed=3)
        self.calls = Calls(self.kube)
        self.server = MemoryServer(harness.clock)
        self.streams = MemoryStreams(self.server)
        self.health = ProcessHealth(harness.clock)
        self.stop = ServiceStop()

    async def live(self) -> None:
        """Run the worker until the stop."""
        async with TaskGroup() as tasks:
            context: ServiceContext[Settings] = ServiceContext(
                service="podworker",
                settings=self.settings,
                once=False,
                clock=self.harness.clock,
                random=SeededRandom(9),
                health=self.health,
                stop=self.stop,
                tasks=tasks,
                resources=AsyncExitStack(),
                address=ListenAddress("", 0),
            )
            compose(context, self.kube, self.streams)
            await self.stop.wait()


def while_it_runs(story: Story, **environment: str) -> None:
    """Run the story beside a pod worker that ends with it."""
    settings = load(Settings, {"SLIPWAY_REDIS_URL": REDIS, "SLIPWAY_WORKER_IDENTITY": "w", **environment})

    async def with_harness(harness: PodWorkerHarness) -> None:
        running = RunningWorker(harness, settings)
        process = asyncio.ensure_future(running.live())
        try:
            await story(running)
        finally:
            process.cancel()
            await asyncio.gather(process, return_exceptions=True)

    run_with_harness(with_harness)


def test_at_rest_it_is_alive() -> None:
    """An idle pod worker is alive without hints."""

    async def story(running: RunningWorker) -> None:
        await running.harness.clock.sleep(LONG_S)
        assert running.health.liveness().ok

    while_it_runs(story)


def test_without_its_redis_it_is_alive() -> None:
    """A pod worker without its Redis is alive, because a restart would not help."""

    async def story(running: RunningWorker) -> None:
        async def away(_operation: str) -> None:
            raise UnavailableError("not now")

        running.server.on_call = away
        await running.harness.clock.sleep(LONG_S)
        assert running.health.liveness().ok

    while_it_runs(story)


def test_a_launch_that_stands_still_ends_it() -> None:
    """A launch whose call never ends, in spite of every deadline, makes the probe fail, and another process takes over
    the hint."""

    async def story(running: RunningWorker) -> None:
        forever = asyncio.Event()

        async def hang(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.CREATE, "pods"):
                await forever.wait()

        running.calls.hook = hang
        allocation = await running.harness.assign()
        await running.streams.hints.send([hint_for(allocation)])
        await running.harness.clock.sleep(STILL_S / 2)
        assert running.health.liveness().ok
        await running.harness.clock.sleep(STILL_S)
        assert list(running.health.liveness().problems) == [HINT.of(id_of(allocation)).name]

    while_it_runs(story)


def test_a_queue_that_stands_still_ends_it() -> None:
    """A claim that never ends, while the server answers other calls, ends the process."""

    async def story(running: RunningWorker) -> None:
        forever = asyncio.Event()

        async def hang(operation: str) -> None:
            if operation == "queue.claim":
                await forever.wait()

        running.server.on_call = hang
        await running.harness.clock.sleep(2 * STILL_S)
        assert list(running.health.liveness().problems) == [CLAIM.name]

    while_it_runs(story)


def test_a_long_launch_is_no_standstill() -> None:
    """A launch of many slow writes is no standstill: the process lives as long as one of them ends now and then."""

    async def story(running: RunningWorker) -> None:
        async def slow(verb: Verb, _plural: str) -> None:
            if verb is not Verb.GET:
                await running.harness.clock.sleep(STILL_S / 4)

        running.calls.hook = slow
        allocation = await running.harness.assign(*(["n0"] * 8))
        await running.streams.hints.send([hint_for(allocation)])
        looks = 0
        while (await look(running.harness.kube)).status.release is None:
            await running.harness.clock.sleep(1)
            assert running.health.liveness().ok
            looks += 1
        assert looks > STILL_S

    while_it_runs(story, SLIPWAY_WORKER_CALLS="1")


def test_once_stopped_it_promises_nothing() -> None:
    """A stopped worker no longer checks its progress, because it ends on purpose."""

    async def story(running: RunningWorker) -> None:
        await running.harness.clock.sleep(1)
        running.stop.set()
        await running.harness.clock.sleep(LONG_S)
        assert running.health.liveness().ok

    while_it_runs(story)
