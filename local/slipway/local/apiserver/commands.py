"""Commands in containers (`pods/exec`): relays messages between the client's WebSocket and the node's WebSocket.

Owns the validation of the query, and the way from a pod to its node's endpoint, which is also the endpoint for logs. It
runs nothing itself. Invariants: each message is relayed once and in order; a side that reads slowly makes the other
side wait. A refusal of the node is sent as the last message, as by a real API server, because the client's handshake
was already answered.

Only WebSockets of `v5.channel.k8s.io` are supported. SPDY, which older clients use, is refused.

Source: k8s.io/kubernetes pkg/registry/core/pod/rest/subresources.go, pkg/registry/core/pod/strategy.go (v1.37).
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, urlencode

import msgspec

from slipway.local.apiserver.logs import LOG_ENDPOINT, container_of
from slipway.local.apiserver.objects import Json, mapping, metadata
from slipway.local.apiserver.status import bad_request
from slipway.model import exec_channels
from slipway.runtime.tasks import TaskGroup

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CONNECT_TIMEOUT_S = 5.0
CLOSE_S = 5.0
PING_S = 20.0
"""Seconds between pings. The node closes a connection on which it received nothing for a minute."""
QUEUE_MAX = 16
NO_UPGRADE = "Upgrade request required"
NORMAL, GOING_AWAY = 1000, 1001


class CommandQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a request. A client always receives `stdout` and `stderr`."""

    container: str
    command: tuple[str, ...]
    stdin: bool
    tty: bool


class SocketPeer(Protocol):
    """The client's accepted WebSocket. `apiserver/http.py` implements it on ASGI."""

    async def receive(self) -> bytes | None:
        """Return the next message, or None when the client has disconnected."""
        ...

    async def send(self, message: bytes) -> None: ...

    async def close(self, code: int) -> None: ...


def asked_of(pod: Json, query: bytes) -> CommandQuery:
    """Return the validated query of one call. Raises StatusError 400."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    given = dict(pairs)
    command = tuple(value for name, value in pairs if name == "command")
    name = metadata(pod)["name"]
    if not command:
        raise bad_request("you must specify at least one command for the container")
    flags = {flag: given.get(flag, "").lower() in ("1", "true") for flag in ("stdin", "stdout", "stderr", "tty")}
    if not (flags["stdin"] or flags["stdout"] or flags["stderr"]):
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    if flags["tty"] and flags["stderr"]:
        raise bad_request("tty and stderr cannot both be true")
    container = container_of(pod, given.get("container", ""))
    if not mapping(pod, "spec").get("nodeName"):
        raise bad_request(f"pod {name} does not have a host assigned")
    return CommandQuery(container=container, command=command, stdin=flags["stdin"], tty=flags["tty"])


async def run(peer: SocketPeer, pod: Json, node: Json, asked: CommandQuery) -> None:
    """Relay messages until the command has ended, or one side has disconnected."""
    upstream = await _connect(pod, node, asked)
    if isinstance(upstream, str):
        await peer.send(bytes((exec_channels.STATUS,)) + exec_channels.failure(upstream))
        await peer.close(NORMAL)
        return
    try:
        async with TaskGroup() as tasks:
            ways = [tasks.create_task(_to_node(peer, upstream)), tasks.create_task(_to_peer(upstream, peer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
    finally:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await upstream.close()
    await peer.close(NORMAL)


async def _connect(pod: Json, node: Json, asked: CommandQuery) -> "ClientConnection | str":
    """Return the node's WebSocket, or the reason why the connection failed."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.typing import Subprotocol

    endpoint = str(mapping(metadata(node), "annotations").get(LOG_ENDPOINT) or "")
    if not endpoint:
        return f"node {metadata(node).get('name')} runs no commands (annotation {LOG_ENDPOINT} is missing)"
    meta = metadata(pod)
    url = f"{endpoint.rstrip('/')}/exec/{meta['namespace']}/{meta['uid']}?{_query(asked)}"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return await connect(
                url.replace("http", "ws", 1),
                subprotocols=[Subprotocol(exec_channels.PROTOCOL)],
                compression=None,
                proxy=None,
                open_timeout=None,
                close_timeout=CLOSE_S,
                ping_interval=PING_S,
                # The node answers a ping only after the command has read its earlier input, so there is no timeout.
                ping_timeout=None,
                max_size=exec_channels.MESSAGE_BYTES_MAX,
                max_queue=QUEUE_MAX,
            )
    except InvalidStatus as error:
        return bytes(error.response.body or b"").decode(errors="replace") or str(error)
    except (InvalidHandshake, OSError, TimeoutError) as error:
        return f"error dialing backend: {error or type(error).__name__}"


def _query(asked: CommandQuery) -> str:
    words: Sequence[tuple[str, str]] = [("command", word) for word in asked.command]
    return urlencode([*words, ("container", asked.container), ("stdin", str(asked.stdin)), ("tty", str(asked.tty))])


async def _to_node(peer: SocketPeer, upstream: "ClientConnection") -> None:
    from websockets.exceptions import ConnectionClosed

    while (message := await peer.receive()) is not None:
        try:
            await upstream.send(message)
        except ConnectionClosed:
            await asyncio.Event().wait()  # the other direction receives the command's end and reports it to the client


async def _to_peer(upstream: "ClientConnection", peer: SocketPeer) -> None:
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed, OSError):  # OSError: the client has disconnected
        while True:
            message = await upstream.recv()
            if isinstance(message, bytes):
                await peer.send(message)
