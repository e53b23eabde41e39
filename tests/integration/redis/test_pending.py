"""Consumer groups on a real server: lost groups without a hot loop, entries of dead consumers, long work."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from slipway.errors import UnavailableError
from slipway.runtime.clock import SystemClock
from slipway.streams import keys
from slipway.streams.consumer import ConsumerSettings, Handler, WorkConsumer
from slipway.streams.ports import Claimed, WorkHint
from slipway.streams.redis_work import RedisWorkQueue
from tests.support.clock import wait_until
from tests.support.redis import RedisBackend, an_id, server_process
from tests.support.redis_workload import RedisUnderLoad, redis_under_load

# asyncio leaves a connection that is cancelled while it is being opened to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

REST_S = 1.0
LINES_MAX = 400
"""The most commands within `REST_S` of two workers, twelve readers and a relay."""
PENDING = 50


async def commands(under_load: RedisUnderLoad, name: str = "") -> int:
    """The number of commands that the server has executed; or of calls of one command."""
    section, key = ("commandstats", f"cmdstat_{name}:calls=") if name else ("stats", "total_commands_processed:")
    lines = (await under_load.command("INFO", section)).decode().splitlines()
    return next((int(line.removeprefix(key).split(",")[0]) for line in lines if line.startswith(key)), 0)


async def test_a_lost_group_is_created_once_without_a_busy_loop() -> None:
    """FLUSHALL, eviction and a lost group under load lose and double nothing; then the load is as low as before.
    (V12)"""
    async with redis_under_load() as under_load:
        await under_load.work.moves()
        await under_load.work.until_whole()
        before = await at_rest(under_load)
        for key in ("", keys.work(3), ""):
            await under_load.command("CONFIG", "RESETSTAT")
            await (under_load.command("DEL", key) if key else under_load.command("FLUSHALL"))
            await under_load.work.moves()
            await under_load.work.until_whole()
            # Each of two workers, and this test, may find the group missing and create all sixteen.
            assert await commands(under_load, "xgroup|create") <= 4 * keys.SHARDS
        assert await at_rest(under_load) < 2 * before
        await under_load.work.assert_whole()


async def at_rest(under_load: RedisUnderLoad) -> int:
    """The commands within a period without any work."""
    before = await commands(under_load)
    await asyncio.sleep(REST_S)
    return await commands(under_load) - before


async def test_an_outage_causes_no_busy_loop() -> None:
    """All calls fail for a long time: the server is tried now and then, not all the time. (V12)"""
    async with redis_under_load() as under_load:
        await under_load.work.moves()
        under_load.proxy.mode = "refuse"
        under_load.proxy.cut()
        before = under_load.proxy.accepted
        await under_load.work.moves(1)
        await asyncio.sleep(REST_S)
        assert under_load.proxy.accepted - before < LINES_MAX
        under_load.proxy.mode = "pass"
        await under_load.work.assert_whole()


async def pending(backend: RedisBackend) -> int:
    """The pending entries of all consumers."""
    found = [await backend.command("XPENDING", key, keys.WORK_GROUP) for key in keys.WORK_KEYS]
    return sum(row[0] for row in found)


async def test_nothing_stays_pending_when_workers_die_shrink_to_none_and_come_back() -> None:
    """A worker dies with 50 entries, a trim follows, no worker is left, workers with other names start: all entries
    are handled, and no consumer is kept. (V13)"""
    async with server_process("redis") as server:
        backend = RedisBackend(server.url)
        streams, done = backend.connect(), Counter[str]()
        # A slow worker must not be silent for that long, or its entries would be handled twice.
        quick = ConsumerSettings(block_s=0.05, min_idle_s=2.0, heartbeat_s=0.2, sweep_s=0.1)

        async def handler(hint: WorkHint) -> None:
            done[hint.allocation] += 1

        async def work(name: str, until: int) -> None:
            stop = asyncio.Event()
            worker = WorkConsumer(streams.work_queue(name), handler, SystemClock(), settings=quick)
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                group.create_task(worker.run(stop))
                await wait_until(lambda: len(done) >= until, f"{until} done", timeout_s=20)
                stop.set()

        async def send(first: int) -> None:
            names = [an_id(f"run-{number}") for number in range(first, first + PENDING)]
            await streams.hints.send([WorkHint(namespace="ns", allocation=name) for name in names])

        await send(0)
        assert len(await streams.work_queue("dead").claim(limit=1_000, block_s=0)) == PENDING
        assert await streams.work_queue("dead").trim() == 0  # pending entries stay
        assert await pending(backend) == PENDING
        await work("new-host", PENDING)
        assert await pending(backend) == 0
        await send(PENDING)  # while no worker runs
        await work("another-host", 2 * PENDING)
        assert (await pending(backend), set(done.values())) == (0, {1})
        await streams.work_queue("x").trim()  # entries that the workers themselves have not trimmed
        assert max([await backend.command("XLEN", key, key=key) for key in keys.WORK_KEYS]) <= 1  # the last stays
        await streams.work_queue("x").forget_consumers(idle_s=0)
        assert [await backend.command("XINFO", "CONSUMERS", key, keys.WORK_GROUP) for key in keys.WORK_KEYS] == (
            [[]] * keys.SHARDS
        )
        await backend.aclose()


class QueueWithoutHeartbeats(RedisWorkQueue):
    """A worker whose heartbeats never arrive, and which claims no abandoned entries, because it would claim its own."""

    async def heartbeat(self, claimed: Sequence[Claimed]) -> None:
        raise UnavailableError("the line is down")

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[Claimed]:
        return []


async def test_long_work_whose_heartbeats_are_lost_is_run_again_and_done_once() -> None:
    """Another worker takes the entry over while the first still works: both read the object first, so the work is
    done once. (V14)"""
    async with server_process("redis") as server:
        backend = RedisBackend(server.url)
        streams = backend.connect()
        runs, effects, release = Counter[str](), list[str](), asyncio.Event()
        quick = ConsumerSettings(block_s=0.05, min_idle_s=0.2, heartbeat_s=0.05, sweep_s=0.05)
        is_done = False

        def handler_of(name: str) -> Handler:
            async def handler(hint: WorkHint) -> None:
                nonlocal is_done
                runs[name] += 1
                if name == "slow":
                    await release.wait()
                if not is_done:  # a write with a fence: the second worker sees what the first has done
                    is_done = True
                    effects.append(name)

            return handler

        stop = asyncio.Event()
        client = backend.client()
        slow = WorkConsumer(QueueWithoutHeartbeats(client, "slow"), handler_of("slow"), SystemClock(), settings=quick)
        other = WorkConsumer(streams.work_queue("other"), handler_of("other"), SystemClock(), settings=quick)
        await streams.hints.send([WorkHint(namespace="ns", allocation=an_id())])
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(slow.run(stop))
            await wait_until(lambda: runs["slow"] == 1, "the slow one has it", timeout_s=10)
            group.create_task(other.run(stop))
            await wait_until(lambda: effects, "the other has done it", timeout_s=10)
            release.set()
            await wait_until(lambda: not slow.in_hand, "the slow one ends", timeout_s=10)
            stop.set()
        await client.aclose()
        assert (runs, effects) == (Counter(slow=1, other=1), ["other"])
        assert await pending(backend) == 0
        await backend.aclose()
