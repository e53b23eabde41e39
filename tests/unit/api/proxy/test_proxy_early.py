"""Answers of workloads that close the connection while a request is sent to them."""

import asyncio
import socket
import ssl
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import httpcore2
import pytest

from slipway.api.proxy.http import EarlyResponseStream

ANSWER = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\n\r\nlarge"


class Transport(httpcore2.AsyncNetworkStream):
    """A transport like that of an event loop: it reads late, and a write that fails closes the socket."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own
        self._over = asyncio.Event()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await self._over.wait()
        raise httpcore2.ReadError

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._own.send(buffer)
        except OSError as error:
            await self.aclose()
            raise httpcore2.WriteError from error

    async def aclose(self) -> None:
        self._own.close()
        self._over.set()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise NotImplementedError

    def get_extra_info(self, info: str) -> Any:
        return self._own if info == "socket" else None


@pytest.fixture
def connected() -> Generator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection over the loopback; the first one does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setblocking(False)
    with near, far:
        yield near, far


async def test_an_answer_is_read_though_a_write_met_the_reset_first(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    """The workload answers and closes, with a part of the upload unread; the next write of the upload fails."""
    near, workload = connected
    stream = EarlyResponseStream(Transport(near))
    await stream.write(b"head")
    await stream.write(b"the first part of the body")
    workload.sendall(ANSWER)
    workload.close()
    with pytest.raises(httpcore2.WriteError):
        await stream.write(b"the next part")
    answer = b""
    async with asyncio.timeout(10):
        while part := await stream.read(20):
            answer += part
    assert answer == ANSWER
    await stream.aclose()


async def test_no_descriptor_is_left(connected: tuple[socket.socket, socket.socket]) -> None:
    """The other end sees the end of a connection that is closed after an upload."""
    near, workload = connected
    stream = EarlyResponseStream(Transport(near))
    for part in (b"head", b"body"):
        await stream.write(part)
    await stream.aclose()
    workload.settimeout(10)
    received = b""
    with suppress(ConnectionError):
        while part := workload.recv(100):
            received += part
    assert received == b"headbody"
