"""The work consumer on every backend: at least once, one run per key at a time, undecodable entries buried."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from slipway.errors import InvariantError, PermanentError, StaleError, UnavailableError
from slipway.runtime.clock import SystemClock
from slipway.streams import keys
from slipway.streams.consumer import ConsumerSettings, Handler, WorkConsumer
from slipway.streams.ports import Streams, WorkHint
from tests.support.clock import wait_until
from tests.support.redis import Backend, an_id

QUICK = ConsumerSettings(
    block_s=0.05, min_idle_s=0.1, heartbeat_s=0.03, sweep_s=0.03, retry_first_s=0.01, retry_max_s=0.05
)


class Counts:
    """A tally that a test can read."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1) -> None:
        self.of[name] += amount

    def took(self, spent_s: float, traceparent: str) -> None:
        self.of["took"] += 1


def a_hint(name: str = "train") -> WorkHint:
    return WorkHint(namespace="default", allocation=an_id(name))


@asynccontextmanager
async def working(
    streams: Streams, handler: Handler, *, consumer: str = "a", settings: ConsumerSettings = QUICK, counts: Counts
) -> AsyncGenerator[WorkConsumer]:
    """A running consumer, drained at the end."""
    worker = WorkConsumer(streams.work_queue(consumer), handler, SystemClock(), settings=settings, tally=counts)
    stop = asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(worker.run(stop))
        try:
            yield worker
        finally:
            stop.set()


async def at_rest(streams: Streams, backlog: int = 0) -> None:
    """Wait until that many entries are unacknowledged: by default none waits and none is pending."""
    async with asyncio.timeout(5):
        while await streams.work_queue("looker").backlog() != backlog:  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.01)


@pytest.fixture
def counts() -> Counts:
    return Counts()


async def test_every_hint_is_handled_and_acknowledged(streams: Streams, counts: Counts) -> None:
    """No entry stays pending, and handled entries are trimmed away."""
    seen: Counter[str] = Counter()

    async def handler(hint: WorkHint) -> None:
        seen[hint.allocation] += 1

    hints = [a_hint(f"run-{number}") for number in range(100)]
    async with working(streams, handler, counts=counts):
        await streams.hints.send(hints)
        await wait_until(lambda: len(seen) == 100, "all hints handled")
        await at_rest(streams)
    assert set(seen.values()) == {1}
    assert counts.of["hints_done"] == counts.of["took"] == 100


async def test_one_key_never_runs_twice_at_once(streams: Streams, counts: Counts) -> None:
    """Hints for a key that is being worked on cause exactly one more run."""
    running, most, runs = 0, 0, 0
    gate = asyncio.Event()

    async def handler(hint: WorkHint) -> None:
        nonlocal running, most, runs
        running, runs = running + 1, runs + 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    async with working(streams, handler, counts=counts):
        await streams.hints.send([a_hint()])
        await wait_until(lambda: runs == 1, "the first run")
        await streams.hints.send([a_hint()] * 20)
        await at_rest(streams, backlog=2)  # the one at work, and the newest for all that arrived meanwhile
        gate.set()
        await at_rest(streams)
    assert (most, runs) == (1, 2)


async def test_at_most_so_many_handlers_run(streams: Streams, counts: Counts) -> None:
    """The number of running handlers is bounded, however many entries one read returns."""
    running, most = 0, 0

    async def handler(hint: WorkHint) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    settings = ConsumerSettings(concurrency=4, block_s=0.05)
    await streams.hints.send([a_hint(f"run-{number}") for number in range(60)])
    async with working(streams, handler, counts=counts, settings=settings):
        await at_rest(streams)
    assert most == 4


async def test_work_longer_than_the_idle_time_is_not_claimed_by_others(backend: Backend, counts: Counts) -> None:
    """V14: heartbeats keep an entry with its consumer for as long as its handler runs; no other consumer runs it."""
    runs: list[str] = []
    done = asyncio.Event()

    def slow(name: str) -> Handler:
        async def handler(hint: WorkHint) -> None:
            runs.append(name)
            await asyncio.sleep(0.4)
            done.set()

        return handler

    one, other = backend.connect(), backend.connect()
    async with (
        working(one, slow("a"), consumer="a", counts=counts),
        working(other, slow("b"), consumer="b", counts=counts),
    ):
        await one.hints.send([a_hint()])
        await done.wait()
        await at_rest(one)
    assert len(runs) == 1


async def test_entries_of_a_dead_worker_are_claimed(backend: Backend, counts: Counts) -> None:
    """V13: a worker dies with 50 pending entries; another host finishes them, and no entry stays pending."""
    dead, alive = backend.connect(), backend.connect()
    await dead.hints.send([a_hint(f"run-{number}") for number in range(50)])
    assert len(await dead.work_queue("dead").claim(limit=1_000, block_s=0)) == 50
    seen: set[str] = set()

    async def handler(hint: WorkHint) -> None:
        seen.add(hint.allocation)

    async with working(alive, handler, consumer="new-host", counts=counts):
        await wait_until(lambda: len(seen) == 50, "all taken over")
        await at_rest(alive)
    assert counts.of["hints_claimed"] >= 50


