"""WebSockets of the command and of the SDK: to the given server, and to no other."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from slipway.cli import rank_session
from slipway.errors import ControlPlaneError
from slipway.sdk import AsyncClient, Client, address

Connect = Callable[[str], Awaitable[Any]]


@asynccontextmanager
async def answering(head: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """Yield (address, first lines of its requests) of a server that gives the same answer to every request."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")[0])
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def by_the_command(url: str) -> None:
    """`shell`, `port-forward`, `exec`, `cp`, `ssh`."""
    server = address.parse(url, "test")
    await rank_session.connect(server, rank_session.url_of(server, "/proxy/a/"), "p")


async def by_the_async_client(url: str) -> None:
    """`AsyncClient.exec`."""
    async with AsyncClient(url, token="t") as client:
        await client.exec("a", ["true"])


async def by_the_client(url: str) -> None:
    """`Client.exec`."""

    def call() -> None:
        with Client(url, token="t") as client:
            client.exec("a", ["true"])

    await asyncio.to_thread(call)


@pytest.mark.parametrize("connect", [by_the_command, by_the_async_client, by_the_client])
async def test_no_redirect_is_followed(connect: Connect) -> None:
    """No redirect is followed, to the same origin or another. A workload, or a hostile server, cannot send typed or
    copied data elsewhere, nor make a request to another path or server with the user's login."""
    async with answering("500 No") as (elsewhere, asked_elsewhere):
        for location in (f"{elsewhere.replace('http', 'ws', 1)}/taken", "/api/v1/allocations/b/ranks/0/exec"):
            async with answering(f"302 Found\r\nLocation: {location}") as (url, asked):
                with pytest.raises((InvalidStatus, ControlPlaneError)):
                    await connect(url)
            assert (len(asked), asked_elsewhere) == (1, [])
