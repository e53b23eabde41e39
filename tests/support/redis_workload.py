"""All users of the streams, small and in one process, on a real server that a test may break.

Owns the state (allocations with rings, as Kubernetes stores them), its writers to the streams (the watcher's relay,
a resync, hints that are sent again), workers that do each allocation's work once, and readers that follow every stream.
Clients reach the server through a `SocketProxy`, which can lead to another server, be slow, swallow all data, or refuse
connections.

A test breaks something while allocations proceed, and calls `assert_whole` afterwards.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import TransientError
from slipway.local.valkey import ServerOptions, ValkeyProcess
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import Command, RedisClient, RedisSettings
from slipway.streams.consumer import ConsumerSettings, WorkConsumer
from slipway.streams.ports import WorkHint
from slipway.streams.redis_streams import RedisStreams
from slipway.watcher.relay import Relay
from tests.support.builders import AllocationStory, an_allocation
from tests.support.redis import server_process

ALLOCATIONS = 12
MOVES = 9
"""Transitions of each allocation; its ring has room for more."""
RESYNC_S = 0.2
TIMEOUT_S = 0.4
WHOLE_S = 40.0
OPERATOR_S = 20.0
"""A slow server is not a fault under test."""
MOVE_S = 0.02
QUICK = ConsumerSettings(block_s=0.1, min_idle_s=0.5, heartbeat_s=0.1, sweep_s=0.1, retry_first_s=0.02, retry_max_s=0.2)


class SocketProxy:
    """A proxy before a server; its `target` may change, and `mode` is `pass`, `refuse`, `deaf` or `slow`."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self.target = path, target
        self.mode = "pass"
        self.accepted = 0
        """Number of connections that clients have opened."""
        self._lines: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Listen and serve."""
        async with await asyncio.start_unix_server(self._accept, str(self.path)):
            try:
                yield
            finally:
                self.mode = "refuse"
                self.cut()
                for task in self._serving:
                    task.cancel()
                await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection."""
        for line in self._lines:
            line.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(writer)
        try:
            if self.mode != "refuse":
                back, forth = await asyncio.open_unix_connection(str(self.target))
                self._lines.add(forth)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry(reader, forth))
                    group.create_task(self._carry(back, writer))
        except* OSError:
            pass
        finally:
            self._lines.discard(writer)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                if self.mode == "deaf":
                    continue
                if self.mode == "slow":
                    await asyncio.sleep(0.05)
                writer.write(data)
                await writer.drain()
        finally:
            self._lines.discard(writer)
            writer.close()


