"""What a connection to Redis may do to us: every way of losing it is one error."""

import socket
from collections.abc import Iterable

import pytest
import uvloop
from redis.asyncio.connection import Connection

from slipway.streams.replies import send


class Torn(Connection):
    """The library's connection, closed in the moment in which it is written to."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        assert self._writer is not None
        self._writer.transport.abort()
        await super().send_packed_command(command, check_health)


def test_a_connection_that_is_lost_between_two_looks_is_a_lost_connection() -> None:
    """uvloop knows that a transport is closed before it tells, and raises RuntimeError: no process may end of that."""

    async def write_into_the_void() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            connection = Torn(host="127.0.0.1", port=server.getsockname()[1], protocol=2, driver_info=None)
            try:
                await connection.connect()
                await send(connection, b"*1\r\n$4\r\nPING\r\n")
            finally:
                await connection.disconnect(nowait=True)

    with pytest.raises(ConnectionResetError):
        uvloop.run(write_into_the_void())
