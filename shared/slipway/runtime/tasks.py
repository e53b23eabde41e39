"""Groups of tasks in which a cancellation is never lost, and turns of the event loop.

`TaskGroup` corrects two faults of `asyncio.TaskGroup` before Python 3.13. The first: a group is cancelled from outside,
and one of its tasks fails before the group has ended. Then the group raises only the failure. A caller that logs
failures and goes on, as all our loops do, goes on although it was cancelled, and code that waits for its end waits for
ever. The second: a task fails while the group waits for the other tasks. Then the task that owns the group is marked as
being cancelled from then on.

Promises: a group that was cancelled from outside raises CancelledError, and logs the failures of its tasks. Only a
broken invariant is still raised. A group that failed by itself leaves `Task.cancelling()` unchanged. The frames that an
exception of a group passed through do not refer to it. Such a cycle, with all objects that it refers to, would stay
until the collector scans the oldest generation, which is rare here.

Turns of the event loop keep a peer that sends very small pieces from blocking other tasks. A coroutine lets others run
only where it waits. Reading data that has already arrived does not wait, nor does sending data that the transport
accepts at once. So a peer that sends a million pieces of one byte would occupy the event loop.
"""

import asyncio
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from slipway.errors import InvariantError
from slipway.runtime import log

_LOSES_COUNT = sys.version_info < (3, 13)

_LIBRARY_EXIT = asyncio.TaskGroup.__aexit__.__code__

_log = log.get_logger(__name__)


class TaskGroup(asyncio.TaskGroup):
    """A task group with the interface of `asyncio.TaskGroup`."""

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
            # A task refers to the exception that it raises. The user's frame refers to this group, and the group to the
            # task.
            self.__dict__.update(_parent_task=None)
            del exc, tb


def _current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a group of tasks is held by a task")
    return task


def _clear_library_frames(error: BaseException) -> None:
    """Clear the library's frames in the traceback, because they refer to the exception itself."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code is _LIBRARY_EXIT:
            at.tb_frame.clear()
        at = at.tb_next


def _has_cancelled_parent(group: asyncio.TaskGroup) -> bool:
    """Whether a failing task has cancelled the task that owns the group. The library has no public way to ask this."""
    return bool(getattr(group, "_parent_cancel_requested", False))


TURN_UNITS = 32
"""Messages or chunks per turn: a few milliseconds of work."""
TURN_BYTES = 16 * 1024
"""Bytes that a parser receives per turn: some 3,000 chunks of the smallest size."""


class UnitTurns:
    """A counter of the messages or chunks that one coroutine passes on."""

    def __init__(self) -> None:
        self._passed = 0

    async def passed(self) -> None:
        """Count one more. After every `TURN_UNITS`, let other tasks run."""
        self._passed += 1
        if self._passed % TURN_UNITS == 0:
            await asyncio.sleep(0)


class ByteTurns:
    """Pass the bytes that were read to a parser in pieces of at most `TURN_BYTES`, one per turn of the event loop.

    `take` receives a piece and returns whether it wants more. When all pieces are passed, `may_read` returns whether
    the transport may read again. Until then the transport is paused, so that at most the data of one read waits.
    """

    def __init__(self, take: Callable[[bytes], bool], may_read: Callable[[], bool]) -> None:
        self._take = take
        self._may_read = may_read
        self._rest = b""
        self._is_waiting = False

    def add(self, data: bytes, transport: asyncio.Transport) -> None:
        """Add the bytes that were read."""
        if self._is_waiting:
            self._rest += data
        else:
            self._go_on(data, transport)

    def _go_on(self, data: bytes, transport: asyncio.Transport) -> None:
        self._rest = data[TURN_BYTES:]
        wants_more = self._take(data[:TURN_BYTES])
        if not wants_more or transport.is_closing():
            self._rest, self._is_waiting = b"", False
        elif self._rest:
            self._is_waiting = True
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._next, transport)
        elif self._is_waiting:
            self._is_waiting = False
            if self._may_read():
                transport.resume_reading()

    def _next(self, transport: asyncio.Transport) -> None:
        if self._is_waiting:
            self._go_on(self._rest, transport)
