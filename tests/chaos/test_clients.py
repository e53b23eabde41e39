"""How a client treats the answer to a repeated request."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.chaos.clients import Client, RefusedError
from tests.chaos.proxy.messages import read_head, whole


@asynccontextmanager
async def client_of(statuses: Sequence[int]) -> AsyncGenerator[Client]:
    """A client of an API that gives these answers, one after another."""
    left, closed = list(statuses), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := await read_head(reader)) is not None:
            await whole(reader, head, is_answer=False)
            writer.write(f"HTTP/1.1 {left.pop(0)} Told\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client("client", [f"http://127.0.0.1:{port}"], [], 1)
    try:
        yield client
    finally:
        await client.aclose()
        await closed.wait()
        server.close()
        await server.wait_closed()


async def test_a_preemption_that_is_repeated_may_find_that_it_has_ended() -> None:
    """The first try was executed, and its answer lost: the conflict is accepted as success, and no refusal."""
    async with client_of([503, 409]) as client:
        assert await client.preempt("run-1") == {}


async def test_a_preemption_that_is_refused_at_once_is_refused() -> None:
    """The allocation had ended by itself: a conflict at the first try is a refusal."""
    async with client_of([409]) as client:
        with pytest.raises(RefusedError):
            await client.preempt("run-1")
