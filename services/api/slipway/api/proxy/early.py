"""Answers that come before a request is through: a workload refuses an upload and reads no further.

Owns connections to workloads that read while they write. httpcore writes a whole body before it looks for an answer;
where a write stands still although an answer is there, or fails after one came, the rest of the body is given up.

A workload that answers and closes without reading resets the connection. The write that meets the reset closes the
socket, with an answer in it that the event loop had no time to read: it is read from a second descriptor of the socket.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

import httpcore

if TYPE_CHECKING:
    from collections.abc import Iterable

STILL_S = 1.0
"""How long a write may stand still beside an answer: one that reads on, slowly, gets the rest of the body."""
_READ_BYTES = 64 * 1024


class EarlyBackend(httpcore.AsyncNetworkBackend):
    """Connects as httpcore does by itself."""

    def __init__(self) -> None:
        self._inner: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()  # pyright: ignore[reportAssignmentType, reportUnknownMemberType, reportAttributeAccessIssue] - a stand-in where anyio is missing

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: "Iterable[Any] | None" = None,
    ) -> httpcore.AsyncNetworkStream:
        return EarlyStream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class EarlyStream(httpcore.AsyncNetworkStream):
    """One connection. What is read while a body is written is kept for the next `read`."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._writes = 0
        self._reading: asyncio.Future[bytes] | None = None
        self._second: socket.socket | None = None
        self._is_reset = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._writes = 0
        reading = self._reading
        if reading is None:
            return self._left(max_bytes) if self._is_reset else await self._inner.read(max_bytes, timeout)
        await asyncio.wait({reading}, timeout=timeout)
        if not reading.done():
            raise httpcore.ReadTimeout
        self._reading = None
        if self._is_reset and reading.exception() is not None:
            return self._left(max_bytes)
        return reading.result()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        self._writes += 1
        if self._writes == 1:  # the head; most requests have nothing else
            await self._inner.write(buffer, timeout)
            return
        if self._reading is None:
            self._second = self._second or self._duplicate()
            self._reading = asyncio.ensure_future(self._inner.read(_READ_BYTES, None))
            self._reading.add_done_callback(_looked_at)
        writing = asyncio.ensure_future(self._inner.write(buffer, timeout))
        try:
            await asyncio.wait({writing, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                await asyncio.wait({writing}, timeout=STILL_S)
            if not writing.done():
                raise httpcore.WriteError("the workload has answered and reads no further")
            writing.result()
        except httpcore.WriteError:
            self._is_reset = self._second is not None and writing.done()
            raise
        finally:
            writing.cancel()

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._second is not None:
            self._second.close()
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return EarlyStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._reading is not None:
            return self._reading.done()
        return self._inner.get_extra_info(info)

    def _duplicate(self) -> socket.socket | None:
        """The same socket once more; None where only the inner stream can understand what comes (TLS)."""
        own = self._inner.get_extra_info("socket")
        if own is None or self._inner.get_extra_info("ssl_object") is not None:
            return None
        return socket.socket(fileno=os.dup(own.fileno()))

    def _left(self, max_bytes: int) -> bytes:
        """What came before the reset and was not read yet; b"" at its end."""
        if self._second is not None:
            with contextlib.suppress(OSError):
                return self._second.recv(max_bytes)
        return b""


def _looked_at(reading: "asyncio.Future[bytes]") -> None:
    """What a read failed with is told when it is asked for, or not at all."""
    if not reading.cancelled():
        reading.exception()
