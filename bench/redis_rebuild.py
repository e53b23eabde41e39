"""Time until the streams of 10,000 live allocations are complete again, after FLUSHALL and after a new empty server.

A real watcher runs in this process, with the core of the local cluster and a real Valkey; nothing else restores the
streams. Every allocation is assigned and has five transitions, so its hint is sent again too. The time is from the loss
until the last stream contains the last transition of its allocation. The detection of the loss is included.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.runner import Row, Target, row
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import TransientError
from slipway.kube.resources import ALLOCATIONS
from slipway.local.valkey import ValkeyProcess
from slipway.model.lifecycle import Event
from slipway.runtime.clock import SystemClock, SystemRandom
from slipway.runtime.health import ProcessHealth
from slipway.runtime.service import ServiceStop
from slipway.streams import keys
from slipway.streams.client import Command, RedisClient, RedisSettings
from slipway.streams.ports import NoTally
from slipway.streams.producer import BestEffortWriter
from slipway.streams.redis_streams import RedisStreams
from slipway.watcher.settings import Settings
from slipway.watcher.watcher import Watcher, WatcherDeps
from tests.support.builders import AllocationStory
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish

LIVE = 10_000
LOOK_S = 0.1
BATCH = 500
LATE_S = 300.0
MUST = Target(must=30.0, moonshot=5.0)


async def live(kube: CoreKube, count: int) -> list[Allocation]:
    """Create `count` allocations that are assigned and have a few more transitions."""
    found: list[Allocation] = []
    for number in range(count):
        made = await kube.create(ALLOCATIONS, a_manifest(f"job-{number}"), namespace="default")
        story = AllocationStory(made).assigned("n0")
        for step in range(3):
            story = story.recorded(Event.UPDATED, at_s=2.0 + step)
        found.append(await kube.replace_status(ALLOCATIONS, story.it))
    return found


class Stage:
    """A server, the allocations, and a watcher that runs until the end."""

    def __init__(self, server: ValkeyProcess, allocations: Sequence[Allocation], kube: CoreKube) -> None:
        self._server = server
        self._ids = [id_of(each) for each in allocations]
        self._seqs = [each.status.seq for each in allocations]
        clock, random = SystemClock(), SystemRandom()
        self._operator = RedisClient(RedisSettings(url=server.url), clock, random)
        self._looker = RedisStreams(self._operator)
        self._streams = RedisStreams(RedisClient(RedisSettings(url=server.url), clock, random))
        self._watcher = Watcher(
            WatcherDeps(
                kube=kube,
                streams=self._streams,
                behind=BestEffortWriter(self._streams, clock, NoTally()),
                clock=clock,
                random=random,
                health=ProcessHealth(clock),
                settings=Settings(redis_url=server.url, namespace="slipway-system"),
                identity="bench",
            )
        )

    async def run(self, stop: ServiceStop) -> None:
        """Run the watcher."""
        await self._watcher.run(stop)

    async def until_whole(self) -> float:
        """Return the seconds until every stream ends with its allocation's last transition."""
        began_s = time.perf_counter()
        async with asyncio.timeout(LATE_S):
            while not await self._is_whole():  # noqa: ASYNC110 - a server's state
                await asyncio.sleep(LOOK_S)
        return time.perf_counter() - began_s

    async def flush(self) -> None:
        """Run FLUSHALL."""
        await self._operator.run(Command("", ("FLUSHALL",)))

    async def replace(self) -> None:
        """Kill the server, and start an empty one in its place."""
        await self._server.kill()
        await self._server.start()

    async def close(self) -> None:
        """Close the connections."""
        for each in (self._looker, self._streams):
            await each.aclose()

    async def _is_whole(self) -> bool:
        """Whether all streams are complete. The number of keys is checked first, because reading it is cheap."""
        try:
            if await self._operator.run(Command("", ("DBSIZE",))) < len(self._ids):
                return False
            for start in range(0, len(self._ids), BATCH):
                ends = await self._looker.events.last_seqs(self._ids[start : start + BATCH])
                if ends != self._seqs[start : start + BATCH]:
                    return False
        except TransientError:  # the server is down, or the watcher used the CPU until the call timed out
            return False
        return True


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    kube = a_client(a_core(SystemClock().now))
    await furnish(kube)
    allocations = await live(kube, LIVE)
    events = sum(each.status.seq for each in allocations)
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        server = ValkeyProcess(Path(folder))
        await server.start()
        stage, stop = Stage(server, allocations, kube), ServiceStop()
        flushed: list[float] = []
        replaced: list[float] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(stage.run(stop))
                first_s = await stage.until_whole()
                for _ in range(runs):
                    await stage.flush()
                    flushed.append(await stage.until_whole())
                    await stage.replace()
                    replaced.append(await stage.until_whole())
                stop.set()
        finally:
            await stage.close()
            await server.stop()
    what = f"{LIVE:,} live allocations, {events:,} transitions, {keys.SHARDS} shards"
    return [
        row("R-first", f"told for the first time: {what}", [first_s], "s"),
        row("R-rebuild-flush", "all streams whole again after FLUSHALL", flushed, "s", target=MUST),
        row("R-rebuild-empty", "all streams whole again after an empty server came", replaced, "s", target=MUST),
    ]