class StreamsWorkload:
    """See the module's docstring."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.clock = SystemClock()
        self.stories: dict[AllocationId, AllocationStory] = {}
        for number in range(ALLOCATIONS):
            story = an_allocation(name=f"job-{number}", uid=f"{number:08x}-0000-4000-8000-000000000000").assigned()
            self.stories[id_of(story.it)] = story
        self.done: Counter[AllocationId] = Counter()
        self.seen: dict[AllocationId, list[int]] = {each: [] for each in self.stories}
        self.payloads: dict[tuple[AllocationId, int], object] = {}
        self.stop = asyncio.Event()
        self._clients: list[RedisStreams] = []
        self.watcher = self.connect()
        self.relay = Relay(self.watcher.events, self.clock, enabled=True)

    def connect(self) -> RedisStreams:
        """Return the streams of a new process."""
        settings = RedisSettings(url=self._url, command_timeout_s=TIMEOUT_S)
        streams = RedisStreams(RedisClient(settings, self.clock, SeededRandom(len(self._clients))))
        self._clients.append(streams)
        return streams

    @property
    def truth(self) -> list[Allocation]:
        """The allocations as they are now."""
        return [story.it for story in self.stories.values()]

    def move(self, step: int) -> None:
        """Move each allocation by one transition."""
        for name, story in self.stories.items():
            self.stories[name] = story.recorded(Event.UPDATED, at_s=2.0 + step)
            self.relay.offer(self.stories[name].it)

    async def moves(self, count: int = MOVES // 3) -> None:
        """Move all allocations by `count` transitions, with pauses."""
        for step in range(count):
            self.move(step)
            await asyncio.sleep(MOVE_S)

    async def handle(self, hint: WorkHint) -> None:
        """Do the allocation's work, unless it is done, as a worker does. The counter shows when it is done twice."""
        if hint.allocation in self.stories and not self.done[hint.allocation]:
            self.done[hint.allocation] += 1

    async def until_whole(self) -> None:
        """Wait until every stream, every reader and all work agrees with the truth."""
        try:
            async with asyncio.timeout(WHOLE_S):
                while not await self._is_whole():  # noqa: ASYNC110 - a server's state
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not whole: seen {self.seen}, done {self.done}") from None

    async def assert_whole(self) -> None:
        """Assert that no event or hint was lost, repeated or left over."""
        await self.until_whole()
        for name, story in self.stories.items():
            last = story.it.status.seq
            stored = await self.watcher.events.read(name)
            assert [each.event.seq for each in stored][-1] == last
            assert self.seen[name] == list(range(1, last + 1)), name  # in order, without a gap, each once
        assert self.done == Counter(dict.fromkeys(self.stories, 1))
        assert await self.watcher.work_queue("looker").backlog() == 0

    @asynccontextmanager
    async def running(self, workers: int = 2) -> AsyncGenerator[None]:
        """Run the relay, the resync, the readers and the workers until the end of the context."""
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(each)
                for each in (
                    self._insist(self.relay.step),
                    self._resync(),
                    *(self._follow(name) for name in self.stories),
                )
            ]
            for number in range(workers):
                group.create_task(self.worker(f"worker-{number}").run(self.stop))
            try:
                yield
            finally:
                self.stop.set()
                for loop in loops:
                    loop.cancel()
        for each in self._clients:
            await each.aclose()

    def worker(self, name: str) -> WorkConsumer:
        """A worker with a connection of its own."""
        return WorkConsumer(self.connect().work_queue(name), self.handle, self.clock, settings=QUICK)

    async def _is_whole(self) -> bool:
        try:
            ends = await self.watcher.events.last_seqs(list(self.stories))
            backlog = await self.watcher.work_queue("looker").backlog()
        except TransientError:
            return False
        lasts = [story.it.status.seq for story in self.stories.values()]
        read = [seqs[-1] if seqs else 0 for seqs in self.seen.values()]
        return ends == lasts == read and backlog == 0 and len(self.done) == len(self.stories)

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except TransientError:
                await self.clock.sleep(0.05)

    async def _resync(self) -> None:
        """Check every stream, and send hints for unfinished work, as the watcher does periodically."""
        while True:
            await self.relay.check_quietly(self.truth)
            hints = [WorkHint(namespace="team", allocation=name) for name in self.stories if not self.done[name]]
            with suppress(TransientError):
                await self.watcher.hints.send(hints)
            await self.clock.sleep(RESYNC_S)

    async def _follow(self, name: AllocationId) -> None:
        """Run a reader that resumes with its cursor whenever it is cut off."""
        streams, cursor = self.connect(), None
        while True:
            try:
                async with aclosing(streams.events.follow(name, after=cursor)) as events:
                    async for stored in events:
                        cursor = stored.cursor
                        self._note(name, stored.event.seq, stored.event)
            except TransientError:
                await self.clock.sleep(0.05)

    def _note(self, name: AllocationId, seq: int, event: object) -> None:
        known = self.payloads.setdefault((name, seq), event)
        assert known == event, f"two payloads for {name}/{seq}"
        self.seen[name].append(seq)


class RedisUnderLoad:
    """A workload on a Redis, with the server and the proxy before it."""

    def __init__(self, server: ValkeyProcess, proxy: SocketProxy, work: StreamsWorkload) -> None:
        self.server, self.proxy, self.work = server, proxy, work

    async def command(self, *args: str | int, server: ValkeyProcess | None = None) -> Any:
        """Send a command to the server itself, as an operator would type it."""
        url = f"unix://{(server or self.server).socket}"
        client = RedisClient(RedisSettings(url=url, command_timeout_s=OPERATOR_S), SystemClock(), SeededRandom(1))
        try:
            return await client.run(Command("", args))
        finally:
            await client.aclose()


@asynccontextmanager
async def redis_under_load(name: str = "redis", options: ServerOptions | None = None) -> AsyncGenerator[RedisUnderLoad]:
    """A new server with a running workload on it."""
    async with server_process(name, options) as server:
        proxy = SocketProxy(server.socket.with_name("switch.sock"), server.socket)
        async with proxy.open():
            work = StreamsWorkload(f"unix://{proxy.path}")
            async with work.running():
                yield RedisUnderLoad(server, proxy, work)
