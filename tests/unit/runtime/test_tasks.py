"""Groups of tasks: a cancellation from outside is never lost, and a failure inside does not look like one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from slipway.errors import InvariantError
from slipway.kube.scope import raise_only
from slipway.runtime.tasks import TaskGroup
from tests.support.cycles import cyclic_garbage
from tests.support.virtual_time import run_virtual

Work = Callable[[], Coroutine[Any, Any, None]]


async def fails_at_its_end() -> None:
    try:
        await asyncio.sleep(60.0)
    finally:
        raise IndexError("while it was cancelled")


async def breaks_at_its_end() -> None:
    try:
        await asyncio.sleep(60.0)
    finally:
        raise InvariantError("while it was cancelled")


async def fails_soon() -> None:
    await asyncio.sleep(1.0)
    raise IndexError("by itself")


def in_a_loop(work: Work) -> Callable[[], Coroutine[Any, Any, int]]:
    """A loop that runs a group of `work` repeatedly and survives each failure; it returns the number of runs."""

    async def rounds() -> int:
        for turn in range(3):
            try:
                async with TaskGroup() as tasks:
                    tasks.create_task(work())
                    await asyncio.sleep(60.0)
            except IndexError:
                raise AssertionError from None
            except Exception:  # noqa: BLE001 - as the shared loop does
                continue
            return turn
        return 3

    return rounds


def test_a_group_that_is_cancelled_ends_also_when_one_of_its_tasks_fails() -> None:
    """A cancelled group ends also when one of its tasks fails, also in a loop that survives failures; otherwise the
    loop would never end."""

    async def main() -> None:
        running = asyncio.ensure_future(in_a_loop(fails_at_its_end)())
        await asyncio.sleep(1.0)
        running.cancel()
        await asyncio.wait({running}, timeout=5.0)
        assert running.cancelled()

    run_virtual(main)


def test_a_broken_invariant_is_raised_also_by_a_group_that_is_cancelled() -> None:
    """A cancelled group raises a broken invariant too, because that must end the process."""

    async def hold() -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(breaks_at_its_end())
            await asyncio.sleep(60.0)

    async def main() -> None:
        running = asyncio.ensure_future(hold())
        await asyncio.sleep(1.0)
        running.cancel()
        with pytest.raises(BaseExceptionGroup):
            await running

    run_virtual(main)


def test_a_deadline_around_a_group_is_one_also_when_a_task_fails_by_it() -> None:
    """A deadline around a group raises TimeoutError, also when a task fails because of it."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0), TaskGroup() as tasks:
                tasks.create_task(fails_at_its_end())

    run_virtual(main)


@pytest.mark.parametrize("waits_in_body", [True, False])
def test_a_failure_inside_is_no_cancellation(waits_in_body: bool) -> None:
    """A failure inside a group is raised, and the surrounding task is not cancelled."""

    async def hold() -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(fails_soon())
            if waits_in_body:
                await asyncio.sleep(60.0)

    async def main() -> None:
        with pytest.raises(BaseExceptionGroup):
            await hold()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run_virtual(main)


async def fails_alone() -> None:
    try:
        async with TaskGroup() as tasks:
            tasks.create_task(fails_soon())
    except BaseExceptionGroup as group:
        raise_only(group)


async def is_cancelled() -> None:
    async with TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(60.0))


async def fails_in_a_group() -> None:
    async with TaskGroup() as tasks:
        tasks.create_task(fails_soon())


@pytest.mark.parametrize(
    ("work", "kind"),
    [(fails_alone, IndexError), (fails_in_a_group, ExceptionGroup), (is_cancelled, asyncio.CancelledError)],
)
def test_what_a_group_raises_stays_in_no_cycle(work: Work, kind: type[BaseException]) -> None:
    """An exception of a group is in no reference cycle: it is freed with its last reference, and neither frames nor the
    group keep it."""

    async def main() -> None:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0.5)
        if kind is asyncio.CancelledError:
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() if kind is asyncio.CancelledError else isinstance(task.exception(), kind)

    with cyclic_garbage() as left:
        run_virtual(main)
    assert not [each for each in left if isinstance(each, (IndexError, ExceptionGroup))]
