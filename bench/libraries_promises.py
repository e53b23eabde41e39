"""Compares how Redis calls behave when something fails: with our client, and with redis-py's own clients.

Owns one scene per promise, and the figure that shows whether it was kept. The library's client has its defaults where
the scene is about them. Otherwise it is configured to send nothing twice, as ours is.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.crc import key_slot

from bench.libraries_redis import PEER, LibraryClient, our_client
from bench.runner import Row, row
from slipway.local.valkey import ValkeyProcess
from slipway.streams.client import Command, command
from tests.support.redis_cluster import Cluster, cluster_processes

CALLERS = 200
CONNECTIONS = 16
OPEN = 12
KEYS = 60
PIPELINES = 5
CUT_S = 60.0
Call = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def _without_replies(target: Path, path: Path) -> AsyncGenerator[str]:
    """Provide the URL of a proxy to the server that forwards commands, but closes the connection instead of a reply.

    The proxy answers the commands at the beginning of a connection, until it sees the command INCR.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_unix_connection(str(target))
        try:
            while data := await reader.read(65_536):
                forth.write(data)
                await forth.drain()
                reply = await back.read(65_536)
                if b"INCR" in data:
                    return
                writer.write(reply)
                await writer.drain()
        finally:
            forth.close()
            writer.close()

    async with await asyncio.start_unix_server(serve, str(path)):
        yield f"unix://{path}"


async def _lost_reply() -> list[Row]:
    """Count how often the server runs a command whose reply is lost."""
    found: list[float] = []
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        server = ValkeyProcess(Path(folder))
        await server.start()
        direct = our_client(server.url)
        try:
            async with _without_replies(server.socket, server.socket.with_name("deaf.sock")) as url:
                ours = our_client(url)
                peer: Any = Redis(unix_socket_path=url.removeprefix("unix://"))
                for key, call in (
                    ("ours", lambda: ours.run(command("INCR", "ours"))),
                    ("peer", lambda: peer.execute_command("INCR", "peer")),
                ):
                    await _tried(call)
                    found.append(float(await direct.run(command("GET", key))))
                await ours.aclose()
                await peer.aclose()
        finally:
            await direct.aclose()
            await server.stop()
    [ours_count, peer_count] = found
    work = "a write whose reply is lost: how often the server ran it"
    name = f"{PEER}, its defaults"
    return [row("LIB-redis-lost-reply", work, [ours_count], "runs", peer=[peer_count], peer_name=name)]


async def _tried(call: Call) -> bool:
    """Whether the call was answered."""
    try:
        async with asyncio.timeout(CUT_S):
            await call()
    except Exception:  # noqa: BLE001 - any exception of the library means that there is no answer
        return False
    return True


async def _busy(cluster: Cluster, ours: Any, peer: Any) -> Row:
    """Make more calls at once than there are connections; count the refused calls."""
    key = "busy"
    refused: list[float] = []
    for client in (ours, peer):
        await client.run(command("XLEN", key))  # from here on the client knows the topology
        calls = [_tried(lambda client=client: client.run(command("XLEN", key))) for _ in range(CALLERS)]
        refused.append(float((await asyncio.gather(*calls)).count(False)))
    work = f"Cluster: {CALLERS} callers at once, {CONNECTIONS} connections a node: refused"
    return row("LIB-redis-cluster-busy", work, [refused[0]], "calls", peer=[refused[1]], peer_name=PEER)


async def _asked(cluster: Cluster, ours: Any, peer: Any) -> Row:
    """Read a key that a slot migration has already moved to another node."""
    slot = key_slot(b"moving")
    source = cluster.owner(slot)
    target = next(node for node in cluster.nodes if node is not source)
    there = next(
        key for key in (f"t{number}" for number in range(1_000)) if cluster.owner(key_slot(key.encode())) is target
    )
    failed: list[float] = []
    for client in (ours, peer):
        await client.run(command("XLEN", there))
        await asyncio.gather(*(client.run(command("XLEN", there)) for _ in range(OPEN)))

    async def meanwhile() -> None:
        for client in (ours, peer):
            answered = [await _tried(lambda client=client: client.run(command("GET", "moving"))) for _ in range(20)]
            failed.append(float(answered.count(False)))

    await cluster.move_slot(slot, source, target, paused=meanwhile)
    work = f"Cluster: 20 reads of a key whose slot is on its way, {OPEN} connections to each node: without an answer"
    return row("LIB-redis-cluster-ask", work, [failed[0]], "calls", peer=[failed[1]], peer_name=PEER)


async def _shard_away(cluster: Cluster, ours: Any, peer: Any) -> Row:
    """Kill one of three masters; count the unanswered commands of pipelines over all masters."""
    for node in cluster.nodes:
        await node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
    calls = [Command(key, ("EXISTS", key)) for key in (f"k{number}" for number in range(KEYS))]
    for client in (ours, peer):
        await client.pipeline(calls)
    await cluster.nodes[1].server.kill()
    missing = [0.0, 0.0]
    for place, client in enumerate((ours, peer)):
        for _ in range(PIPELINES):
            try:
                replies = await client.pipeline(calls)
            except Exception:  # noqa: BLE001 - any exception of the library means that nothing was answered
                replies = [Exception()] * KEYS
            missing[place] += sum(1 for reply in replies if isinstance(reply, Exception))
    work = f"Cluster: {PIPELINES} pipelines of {KEYS} over three masters, one killed: commands without an answer"
    return row("LIB-redis-cluster-shard", work, [missing[0]], "commands", peer=[missing[1]], peer_name=PEER)


async def measure() -> list[Row]:
    """Run each scene once; return the rows."""
    rows = await _lost_reply()
    async with cluster_processes() as cluster:
        ours = our_client(cluster.url, CONNECTIONS)
        peer = LibraryClient(ports=[node.port for node in cluster.nodes], connections=CONNECTIONS)
        try:
            for scene in (_busy, _asked, _shard_away):
                rows.append(await scene(cluster, ours, peer))
        finally:
            await ours.aclose()
            await peer.aclose()
    return rows
