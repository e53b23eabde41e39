"""The bytes of an upload as a file, which a thread reads while they arrive.

Owns the hand-over between the event loop, which receives, and the thread, which unpacks and judges. Must not know what
the bytes are.

Promises: the thread gets every byte once and in order; where more than `AHEAD_BYTES` are unread, the sender waits; the
thread's wait ends with `end` or `abandon`, and the loop's wait with `stop_reading`.
"""

import asyncio
import threading
from collections import deque

AHEAD_BYTES = 4 * 1024 * 1024


class ArrivingFile:
    """Written by coroutines of one loop, read by one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._changed = threading.Condition()
        self._parts: deque[bytes] = deque()
        self._unread = 0
        self._is_whole = self._is_abandoned = self._is_stopped = False

    async def add(self, part: bytes) -> None:
        """Hands over what came next; waits while much is unread and somebody reads."""
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
        """Everything has come."""
        with self._changed:
            self._is_whole = True
            self._changed.notify()

    def abandon(self) -> None:
        """Nothing more comes, and nobody wants what was read: the next read of the thread raises OSError."""
        with self._changed:
            self._is_abandoned = True
            self._parts.clear()
            self._changed.notify()

    def read(self, size: int = -1) -> bytes:
        """Of the thread: at most the rest of one part; empty at the end. Raises OSError."""
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
        """Of the thread: it reads no more, so that nobody waits for it."""
        with self._changed:
            self._is_stopped = True
            self._parts.clear()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._has_room.set)
