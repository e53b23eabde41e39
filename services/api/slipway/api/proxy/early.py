"""Answers that come before a request is through: a workload refuses an upload and reads no further.

Owns connections to workloads that read while they write. httpcore2 writes a whole body before it looks for an answer;
where a write stands still although an answer is there, or fails after one came, the rest of the body is given up. A
refusal (300 and above) ends the body also while the client pauses in it. An answer below 300 does not: its workload
may read on, and gets the rest. Interim answers (100 Continue) are no answers.

A workload that answers and closes without reading resets the connection. The write that meets the reset closes the
socket, with an answer in it that the event loop had no time to read: it is read from a second descriptor of the socket.
"""

import asyncio
import contextlib
import os
import re
import socket
import ssl
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import httpcore2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

CONTINUE_S = 1.0
"""How long a client that asked waits for the workload's word on its head: most programs say nothing to it.

Source: RFC 9110 section 10.1.1."""
STILL_S = 1.0
"""How long a write may stand still beside an answer: one that reads on, slowly, gets the rest of the body."""
_READ_BYTES = 64 * 1024
_INTERIM_BYTES_MAX = 64 * 1024
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d.*?\r?\n\r?\n", re.DOTALL)
_FINAL = re.compile(rb"HTTP/1\.[01] (\d{3})")
_STATUS_BYTES = len(b"HTTP/1.1 200")
_REFUSAL = 300


class Upload:
    """The body of one request, as the connection that it is written to tells its reader of answers."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard: asyncio.Future[None] = loop.create_future()
        self._refused: asyncio.Future[None] = loop.create_future()

    def hear(self, *, is_refusal: bool) -> None:
        """The workload has said something; a refusal ends the body."""
        for told in (self._heard, self._refused) if is_refusal else (self._heard,):
            if not told.done():
                told.set_result(None)

    async def until_heard(self) -> None:
        """Returns when the workload has said something to the head, or is silent for too long."""
        await asyncio.wait({self._heard}, timeout=CONTINUE_S)

    async def next_of(self, pieces: "AsyncGenerator[bytes]") -> bytes | None:
        """The next piece of the body; None at its end.

        Raises:
            httpcore2.WriteError: the workload refuses the rest.
        """
        refused = httpcore2.WriteError("the workload has refused the rest of the body")
        if self._refused.done():  # a client that expects `100 Continue` gets it with the first read
            raise refused
        reading = asyncio.ensure_future(_next(pieces))
        try:
            await asyncio.wait({reading, self._refused}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise refused
            return reading.result()
        finally:
            if not reading.done():  # no one else may read the body before this has ended
                reading.cancel()
                await asyncio.wait({reading})


UPLOAD: "ContextVar[Upload | None]" = ContextVar("upload", default=None)
"""The body of the request that this task sends: httpx2 passes nothing to the connection that it chooses."""


CONFIRM: "ContextVar[Callable[[], Awaitable[None]] | None]" = ContextVar("confirm", default=None)
"""What has to be true of a new connection of this task before anything is sent over it."""


class EarlyBackend(httpcore2.AsyncNetworkBackend):
    """Connects as httpcore2 does by itself, and has the connection confirmed."""

    def __init__(self) -> None:
        self._inner: httpcore2.AsyncNetworkBackend = httpcore2.AnyIOBackend()  # pyright: ignore[reportAssignmentType, reportUnknownMemberType, reportAttributeAccessIssue] - a stand-in where anyio is missing

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: "Iterable[Any] | None" = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        confirm = CONFIRM.get()
        if confirm is not None:
            try:
                await confirm()
            except BaseException:
                await stream.aclose()
                raise
        return EarlyStream(stream)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class EarlyStream(httpcore2.AsyncNetworkStream):
    """One connection. What is read while a body is written is kept for the next `read`."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
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
            raise httpcore2.ReadTimeout
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
            upload = UPLOAD.get()
            if upload is not None:
                self._reading = self._begun(upload)
            return
        self._reading = self._reading or self._begun(Upload())
        writing = asyncio.ensure_future(self._inner.write(buffer, timeout))
        try:
            await asyncio.wait({writing, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                await asyncio.wait({writing}, timeout=STILL_S)
            if not writing.done():
                raise httpcore2.WriteError("the workload has answered and reads no further")
            writing.result()
        except httpcore2.WriteError:
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
    ) -> httpcore2.AsyncNetworkStream:
        return EarlyStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._reading is not None:
            return self._reading.done()
        return self._inner.get_extra_info(info)

    def _begun(self, upload: Upload) -> "asyncio.Future[bytes]":
        self._second = self._second or self._duplicate()
        reading = asyncio.ensure_future(self._answer(upload))
        reading.add_done_callback(_looked_at)
        return reading

    async def _answer(self, upload: Upload) -> bytes:
        """What the workload says, up to the begin of its final answer."""
        received, at = bytearray(), 0
        is_refusal = True  # so is an end without an answer, and a connection that fails
        try:
            while part := await self._inner.read(_READ_BYTES, None):
                received += part
                while interim := _INTERIM.match(received, at):
                    upload.hear(is_refusal=False)
                    at = interim.end()
                if at > _INTERIM_BYTES_MAX:
                    raise httpcore2.RemoteProtocolError("the workload sends interim answers without end")
                rest = bytes(received[at : at + _READ_BYTES])
                if len(rest) >= _STATUS_BYTES and not _is_interim(rest):
                    final = _FINAL.match(rest)
                    is_refusal = final is None or int(final[1]) >= _REFUSAL
                    break
            return bytes(received)
        finally:
            upload.hear(is_refusal=is_refusal)

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


def _is_interim(begun: bytes) -> bool:
    """Whether this is the begin of an interim answer that is not through yet."""
    final = _FINAL.match(begun)
    return final is not None and final[1].startswith(b"1") and final[1] != b"101" and len(begun) < _READ_BYTES


async def _next(pieces: "AsyncGenerator[bytes]") -> bytes | None:
    return await anext(pieces, None)


def _looked_at(reading: "asyncio.Future[bytes]") -> None:
    """What a read failed with is told when it is asked for, or not at all."""
    if not reading.cancelled():
        reading.exception()
