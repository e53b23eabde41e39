"""Connections to a port that a pod serves on its loopback interface only, as with `kubectl port-forward`.

`kubectl port-forward` uses the kubelet; these enter the network namespace of the pod, and work without a kubelet.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import weakref

from tests.node.nodes import RealNode
from tests.support.chart import NAMESPACE
from tests.support.ports import free_port

_NETWORK = 0x40000000
"""CLONE_NEWNET of setns(2)."""
CONNECT_S = 3.0
CHUNK = 65_536


class PodPort:
    """A port of this machine that leads to a port of the pod, whichever of its containers serves it at the time."""

    def __init__(self, node: RealNode, pod: str, port: int) -> None:
        self._node, self._pod, self._port = node, pod, port
        self._mine = free_port()
        self._pid = 0
        self._server: asyncio.Server | None = None
        self._writers = weakref.WeakSet[asyncio.StreamWriter]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._mine}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self._mine)

    def close(self) -> None:
        """Accept no new connection, and close the open ones."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            inside = await asyncio.to_thread(self._connect)
        except (OSError, RuntimeError):
            writer.transport.abort()
            return
        their_reader, their_writer = await asyncio.open_connection(sock=inside)
        self._writers.add(their_writer)
        both = [_pump(reader, their_writer), _pump(their_reader, writer)]
        await asyncio.gather(*both)

    def _connect(self) -> socket.socket:
        """Connect. Raises OSError when no process listens there, RuntimeError when containerd does not answer."""
        if not os.path.exists(f"/proc/{self._pid}/ns/net") or not self._pid:
            self._pid = self._node.processes(NAMESPACE).get(self._pod, [0])[0]
        found = connect_in(self._pid, self._port)
        found.setblocking(False)
        return found


def connect_in(pid: int, port: int) -> socket.socket:
    """Connect to a port of the loopback interface of that process. Switches the calling thread's network namespace
    meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net", "rb") as theirs, open("/proc/thread-self/ns/net", "rb") as own:
        _enter(libc, theirs.fileno())
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S)
        finally:
            _enter(libc, own.fileno())


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, _NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
