"""Groups of tasks in which a cancellation is never lost.

Owns what `asyncio.TaskGroup` gets wrong until Python 3.13. When a group is cancelled from outside and one of its tasks
fails before it has ended, the group raises the failure alone: a caller that logs failures and goes on, as every loop of
ours does, then goes on although it was told to end, and who waits for its end waits for ever. And when a task fails
while the group waits for the rest, the task that holds the group counts as being cancelled from then on.

Promises: a group that was cancelled from outside raises CancelledError, and logs what failed meanwhile; only a broken
invariant is raised all the same. A group that failed by itself leaves no trace in `Task.cancelling()`. What a group
raises is not held by the frames that it went through: such a cycle, with all that hangs on it, would stay until the
collector looks at the oldest objects, which it does seldom here.
"""

import asyncio
import sys
from types import TracebackType
from typing import Any, Self

from slipway.errors import InvariantError
from slipway.runtime import log

_LOSES_COUNT = sys.version_info < (3, 13)

_LIBRARY_EXIT = asyncio.TaskGroup.__aexit__.__code__

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
            if _LOSES_COUNT and not was_requested and _has_cancelled_parent(self):
                _current().uncancel()
            _clear_library_frames(group)
            if _current().cancelling() <= self._before or group.subgroup(InvariantError) is not None:
                raise
            _log.warning("a task failed while its group was being cancelled", exc_info=group)
            raise asyncio.CancelledError from group
        except BaseException as error:
            _clear_library_frames(error)
            raise
        finally:
            # A task holds what it raises; this group, which the frame of its user holds, holds the task.
            self.__dict__.update(_parent_task=None)
            del exc, tb


def _current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a group of tasks is held by a task")
    return task


def _clear_library_frames(error: BaseException) -> None:
    """Let go of what the library's frames hold, which is the exception itself."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code is _LIBRARY_EXIT:
            at.tb_frame.clear()
        at = at.tb_next


def _has_cancelled_parent(group: asyncio.TaskGroup) -> bool:
    """Whether a failing task has cancelled the one that holds the group: the library has no other way to ask."""
    return bool(getattr(group, "_parent_cancel_requested", False))
