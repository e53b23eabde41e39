"""Work that ends with a stop signal: the one shape that reflectors and electors share.

Owns no state and knows nothing of Kubernetes.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, Protocol, TypeVar

from slipway.runtime.tasks import TaskGroup

T = TypeVar("T")


class StopSignal(Protocol):
    """Set once; `asyncio.Event` and the runtime's `Stop` both are one."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


async def run_until(stop: StopSignal, work: Coroutine[Any, Any, T]) -> T | None:
    """Runs `work` to its end, or cancels it when `stop` is set; then waits for it. None when it was cancelled.

    An error of `work` is raised as it is, not in a group. Raises CancelledError when `work` was cancelled by nobody's
    wish: what it waited for was cancelled by another, and who calls has to begin it again.
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
        raise asyncio.CancelledError("what it waited for was cancelled")
    return None


def raise_only(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the one exception of a group, or the group when there are several, in an `except` clause for groups."""
    error = only(group)
    try:
        raise error from None
    finally:
        # The group holds the error: if the error held the group too, both would stay until the collector finds them.
        error.__context__ = None
        del error, group


def only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception of a group, or the group when there are several."""
    return group.exceptions[0] if len(group.exceptions) == 1 else group


async def _wait(stop: StopSignal) -> None:
    await stop.wait()
