"""A Valkey of this machine: its start and its end."""

import asyncio
from pathlib import Path

from slipway.local.valkey import ValkeyProcess


async def test_a_server_that_is_started_while_the_last_one_ends_is_kept(tmp_path: Path) -> None:
    """The end of the last server neither drops the new one nor removes its socket."""
    server = ValkeyProcess(tmp_path / "v")
    await server.start()
    ending = asyncio.ensure_future(server.stop())
    while server.pid is not None:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0)
    await server.start()
    try:
        await ending
        assert server.pid is not None
        assert server.socket.exists()
    finally:
        await server.stop()
    assert server.pid is None
