"""Early answers: a workload answers, for example refuses an upload, before it has read the whole request.

Owns connections to workloads that read while they write. httpcore2 itself writes a whole body before it reads the
answer. Here the rest of a body is dropped when a write stalls although an answer has arrived, or fails after an answer.
A refusal (status 300 and above) ends the body even while the client pauses in it. An answer below 300 does not end it:
the workload may continue to read, and receives the rest. Interim answers (100 Continue) are no answers.

A workload that answers and closes without reading resets the connection. The write that gets the reset closes the
socket, although it contains an answer that the event loop had no time to read. The answer is then read from a second
descriptor of the socket.
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
"""How long a client that sent `Expect: 100-continue` waits for an answer to its head; most workloads send none.

Source: RFC 9110 section 10.1.1."""
STILL_S = 1.0
"""How long a write may stall after an answer: a workload that still reads, slowly, receives the rest of the body."""
_READ_BYTES = 64 * 1024
_INTERIM_BYTES_MAX = 64 * 1024
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d.*?\r?\n\r?\n", re.DOTALL)
_FINAL = re.compile(rb"HTTP/1\.[01] (\d{3})")
_STATUS_BYTES = len(b"HTTP/1.1 200")
_REFUSAL = 300


class Upload:
    """The body of one request: the connection reports the workload's answers to the task that reads the body."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard: asyncio.Future[None] = loop.create_future()
        self._refused: asyncio.Future[None] = loop.create_future()

    def on_response(self, *, is_refusal: bool) -> None:
        """Note that the workload has answered; a refusal ends the body."""
        for told in (self._heard, self._refused) if is_refusal else (self._heard,):
            if not told.done():
                told.set_result(None)

    async def wait_for_response(self) -> None:
        """Wait until the workload has answered the head, at most `CONTINUE_S`."""
        await asyncio.wait({self._heard}, timeout=CONTINUE_S)

    async def next_of(self, pieces: "AsyncGenerator[bytes]") -> bytes | None:
        """Return the next piece of the body; None at its end.

        Raises:
            httpcore2.WriteError: the workload refuses the rest.
        """
        refused = httpcore2.WriteError("the workload has refused the rest of the body")
        if self._refused.done():  # do not read the body: the first read would send `100 Continue` to the client
            raise refused
        reading = asyncio.ensure_future(_next(pieces))
        try:
            await asyncio.wait({reading, self._refused}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise refused
            return reading.result()
        finally:
            if not reading.done():  # another task may read the body only after this read has ended
                reading.cancel()
                await asyncio.wait({reading})


UPLOAD: "ContextVar[Upload | None]" = ContextVar("upload", default=None)
"""The body of the request that this task sends. A context variable, because httpx2 cannot pass it to the connection."""


CONFIRM: "ContextVar[Callable[[], Awaitable[None]] | None]" = ContextVar("confirm", default=None)
"""The check that a new connection of this task must pass before anything is sent over it; it raises when it fails."""


class EarlyResponseBackend(httpcore2.AsyncNetworkBackend):
    """Connects as httpcore2 does by default, then runs the check of `CONFIRM`."""

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
        return EarlyResponseStream(stream)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class EarlyResponseStream(httpcore2.AsyncNetworkStream):
    """One connection. Bytes that arrive while a body is written are kept for the next `read`."""

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
        if self._writes == 1:  # the head; most requests have no body
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
                raise httpcore2.WriteError("the workload has answered and does not read the rest of the body")
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
        return EarlyResponseStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

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
        """Return the bytes that the workload sends, up to the beginning of its final answer."""
        received, at = bytearray(), 0
        is_refusal = True  # an end without an answer and a failed connection are refusals too
        try:
            while part := await self._inner.read(_READ_BYTES, None):
                received += part
                while interim := _INTERIM.match(received, at):
                    upload.on_response(is_refusal=False)
                    at = interim.end()
                if at > _INTERIM_BYTES_MAX:
                    raise httpcore2.RemoteProtocolError("the workload sends too many interim answers")
                rest = bytes(received[at : at + _READ_BYTES])
                if len(rest) >= _STATUS_BYTES and not _is_interim(rest):
                    final = _FINAL.match(rest)
                    is_refusal = final is None or int(final[1]) >= _REFUSAL
                    break
            return bytes(received)
        finally:
            upload.on_response(is_refusal=is_refusal)

    def _duplicate(self) -> socket.socket | None:
        """Return a second descriptor of the socket; None with TLS, where only the inner stream can decrypt."""
        own = self._inner.get_extra_info("socket")
        if own is None or self._inner.get_extra_info("ssl_object") is not None:
            return None
        return socket.socket(fileno=os.dup(own.fileno()))

    def _left(self, max_bytes: int) -> bytes:
        """Return bytes that arrived before the reset and were not read yet; b"" at the end."""
        if self._second is not None:
            with contextlib.suppress(OSError):
                return self._second.recv(max_bytes)
        return b""


def _is_interim(begun: bytes) -> bool:
    """Whether this is the beginning of an interim answer that is not complete yet."""
    final = _FINAL.match(begun)
    return final is not None and final[1].startswith(b"1") and final[1] != b"101" and len(begun) < _READ_BYTES


async def _next(pieces: "AsyncGenerator[bytes]") -> bytes | None:
    return await anext(pieces, None)


def _looked_at(reading: "asyncio.Future[bytes]") -> None:
    """Retrieve the error of a finished read, so that asyncio does not log it as never retrieved."""
    if not reading.cancelled():
        reading.exception()
