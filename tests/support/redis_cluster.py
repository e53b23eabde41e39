"""A Redis Cluster on the loopback: masters that share the slots, and the operations of an operator.

Owns the processes and the topology. Each node is a server process in a folder of its own; all stop with the cluster.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from slipway.local.valkey import ServerOptions, ValkeyProcess
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import Command, RedisClient, RedisSettings
from tests.support.ports import free_port
from tests.support.redis import RedisBackend, server_binary

MASTERS = 3
SLOTS = 16_384
READY_S = 60.0
NODE_TIMEOUT = ("--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0")


class Node:
    """One server of the cluster."""

    def __init__(self, binary: Path) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="slipway-"))
        self.server = ValkeyProcess(
            self.folder, ServerOptions(port=self.port, cluster=True, extra=NODE_TIMEOUT), binary=binary
        )

    async def command(self, *args: str | bytes | int) -> Any:
        """Send a command to this node, on a new connection, because each test has an event loop of its own."""
        client = RedisClient(RedisSettings(url=f"unix://{self.server.socket}"), SystemClock(), SeededRandom(1))
        try:
            return await client.run(Command("", args))
        finally:
            await client.aclose()
            await asyncio.sleep(0)

    async def id(self) -> str:
        """The id of the node in the cluster."""
        return (await self.command("CLUSTER", "MYID")).decode()

    async def stop(self) -> None:
        """Stop the node and remove its folder."""
        await self.server.stop()
        shutil.rmtree(self.folder)


class Cluster:
    """Masters that serve all slots."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self.nodes: list[Node] = []

    @property
    def url(self) -> str:
        """The value of SLIPWAY_REDIS_URL for this cluster."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:MASTERS])

    def backend(self) -> RedisBackend:
        """The cluster as a backend of the stream suites."""
        return RedisBackend(self.url, [f"unix://{node.server.socket}" for node in self.nodes[:MASTERS]])

    async def start(self) -> None:
        """Start the masters, share the slots among them, and wait until each master reports that all slots are
        served."""
        for _ in range(MASTERS):
            await self.add()
        bounds = [SLOTS * number // MASTERS for number in range(MASTERS + 1)]
        for number, node in enumerate(self.nodes):
            await node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            await node.command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for node in self.nodes[1:]:
            await node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        await self.until_ready()

    async def add(self) -> Node:
        """Start one more node, which no other node knows yet."""
        node = Node(self._binary)
        self.nodes.append(node)
        await node.server.start()
        return node

    async def add_replica(self, master: Node) -> Node:
        """Add a replica and wait until it has caught up with its master."""
        node = await self.add()
        await node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        name = await master.id()
        await until(lambda: _knows(node, name), "the replica to know its master")
        await node.command("CLUSTER", "REPLICATE", name)
        await until(lambda: _has(node, b"master_link_status:up"), "the replica to be in step")
        return node

    async def until_ready(self, nodes: Sequence[Node] = ()) -> None:
        """Wait until each of the nodes (default: all) knows which node serves each slot."""
        for node in nodes or self.nodes:
            await until(lambda node=node: _is_ready(node), "the cluster to serve all slots")

    def owner(self, slot: int) -> Node:
        """The master that served the slot at the start."""
        return self.nodes[min(slot * MASTERS // SLOTS, MASTERS - 1)]

    async def move_slot(
        self, slot: int, source: Node, target: Node, *, paused: Callable[[], Any] | None = None
    ) -> None:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does; `paused` runs when half has been moved."""
        source_id, target_id = await source.id(), await target.id()
        await target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        await source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        if paused is not None:
            await paused()
        while keys := await source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            await source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        for node in (target, source):
            await node.command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        # The next move uses the highest epoch that its target knows. A target that does not know the epoch of this move
        # would use the same epoch, and two nodes would point at each other until that is resolved.
        await until(lambda: self._agree(slot, target_id), "the nodes to agree on the owner of the slot")

    async def _agree(self, slot: int, owner_id: str) -> bool:
        told = [await node.command("CLUSTER", "INFO") for node in self.nodes[:MASTERS]]
        epochs = {line for info in told for line in info.splitlines() if line.startswith(b"cluster_current_epoch:")}
        owners = {await _owner_id(node, slot) for node in self.nodes[:MASTERS]}
        return len(epochs) == 1 and owners == {owner_id}

    async def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            await node.stop()


@asynccontextmanager
async def cluster_processes(name: str = "valkey") -> AsyncGenerator[Cluster]:
    """A cluster of that server, stopped at the end of the context."""
    cluster = Cluster(server_binary(name))
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


async def until(is_so: Callable[[], Any], what: str) -> None:
    """Wait for a state of servers."""
    try:
        async with asyncio.timeout(READY_S):
            while not await is_so():  # noqa: ASYNC110 - a server's state
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {READY_S:g} s for {what}") from None


async def _is_ready(node: Node) -> bool:
    info = await node.command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and f"cluster_size:{MASTERS}".encode() in info


async def _owner_id(node: Node, slot: int) -> str:
    """The id of the node that serves the slot, as this node knows it."""
    ranges = await node.command("CLUSTER", "SLOTS")
    return next((master[2].decode() for first, last, master, *_ in ranges if first <= slot <= last), "")


async def _knows(node: Node, name: str) -> bool:
    return name.encode() in await node.command("CLUSTER", "NODES")


async def _has(node: Node, text: bytes) -> bool:
    return text in await node.command("INFO", "replication")
