"""The HTTP server of every process: uvicorn, with limits on what a client may send before its request is understood.

This module owns the limits of a request head (bytes, fields, time), of trailers and of pipelined requests. uvicorn does
not have these limits for its fast parser. The module also owns the accept loop, because connections are counted before
their TLS handshake. `connections.py` owns the counting.

Promises: input before a complete head costs at most a few times `ListenerLimits.head_bytes` of memory. A head above its
limits is answered with 431, a late head with 408, and then the connection is closed.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, MutableMapping, Sequence
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from slipway.model import exec_channels, tcp_tunnel
from slipway.runtime import log
from slipway.runtime.clock import SystemClock
from slipway.runtime.connections import ListenerConnection, ListenerConnections, ListenerLimits, refused
from slipway.runtime.tasks import ByteTurns, TaskGroup

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

WS_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""Size limit of one WebSocket message, because the server buffers a whole message."""
PING_S, PONG_S = 20.0, 20.0
"""Seconds between the pings of a WebSocket, and how long a client may take to answer one."""
_PIPES = (exec_channels.PROTOCOL, tcp_tunnel.PROTOCOL)
"""Protocols whose messages are bytes for a program, which may read them as slowly as it likes."""
_KEEP_ALIVE_S = 30
_ACCEPT_AGAIN_S = 0.5
_FIELD_BYTES = 4
"""Bytes of a field besides its name and value: colon, space, end of line."""
_REFUSALS = {
    408: b"HTTP/1.1 408 Request Timeout\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
}

_log = log.get_logger(__name__)


class HttpServer:
    """uvicorn on sockets that are already bound. It installs no signal handlers and writes no banner and no logs."""

    def __init__(
        self,
        app: AsgiApp,
        listeners: Sequence[socket.socket],
        *,
        drain_timeout_s: float,
        websockets: bool,
        tls: ssl.SSLContext | None = None,
        limits: ListenerLimits | None = None,
    ) -> None:
        self._listeners = list(listeners)
        config = uvicorn.Config(
            app,  # pyright: ignore[reportArgumentType] - our types are mappings, uvicorn's are TypedDicts
            http=LimitedProtocol,
            ws="websockets-sansio" if websockets else "none",
            ws_max_size=WS_MESSAGE_BYTES_MAX,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PONG_S,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(drain_timeout_s) - 1),
        )
        config.load()
        config.ssl = tls
        self._server = _QuietServer(config, limits or ListenerLimits())

    async def serve(self, until: Callable[[], Awaitable[object]]) -> None:
        """Serve until `until` returns, then finish open requests within the drain time."""
        try:
            async with TaskGroup() as tasks:
                tasks.create_task(self._server.serve(sockets=self._listeners), name="http")
                await until()
                self._server.should_exit = True
        finally:
            self._server.abandon()


class LimitedServer(uvicorn.Server):
    """A uvicorn server with its own accept loop, which counts connections. It must be given its sockets."""

    def __init__(self, config: uvicorn.Config, limits: ListenerLimits) -> None:
        super().__init__(config)
        self.limits = limits
        self._clock = SystemClock()
        self._listeners: list[socket.socket] = []
        self._arriving: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = []
        self._listeners = sockets or []
        self.started = True

    async def main_loop(self) -> None:
        async with TaskGroup() as tasks:
            accepting = [
                tasks.create_task(self._accept(listener, tasks), name="accept") for listener in self._listeners
            ]
            await super().main_loop()
            for task in (*accepting, *self._arriving):
                task.cancel()

    async def _accept(self, listener: socket.socket, tasks: TaskGroup) -> None:
        loop, book = asyncio.get_running_loop(), ListenerConnections(self.limits)
        listener.setblocking(False)
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:
                    _log.warning("cannot accept a connection", error=str(error))
                    await self._clock.sleep(_ACCEPT_AGAIN_S)
                continue
            visit = book.admit(str(peer[0]))
            if visit is None:
                connection.close()
            else:
                meeting = tasks.create_task(self._meet(connection, visit), name="connection")
                visit.drop = partial(_cancel, meeting)
                self._arriving.add(meeting)
                meeting.add_done_callback(self._arriving.discard)

    async def _meet(self, connection: socket.socket, visit: ListenerConnection) -> None:
        """Do the TLS handshake, if there is one. Then the protocol object owns the connection."""
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        connection.setblocking(False)

        def protocol() -> asyncio.Protocol:
            return LimitedProtocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state, visit=visit,
                limits=self.limits,
            )  # fmt: skip

        try:
            await loop.connect_accepted_socket(
                protocol, connection, ssl=tls, ssl_handshake_timeout=self.limits.head_s if tls else None
            )
        except (OSError, TimeoutError):  # also ssl.SSLError: the client sent no valid TLS
            visit.closed()
        except asyncio.CancelledError:
            visit.closed()
            raise


