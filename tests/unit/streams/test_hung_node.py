"""A server that accepts connections and answers nothing, like a hung process: another server takes over its work."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from slipway.errors import ControlPlaneError, DeadlineError
from slipway.runtime.clock import SeededRandom
from slipway.streams.client import RedisClient, RedisSettings
from tests.support.clock import FakeClock

TRIES = 12


class Node:
    """Answers in the protocol of Redis: `CLUSTER SLOTS` and a request to a Sentinel return `master` for everything."""

    def __init__(self) -> None:
        self.port = 0
        self.master: Node = self
        self.is_hung = False
        self._writers: list[asyncio.StreamWriter] = []

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                words = [await self._word(reader) for _ in range(int((await reader.readline())[1:] or 0))]
                if not words:
                    return
                if not self.is_hung:
                    writer.write(self._answer(words[0].upper()))

    async def _word(self, reader: asyncio.StreamReader) -> str:
        size = int((await reader.readline())[1:])
        return (await reader.readexactly(size + 2))[:-2].decode()

    def _answer(self, word: str) -> bytes:
        port = self.master.port
        match word:
            case "CLUSTER":
                return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port
            case "PING":
                return b"+PONG\r\n"
            case _:
                return b"+OK\r\n"

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def nodes(count: int) -> AsyncGenerator[list[Node]]:
    found = [Node() for _ in range(count)]
    servers = [await asyncio.start_server(node.meet, "127.0.0.1", 0) for node in found]
    for node, server in zip(found, servers, strict=True):
        node.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        for node, server in zip(found, servers, strict=True):
            node.close()
            server.close()
            await server.wait_closed()


async def answers(client: RedisClient, clock: FakeClock) -> bool:
    """Whether one of the next calls is answered; between them the circuit closes again."""
    for _ in range(TRIES):
        try:
            await client.ping()
        except ControlPlaneError:
            clock.advance(60)
        else:
            return True
    return False


def a_client(clock: FakeClock, *seeds: Node) -> RedisClient:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in seeds)
    settings = RedisSettings(url=f"redis+cluster://{hosts}", command_timeout_s=0.2, connect_timeout_s=0.1)
    return RedisClient(settings, clock, SeededRandom(1))


async def test_the_successor_of_a_hung_master_is_found() -> None:
    """The successor of a hung master is found, although the known slots name the hung one and only its silence shows
    the failure."""
    clock = FakeClock()
    async with nodes(2) as (old, new):
        client = a_client(clock, old, new)
        await client.ping()
        new.master, old.is_hung = new, True
        with pytest.raises(DeadlineError):
            await client.ping()
        assert await answers(client, clock)
        await client.aclose()


async def test_hung_nodes_do_not_hide_the_others() -> None:
    """Hung nodes do not hide the others: each lookup has time for some nodes, and silent ones are asked last the next
    time."""
    clock = FakeClock()
    async with nodes(5) as found:
        for node in found[:4]:
            node.is_hung = True
        client = a_client(clock, *found)
        assert await answers(client, clock)
        await client.aclose()