async def test_a_flush_under_load_loses_no_group(backend: Backend, counts: Counts) -> None:
    """V12: after FLUSHALL the group is created again, without a hot loop, and later hints arrive."""
    streams = backend.connect()
    seen: set[str] = set()

    async def handler(hint: WorkHint) -> None:
        seen.add(hint.allocation)

    async with working(streams, handler, counts=counts):
        for number in range(20):
            if number % 5 == 4:
                await backend.flush()
            await streams.hints.send([a_hint(f"run-{number}")])
        await wait_until(lambda: "run-19-0123abcd" in seen, "hints after the last flush")
        await at_rest(streams)
    assert await backend.keys() >= {keys.work(0)}


async def test_an_undecodable_hint_becomes_a_dead_letter_at_once(
    streams: Streams, backend: Backend, counts: Counts
) -> None:
    """An entry that cannot be decoded is buried; the entries behind it are not delayed."""
    seen: list[WorkHint] = []

    async def handler(hint: WorkHint) -> None:
        seen.append(hint)

    await backend.add_raw(keys.work(keys.shard_of(an_id())), None, {"v": b"1", "key": b"not a key"})
    await streams.hints.send([a_hint()])
    async with working(streams, handler, counts=counts):
        await at_rest(streams)
    [letter] = await streams.dead.page()
    assert seen == [a_hint()]
    assert "undecodable" in letter.cause


@pytest.mark.parametrize(
    ("error", "runs_expected"),
    [(lambda: PermanentError("broken"), 1), (lambda: KeyError("a bug"), keys.DELIVERIES_MAX)],
)
async def test_a_hint_that_always_fails_becomes_a_dead_letter(
    streams: Streams, counts: Counts, error: Callable[[], Exception], runs_expected: int
) -> None:
    """I17: a hint is buried at once after a permanent failure, and after some deliveries with a bug; then none is
    pending."""
    runs = 0

    async def handler(hint: WorkHint) -> None:
        nonlocal runs
        runs += 1
        raise error()

    await streams.hints.send([a_hint()])
    async with working(streams, handler, counts=counts):
        await at_rest(streams)
    assert len(await streams.dead.page()) == 1
    assert runs == runs_expected


async def test_transient_failures_never_make_a_hint_a_dead_letter(streams: Streams, counts: Counts) -> None:
    """While the API server is down the hint is retried any number of times, and in the end it is handled."""
    runs = 0

    async def handler(hint: WorkHint) -> None:
        nonlocal runs
        runs += 1
        if runs <= keys.DELIVERIES_MAX + 3:
            raise UnavailableError("the API server is away")

    await streams.hints.send([a_hint()])
    async with working(streams, handler, counts=counts):
        await wait_until(lambda: counts.of["hints_done"] == 1, "the hint is done")
        await at_rest(streams)
    assert await streams.dead.page() == []


async def test_a_conflict_is_observed_again_at_once(streams: Streams, counts: Counts) -> None:
    """A stale write runs the handler again, without waiting for a claim."""
    runs = 0

    async def handler(hint: WorkHint) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise StaleError("conflict")

    await streams.hints.send([a_hint()])
    async with working(streams, handler, counts=counts, settings=ConsumerSettings(block_s=0.05)):
        await at_rest(streams)
    assert (runs, counts.of["hints_done"]) == (2, 1)


async def test_an_invariant_error_ends_the_consumer(streams: Streams, counts: Counts) -> None:
    """An invariant error is a bug of ours, not a failure of the message."""

    async def handler(hint: WorkHint) -> None:
        raise InvariantError("impossible")

    await streams.hints.send([a_hint()])
    with pytest.raises(ExceptionGroup) as caught:
        async with working(streams, handler, counts=counts):
            await asyncio.sleep(5)
    assert caught.group_contains(InvariantError)


async def test_stopping_finishes_the_hints_in_progress(streams: Streams, counts: Counts) -> None:
    """A drain loses no effect and leaves nothing pending."""
    started = asyncio.Event()
    finished = False

    async def handler(hint: WorkHint) -> None:
        nonlocal finished
        started.set()
        await asyncio.sleep(0.1)
        finished = True

    async with working(streams, handler, counts=counts):
        await streams.hints.send([a_hint()])
        await started.wait()
    assert finished
    assert await streams.work_queue("looker").backlog() == 0


async def test_one_pass_handles_all_pending_hints(streams: Streams) -> None:
    """`--once` handles new hints and abandoned ones, then returns."""
    await streams.hints.send([a_hint(f"run-{number}") for number in range(70)])
    await streams.work_queue("dead").claim(limit=20, block_s=0)
    await asyncio.sleep(0.02)
    seen: set[str] = set()

    async def handler(hint: WorkHint) -> None:
        seen.add(hint.allocation)

    settings = ConsumerSettings(min_idle_s=0.01)
    worker = WorkConsumer(streams.work_queue("b"), handler, SystemClock(), settings=settings)
    assert await worker.drain_once() == 70
    assert len(seen) == 70
    assert await worker.drain_once() == 0


async def test_idle_consumers_that_own_nothing_are_forgotten(streams: Streams) -> None:
    """V13: a consumer with pending entries is never deleted, because its entries would be lost."""
    await streams.hints.send([a_hint()])
    await streams.work_queue("owner").claim(limit=10, block_s=0)
    await streams.work_queue("idle").claim(limit=10, block_s=0)
    await streams.work_queue("owner").forget_consumers(idle_s=0)
    assert len(await streams.work_queue("b").claim_abandoned(min_idle_s=0, limit=10)) == 1