def _is_one_host(target: bytes, fields: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a request names one server only.

    The target may also name a server (`GET http://host/`). A proxy in front of us would then use the target, and the
    code behind us the field Host. Source: RFC 9112, section 3.2.2.
    """
    if target[:1] in (b"/", b"*"):
        return True
    _, _, rest = target.partition(b"://")
    named = rest.partition(b"/")[0].partition(b"?")[0].lower()
    return bool(named) and all(value.lower() == named for name, value in fields if name == b"host")


def _cancel(meeting: asyncio.Task[None]) -> None:
    meeting.cancel()


class _QuietServer(LimitedServer):
    """A server that leaves the signals to the service runner."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def abandon(self) -> None:
        """Abort the connections that a cancelled shutdown left open. Otherwise closing the event loop would wait for
        ever.
        """
        for connection in list(self.server_state.connections):
            transport: asyncio.Transport | None = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


class _RefusedError(Exception):
    """Raised into the parser to stop it."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which reads a head only within its limits.

    The parser receives the bytes in pieces, one per turn of the event loop. The parser makes progress at a complete
    head, a part of a body or the end of a request. It may be buffering all bytes since its last progress, so these are
    counted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        visit: ListenerConnection,
        limits: ListenerLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._visit, self._limits = visit, limits
        self._late: asyncio.TimerHandle | None = None
        self._is_head = self._has_moved = self._is_handed_over = False
        self._unread = self._fields = self._bytes = 0
        self._refusal = 400
        self._turns = ByteTurns(self._take, self._may_read)
        if self.config.ws_protocol_class is not None:
            self.ws_protocol_class = cast("type[asyncio.Protocol]", partial(_LimitedSocket, visit=visit))

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn's
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._visit.drop = transport.abort
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._visit.closed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._turns.add(data, self.transport)

    def _take(self, piece: bytes) -> bool:
        if self.transport.is_closing() or self._is_handed_over:
            return False
        if self._late is None and self._is_idle():
            self._expect()
        self._has_moved = False
        super().data_received(piece)
        self._unread = 0 if self._has_moved else self._unread + len(piece)
        if self._unread > self._limits.head_bytes and not self.transport.is_closing():
            self._end(431)
        return not self._is_handed_over

    def _may_read(self) -> bool:
        return not self.flow.read_paused

    def handle_websocket_upgrade(self) -> None:
        self._is_handed_over = True
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        self._is_head, self._fields, self._bytes = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._count(len(name) + len(value) + _FIELD_BYTES)
        if self._is_head:  # a trailer is no field of the head, whose limits were checked before
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_head, self._fields, self._bytes, self._has_moved = False, 0, 0, True
        self._expect_nothing()
        if len(self.pipeline) >= self._limits.pipelined:
            self._stop(431)
        if not _is_one_host(self.url, self.headers):
            self._stop(400)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_moved = True
        self._expect_nothing()
        super().on_message_complete()
        if self._is_answered() and self.timeout_keep_alive_task is None:
            # This is the rest of a body whose request was answered early. uvicorn cancelled its keep-alive timer when
            # the rest arrived.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unread and self._is_idle() and not self.transport.is_closing():
            self._expect()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser refuses. uvicorn calls this method."""
        if not self.transport.is_closing():
            self._end(self._refusal, msg)

    def _is_idle(self) -> bool:
        """Whether no request is being answered. Further input is then a head, or the rest of a body that is ignored."""
        return self._cycle() is None or self._is_answered()

    def _is_answered(self) -> bool:
        cycle = self._cycle()
        return cycle is not None and cycle.response_complete

    def _cycle(self) -> RequestResponseCycle | None:
        return self.cycle

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limits.head_bytes or self._fields > self._limits.head_fields:
            self._stop(431)

    def _stop(self, status: int) -> None:
        self._refusal = status
        raise _RefusedError

    def _expect(self) -> None:
        """Require a complete head within its time limit from now on."""
        self._visit.head_begun()
        self._late = self.loop.call_later(self._limits.head_s, self._is_late)

    def _expect_nothing(self) -> None:
        self._visit.head_done()
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _is_late(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self._end(408)

    def _end(self, status: int, msg: str = "") -> None:
        """Answer with the reason, unless an answer is already being sent, and close the connection."""
        self._expect_nothing()
        if status in _REFUSALS:
            refused("late" if status == 408 else "head")
        if not self._is_idle() or (status == 408 and not self._unread):
            self.transport.close()
        elif status in _REFUSALS:
            self.transport.write(_REFUSALS[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
        else:
            super().send_400_response(msg)


class _LimitedSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which reports its end to the connection count. It reads no message before the application
    accepts it.
    """

    def __init__(self, *, visit: ListenerConnection, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._visit = visit
        self._turns = ByteTurns(self._take, self._may_read)

    def data_received(self, data: bytes) -> None:
        self._turns.add(data, self.transport)

    def _take(self, piece: bytes) -> bool:
        super().data_received(piece)
        return True

    def _may_read(self) -> bool:
        return not self.read_paused

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        offered = event.headers.get("Sec-WebSocket-Protocol", "")
        if any(protocol in offered for protocol in _PIPES):
            # The client reads only as fast as the program that it pipes into, and we read only as fast as the workload
            # takes its bytes. Neither side reads a pong while it waits, so a waiting session is not a dead one. A dead
            # client acknowledges no ping, so that the kernel ends the connection. An exec session also limits how long
            # it may be silent.
            self.ping_timeout = None
        if not self.read_paused:
            # The application resumes reading when it receives the connect event, which it does in order to accept.
            # Before that, the caller is not known.
            self.read_paused = True
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._visit.closed()
        super().connection_lost(exc)
