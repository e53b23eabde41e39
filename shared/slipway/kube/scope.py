"""Runs a coroutine until it ends or a stop signal is set: shared by reflectors and electors.

Owns no state and knows nothing of Kubernetes.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, Protocol, TypeVar

from slipway.runtime.tasks import TaskGroup

T = TypeVar("T")


class StopSignal(Protocol):
    """A signal that is set once, such as `asyncio.Event` or the runtime's `Stop`."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


async def run_until(stop: StopSignal, work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work` to its end and return its result; or cancel it when `stop` is set, wait for its end, and return None.

    An error of `work` is raised itself, not in a group. Raises CancelledError when `work` was cancelled although `stop`
    is not set: something that it awaited was cancelled elsewhere, and the caller must start `work` again.
    """
    try:
        async with TaskGroup() as tasks:
            working = tasks.create_task(work)
            waiting = tasks.create_task(_wait(stop))
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            waiting.cancel()
    except BaseExceptionGroup as group:
        raise_only(group)
    if not working.cancelled():
        return working.result()
    if not stop.is_set():
        raise asyncio.CancelledError("the awaited task was cancelled")
    return None


def raise_only(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the only exception of a group, or the group when it has several. For use in an `except` clause for
    groups."""
    error = only(group)
    try:
        raise error from None
    finally:
        # The group refers to the error. If the error also referred to the group, only the garbage collector could free
        # them.
        error.__context__ = None
        del error, group


def only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the only exception of a group, or the group when it has several."""
    return group.exceptions[0] if len(group.exceptions) == 1 else group


async def _wait(stop: StopSignal) -> None:
    await stop.wait()
