"""Lanes and turns: a limit of concurrent calls, the gravest failure raised, one call at a time per key."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from slipway.errors import ControlPlaneError, InvalidError, StaleError, UnavailableError
from slipway.podworker.concurrency import KeyedLock, LaunchStage, PriorityLimiter


class ConcurrentCalls:
    """Counts how many calls are under way."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0

    async def call(self, error: ControlPlaneError | None = None, rounds: int = 3) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(rounds):
            await asyncio.sleep(0)
        self.now -= 1
        self.done += 1
        if error is not None:
            raise error


async def test_the_limit_holds_over_everything_that_runs() -> None:
    """The limit is for all calls: two batches share the lanes."""
    load, lanes = ConcurrentCalls(), PriorityLimiter(3)
    await asyncio.gather(lanes.run_all([load.call] * 10), lanes.run_all([load.call] * 10))
    assert (load.most, load.done) == (3, 20)


async def test_started_work_goes_before_new_work() -> None:
    """A free lane goes to the call of the latest stage, and within a stage to the one that waited longest."""
    lanes, order = PriorityLimiter(1), list[str]()

    async def call(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0)

    waiting = [
        (LaunchStage.FIRST, "held"),
        (LaunchStage.FIRST, "begins"),
        (LaunchStage.RANKS, "rank 0"),
        (LaunchStage.RANKS, "rank 1"),
    ]
    waiting.append((LaunchStage.LAST, "binds"))
    await asyncio.gather(*(lanes.run(partial(call, name), stage) for stage, name in waiting))
    assert order == ["held", "binds", "rank 0", "rank 1", "begins"]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 6])
async def test_a_cancelled_task_frees_its_slot(rounds: int) -> None:
    """A cancelled call leaves its lane to the next one, while it waits, when it has just got the lane, and while it
    runs."""
    load, lanes = ConcurrentCalls(), PriorityLimiter(1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lanes.run(partial(load.call, rounds=1)))
        second = tasks.create_task(lanes.run(partial(load.call, rounds=50)))
        for _ in range(rounds):
            await asyncio.sleep(0)
        second.cancel()
    load.now = 0
    async with asyncio.timeout(1):
        await lanes.run_all([load.call] * 3)
    assert load.most == 1


async def test_after_a_failure_nothing_is_begun_and_what_runs_is_finished() -> None:
    """After a failure no call is begun, and running calls are finished, because a cancelled write would have an unknown
    outcome."""
    load, lanes = ConcurrentCalls(), PriorityLimiter(2)
    calls: list[Callable[[], Awaitable[None]]] = [partial(load.call, UnavailableError("x"), 1), *[load.call] * 8]
    with pytest.raises(UnavailableError):
        await lanes.run_all(calls)
    assert load.now == 0
    assert load.done <= 3


async def test_the_gravest_failure_is_raised() -> None:
    """The gravest failure is raised: a permanent refusal before a lost connection."""
    load, lanes = ConcurrentCalls(), PriorityLimiter(3)
    errors = [UnavailableError("t"), StaleError("s"), InvalidError("p")]
    with pytest.raises(InvalidError):
        await lanes.run_all([partial(load.call, error) for error in errors])


async def test_turns_serialise_a_key_and_leave_others_alone() -> None:
    """Calls of one key run in turn and do not delay others, so that a delete never overtakes its create within a
    process."""
    turns, order = KeyedLock(), list[str]()

    async def visit(key: str, name: str) -> None:
        async with turns.hold(key):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(visit("a", "1"), visit("a", "2"), visit("b", "3"))
    assert order.index("1 out") < order.index("2 in")
    assert order.index("3 in") < order.index("1 out")
    assert not turns.is_locked("a")
