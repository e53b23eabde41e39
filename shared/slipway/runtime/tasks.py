"""Groups of tasks in which a cancellation is never lost.

Owns what `asyncio.TaskGroup` gets wrong until Python 3.13. When a group is cancelled from outside and one of its tasks
fails before it has ended, the group raises the failure alone: a caller that logs failures and goes on, as every loop of
ours does, then goes on although it was told to end, and who waits for its end waits for ever. And when a task fails
while the group waits for the rest, the task that holds the group counts as being cancelled from then on.

Promises: a group that was cancelled from outside raises CancelledError, and logs what failed meanwhile; only a broken
invariant is raised all the same. A group that failed by itself leaves no trace in `Task.cancelling()`.
"""

import asyncio
import sys
from types import TracebackType
from typing import Any, Self

from slipway.errors import InvariantError
from slipway.runtime import log

_LOSES_COUNT = sys.version_info < (3, 13)

_log = log.get_logger(__name__)


class TaskGroup(asyncio.TaskGroup):
    """Use it as `asyncio.TaskGroup`."""

    async def __aenter__(self) -> Self:
        self._before = _current().cancelling()
        return await super().__aenter__()

    async def __aexit__(
        self, et: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        was_requested = _has_cancelled_parent(self)
        try:
            await super().__aexit__(et, exc, tb)
        except BaseExceptionGroup as group:
            task = _current()
            if _LOSES_COUNT and not was_requested and _has_cancelled_parent(self):
                task.uncancel()
            if task.cancelling() <= self._before or group.subgroup(InvariantError) is not None:
                raise
            _log.warning("a task failed while its group was being cancelled", exc_info=group)
            raise asyncio.CancelledError from group


def _current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a group of tasks is held by a task")
    return task


def _has_cancelled_parent(group: asyncio.TaskGroup) -> bool:
    """Whether a failing task has cancelled the one that holds the group: the library has no other way to ask."""
    return bool(getattr(group, "_parent_cancel_requested", False))
