"""A port of this machine that leads to a workload: how the end of one side reaches the other."""

import asyncio
import socket
import struct

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from slipway.cli.tunnel import HOST, Tunnel
from slipway.model.tcp_tunnel import EOF, PROTOCOL
from slipway.sdk.address import parse


async def test_a_local_connection_that_is_reset_ends_the_connection_to_the_workload() -> None:
    """A reset of the local connection ends the connection to the workload; otherwise each one that a browser drops
    would stay open, until no further connection is accepted."""
    closed, ready = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def workload(connection: ServerConnection) -> None:
        await connection.send(bytes(await connection.recv(decode=False)))
        await connection.wait_closed()
        closed.set()

    async with serve(workload, HOST, 0, subprotocols=[Subprotocol(PROTOCOL)]) as server:
        port = server.sockets[0].getsockname()[1]
        tunnel = Tunnel(parse(f"http://{HOST}:{port}", "test"), "/", lambda _: None)
        serving = asyncio.ensure_future(tunnel.run(0, ready.set_result))
        reader, writer = await asyncio.open_connection(HOST, await ready)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        own: socket.socket = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        async with asyncio.timeout(5.0):
            await closed.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_an_answer_arrives_after_the_end_of_the_request() -> None:
    """A client that has ended its own direction still reads the rest of the other one."""
    ready = asyncio.get_running_loop().create_future()

    async def workload(connection: ServerConnection) -> None:
        while (message := await connection.recv()) != EOF:
            assert isinstance(message, bytes)
        await connection.send(b"answer")

    async with serve(workload, HOST, 0, subprotocols=[Subprotocol(PROTOCOL)]) as server:
        port = server.sockets[0].getsockname()[1]
        tunnel = Tunnel(parse(f"http://{HOST}:{port}", "test"), "/", lambda _: None)
        serving = asyncio.ensure_future(tunnel.run(0, ready.set_result))
        reader, writer = await asyncio.open_connection(HOST, await ready)
        writer.write(b"request")
        writer.write_eof()
        assert await reader.read() == b"answer"
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
