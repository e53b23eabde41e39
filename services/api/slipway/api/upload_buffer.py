"""The bytes of an upload as a file that a thread reads while they arrive.

Owns the hand-over from the event loop, which receives, to the thread, which unpacks and checks. Must not know the
format of the bytes.

Promises: the thread gets every byte once and in order. While more than `AHEAD_BYTES` are unread, the sender waits. The
thread's wait ends with `end` or `abandon`, and the loop's wait with `stop_reading`.
"""

import asyncio
import threading
from collections import deque

AHEAD_BYTES = 4 * 1024 * 1024


class UploadBuffer:
    """A file that coroutines of one loop write and one thread reads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._changed = threading.Condition()
        self._parts: deque[bytes] = deque()
        self._unread = 0
        self._is_whole = self._is_abandoned = self._is_stopped = False

    async def add(self, part: bytes) -> None:
        """Append the next part. Wait while too much is unread and the thread still reads."""
        await self._has_room.wait()
        with self._changed:
            if self._is_stopped or not part:
                return
            self._parts.append(part)
            self._unread += len(part)
            if self._unread > AHEAD_BYTES:
                self._has_room.clear()
            self._changed.notify()

    def end(self) -> None:
        """Mark the end of the file: all parts have arrived."""
        with self._changed:
            self._is_whole = True
            self._changed.notify()

    def abandon(self) -> None:
        """Give the upload up: the next read of the thread raises OSError."""
        with self._changed:
            self._is_abandoned = True
            self._parts.clear()
            self._changed.notify()

    def read(self, size: int = -1) -> bytes:
        """Called by the thread. Return at most the rest of one part; empty at the end. Raises OSError if abandoned."""
        with self._changed:
            while not (self._parts or self._is_whole or self._is_abandoned):
                self._changed.wait()
            if self._is_abandoned:
                raise OSError("the upload was abandoned")
            if not self._parts:
                return b""
            part = self._parts.popleft()
            if 0 <= size < len(part):
                self._parts.appendleft(part[size:])
                part = part[:size]
            was_full = self._unread > AHEAD_BYTES
            self._unread -= len(part)
            if was_full and self._unread <= AHEAD_BYTES:
                self._loop.call_soon_threadsafe(self._has_room.set)
            return part

    def stop_reading(self) -> None:
        """Called by the thread when it reads no more, so that the sender does not wait for it."""
        with self._changed:
            self._is_stopped = True
            self._parts.clear()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._has_room.set)
