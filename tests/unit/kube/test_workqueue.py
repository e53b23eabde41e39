"""The work queue: one key at a time, in order, delayed and backed off, drained at the end."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.kube.workqueue import WorkQueue
from slipway.runtime.clock import SeededRandom
from tests.support.virtual_time import run_virtual


def virtual(test: Callable[[WorkQueue[str]], Awaitable[None]]) -> None:
    """Run a test on virtual time with a fresh queue."""

    async def main() -> None:
        await test(WorkQueue(SeededRandom(1)))

    run_virtual(main)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_waiting_key_waits_once() -> None:
    """A key that is added twice is handed out once, in the order of the first adds."""

    async def check(queue: WorkQueue[str]) -> None:
        for key in ["a", "b", "a", "c", "b"]:
            queue.add(key)
        assert len(queue) == 3
        assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]
        assert queue.active_count == 3

    virtual(check)


def test_some_keys_are_put_first() -> None:
    """The chosen keys come before the others, and keep their order, as the others do. A key that is added later is
    last."""

    async def check(queue: WorkQueue[str]) -> None:
        for key in ["a", "B", "c", "D"]:
            queue.add(key)
        queue.put_first(str.isupper)
        queue.add("E")
        queue.add("c")
        assert [await queue.get() for _ in range(5)] == ["B", "D", "a", "c", "E"]

    virtual(check)


def test_a_key_added_while_active_runs_once_more() -> None:
    """A key that is added while it is active is not handed to a second worker, and runs once after `done`, however
    often it is added."""

    async def check(queue: WorkQueue[str]) -> None:
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await queue.get() == "a"
        queue.done("a")
        assert queue.is_idle

    virtual(check)


def test_delays_and_the_earliest_wins() -> None:
    """A delayed key is handed out at its time; an earlier time replaces a later one, a later one is ignored."""

    async def check(queue: WorkQueue[str]) -> None:
        queue.add_after("late", 10)
        queue.add_after("a", 5)
        queue.add_after("a", 2)
        queue.add_after("a", 8)
        assert queue.delayed_count == 2
        assert (await queue.get(), now()) == ("a", 2)
        queue.done("a")
        assert (await queue.get(), now()) == ("late", 10)
        queue.add_after("now", 0)
        assert (await queue.get(), now()) == ("now", 10)

    virtual(check)


def test_add_overrides_a_delay() -> None:
    """A key that becomes due now is not handed out again at its old time."""

    async def check(queue: WorkQueue[str]) -> None:
        queue.add_after("a", 5)
        queue.add("a")
        assert await queue.get() == "a"
        queue.done("a")
        queue.add_after("end", 20)
        assert (await queue.get(), now()) == ("end", 20)

    virtual(check)


def test_a_delay_that_ends_while_the_key_is_active_runs_it_again() -> None:
    """A delay that ends while the key is active runs the key once more."""

    async def check(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.get()
        queue.add_after("a", 1)
        await asyncio.sleep(2)
        assert len(queue) == 0
        queue.done("a")
        assert (await queue.get(), now()) == ("a", 2)

    virtual(check)


def test_backoff_doubles_with_jitter_and_forgets() -> None:
    """Delays stay in the upper half of a doubling base, up to the cap; `forget` starts over; a given minimum delay is
    respected."""

    async def check(queue: WorkQueue[str]) -> None:
        delays: list[float] = []
        for _ in range(12):
            delays.append(queue.retry("a"))
            await queue.get()
            queue.done("a")
        for number, delay_s in enumerate(delays):
            base_s = min(0.2 * 2**number, 30.0)
            assert base_s / 2 <= delay_s <= base_s
        assert queue.failures("a") == 12
        queue.forget("a")
        assert queue.retry("a") <= 0.2
        assert queue.retry("b", at_least_s=7) == 7

    virtual(check)


def test_several_workers_share() -> None:
    """Waiting workers are woken one per key, and no key goes to two of them."""

    async def check(queue: WorkQueue[str]) -> None:
        taken: list[str] = []

        async def work() -> None:
            while (key := await queue.get()) is not None:
                taken.append(key)
                await asyncio.sleep(1)
                queue.done(key)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(work())
            await asyncio.sleep(1)
            for number in range(6):
                queue.add(str(number))
            await asyncio.sleep(1.5)
            assert queue.active_count == 3
            queue.shut_down()
        assert taken == [str(number) for number in range(6)]

    virtual(check)


def test_a_cancelled_worker_passes_its_turn_on() -> None:
    """A key is not lost when the worker that was woken for it is cancelled at that instant."""

    async def check(queue: WorkQueue[str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(queue.get())
            second = tasks.create_task(queue.get())
            await asyncio.sleep(0)
            queue.add("a")
            first.cancel()
        assert first.cancelled()
        assert second.result() == "a"

    virtual(check)


def test_shut_down_drains_what_is_due_and_drops_what_is_delayed() -> None:
    """After the shutdown workers end after the due keys; no new key is accepted."""

    async def check(queue: WorkQueue[str]) -> None:
        queue.add("a")
        queue.add_after("later", 60)
        queue.shut_down()
        queue.add("b")
        queue.add_after("c", 1)
        assert await queue.get() == "a"
        queue.done("a")
        assert await queue.get() is None
        assert queue.delayed_count == 0

    virtual(check)


operation = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 4), st.just(0.0)),
    st.tuples(st.just("after"), st.integers(0, 4), st.floats(0.1, 5)),
    st.tuples(st.just("retry"), st.integers(0, 4), st.just(0.0)),
    st.tuples(st.just("pass"), st.just(0), st.floats(0.0, 3)),
)


@pytest.mark.parametrize("workers", [1, 3])
@settings(max_examples=60, deadline=None)
@given(operations=st.lists(operation, max_size=40))
def test_every_key_runs_after_its_last_add_and_never_twice_at_once(
    workers: int, operations: list[tuple[str, int, float]]
) -> None:
    """With any order of calls a key never runs twice at once, and no add is lost."""

    async def main() -> None:
        queue: WorkQueue[int] = WorkQueue(SeededRandom(3))
        active: set[int] = set()
        added_at: dict[int, float] = {}
        ran_at: dict[int, float] = {}

        async def work() -> None:
            while (key := await queue.get()) is not None:
                assert key not in active
                active.add(key)
                ran_at[key] = now()
                await asyncio.sleep(0.3)
                active.discard(key)
                queue.done(key)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(work())
            for kind, key, seconds in operations:
                if kind == "pass":
                    await asyncio.sleep(seconds)
                    continue
                added_at[key] = now()
                if kind == "add":
                    queue.add(key)
                elif kind == "after":
                    queue.add_after(key, seconds)
                else:
                    queue.retry(key)
            await asyncio.sleep(500)
            assert queue.is_idle
            assert queue.delayed_count == 0
            queue.shut_down()
        assert all(ran_at[key] >= moment for key, moment in added_at.items())

    run_virtual(main)


def test_on_the_loop_that_services_run_on() -> None:
    """Delayed keys are handed out on uvloop too, which returns handles without a time for immediate calls."""

    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue(SeededRandom(1))
        for number in range(200):
            queue.add_after(f"{number}", 0.000001 * (200 - number))
        async with asyncio.timeout(10):
            found = {await queue.get() for _ in range(200)}
        assert found == {f"{number}" for number in range(200)}

    uvloop.run(main())
