"""Every way of losing a connection to Redis is one error."""

import socket
from collections.abc import Iterable

import pytest
import uvloop
from redis.asyncio.connection import Connection

from slipway.streams.replies import send


class ConnectionClosedOnWrite(Connection):
    """The library's connection, which is closed in the moment of a write."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        assert self._writer is not None
        self._writer.transport.abort()
        await super().send_packed_command(command, check_health)


def test_a_connection_that_is_lost_between_two_looks_is_a_lost_connection() -> None:
    """A RuntimeError of uvloop, which knows of a closed transport before it reports it, is a lost connection and ends
    no process."""

    async def write_to_closed_connection() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            connection = ConnectionClosedOnWrite(
                host="127.0.0.1", port=server.getsockname()[1], protocol=2, driver_info=None
            )
            try:
                await connection.connect()
                await send(connection, b"*1\r\n$4\r\nPING\r\n")
            finally:
                await connection.disconnect(nowait=True)

    with pytest.raises(ConnectionResetError):
        uvloop.run(write_to_closed_connection())
