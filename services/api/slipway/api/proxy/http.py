"""Proxied HTTP: forwards a request to a workload and its answer to the client, both streamed.

The HTTP client is imported and created only at the first proxied request. Bodies are forwarded as they arrive, in the
encoding that the workload chose. The proxy follows no redirects: the client does.

A workload may answer, for example refuse an upload, before it has read the whole request. So a connection to a workload
reads while it writes. httpcore2 itself writes a whole body before it reads the answer. Here the rest of a body is
dropped when a write stalls although an answer has arrived, or fails after an answer. A refusal (status 300 and above)
ends the body even while the client pauses in it. An answer below 300 does not end it: the workload may continue to
read, and receives the rest. Interim answers (100 Continue) are no answers.

A workload that answers and closes without reading resets the connection. The write that gets the reset closes the
socket, although it contains an answer that the event loop had no time to read. The answer is then read from a second
descriptor of the socket.
"""

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import httpcore2
from starlette.requests import Request
from starlette.types import Message, Receive, Send

from slipway.api.http.errors import BadGatewayError, NotListeningError
from slipway.api.http.streaming import first_of
from slipway.api.ports import ShutdownSignal
from slipway.api.proxy.headers import raw_fields, request_fields, response_fields, wire_fields, without_length
from slipway.api.proxy.target import ProxyTarget
from slipway.errors import BusyError, DeadlineError
from slipway.runtime import log
from slipway.runtime.tasks import UnitTurns

if TYPE_CHECKING:
    import httpx2

    pass
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable


CONNECT_S = 5.0
CONNECTIONS_MAX = 512
IDLE_CONNECTIONS_MAX = 32
WAIT_FOR_SLOT_S = 10.0
STATUS_MAX = 599

_log = log.get_logger(__name__)


class HttpForwarder:
    """Sends requests to workloads. `token` proves to a workload that the api is the caller; empty: none is sent.

    A workload that sends nothing for `silence_s` is given up.
    """

    def __init__(self, silence_s: float, stop: ShutdownSignal, token: str = "") -> None:
        self.token = token
        self.silence_s = silence_s
        self._stop = stop
        self._client: httpx2.AsyncClient | None = None

    async def aclose(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def forward(
        self,
        request: Request,
        target: ProxyTarget,
        send: Send,
        touch: Callable[[], None],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        """Forward one request until its answer is complete; `touch` is called for each piece of both bodies.

        `confirm` is called on a new connection before anything is sent; an error of it ends the request.

        Raises:
            NotListeningError: the workload does not accept connections (yet); nothing was sent.
            BusyError: all connections to workloads are in use; nothing was sent.
            DeadlineError: the workload is silent for too long.
            BadGatewayError: its answer cannot be forwarded.
        """
        import httpx2

        pass

        uploaded = asyncio.Event()
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        upload = Upload() if has_body else None
        if upload is None:
            uploaded.set()
        content = None if upload is None else _body(request, upload, uploaded, touch)
        upstream = self._build(request, target, content)
        UPLOAD.set(upload)
        CONFIRM.set(confirm)
        try:
            response = await self._opened().send(upstream, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise NotListeningError(f"{target.allocation} does not answer on port {target.port} yet") from error
        except httpx2.PoolTimeout as error:
            raise BusyError(
                f"all {CONNECTIONS_MAX} connections of this process to workloads are in use, and none became free in "
                f"{WAIT_FOR_SLOT_S:g} s; nothing was sent to {target.allocation}: try again in a moment, or ask an "
                "administrator for more replicas of the api"
            ) from error
        except httpx2.TimeoutException as error:
            raise DeadlineError(
                f"{target.allocation} neither answered nor read on port {target.port} for {self.silence_s:g} s "
                f"(SLIPWAY_PROXY_TIMEOUT_S); slipway logs {target.allocation} shows what it prints"
            ) from error
        except httpx2.HTTPError as error:
            raise BadGatewayError(f"{target.allocation} sent an invalid answer: {type(error).__name__}") from error

        async def touching_send(message: Message) -> None:
            touch()
            await send(message)

        try:
            await self._answer(request, touching_send, target, response, uploaded)
        finally:
            await response.aclose()

    def _build(self, request: Request, target: ProxyTarget, content: AsyncGenerator[bytes] | None) -> "httpx2.Request":
        import httpx2

        scheme = "https" if target.is_tls else "http"
        fields = request_fields(
            request.headers.items(),
            client=request.client.host if request.client else "",
            scheme=request.url.scheme,
            prefix=target.prefix,
            token=self.token,
            pod_uid=target.pod_uid,
        )
        return httpx2.Request(
            request.method,
            httpx2.URL(scheme=scheme, host=target.host, port=target.port, raw_path=target.path),
            # As bytes, because httpx2 would encode text as ASCII.
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields],
            content=content,
            extensions={"timeout": self._timeout().as_dict()},
        )

    async def _answer(
        self, request: Request, send: Send, target: ProxyTarget, response: "httpx2.Response", uploaded: asyncio.Event
    ) -> None:
        own = (target.authority, request.headers.get("host", ""))
        if not 200 <= response.status_code <= STATUS_MAX:
            raise BadGatewayError(f"{target.allocation} sent an invalid answer: status {response.status_code}")
        is_chunked = "transfer-encoding" in response.headers
        try:
            fields = response_fields(raw_fields(response.headers.raw), own=own, prefix=target.prefix)
            head = wire_fields(without_length(fields, status=response.status_code, is_chunked=is_chunked))
        except ValueError as error:
            raise BadGatewayError(f"{target.allocation} sent an invalid answer: {error}") from error
        await send({"type": "http.response.start", "status": response.status_code, "headers": head})
        await first_of(
            self._pump(response, send, target), _until_left(request.receive, uploaded), self._until_drained(response)
        )

    async def _until_drained(self, response: "httpx2.Response") -> None:
        """Return when the process drains and the answer has no known end.

        An answer with a Content-Length, such as a page that is being loaded, is completed: then this never returns.
        """
        await self._stop.wait()
        if "content-length" in response.headers:
            await asyncio.Event().wait()

    async def _pump(self, response: "httpx2.Response", send: Send, target: ProxyTarget) -> None:
        import httpx2

        turns = UnitTurns()
        try:
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await turns.passed()
        except httpx2.HTTPError as error:
            # The status is already sent, so only a closed connection can show the client that the answer is incomplete.
            _log.warning(
                "answer of the workload ended before it was complete",
                allocation=target.allocation,
                error=type(error).__name__,
            )
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _opened(self) -> "httpx2.AsyncClient":
        if self._client is None:
            import httpx2

            pass

            limits = httpx2.Limits(
                max_connections=CONNECTIONS_MAX,
                max_keepalive_connections=IDLE_CONNECTIONS_MAX,
                keepalive_expiry=10.0,
            )
            # A workload brings its own certificate; inside the cluster there is no name to verify.
            transport = httpx2.AsyncHTTPTransport(limits=limits, verify=False, trust_env=False)
            # httpx2 has no public way to set the network backend of its pool.
            transport._pool._network_backend = EarlyResponseBackend()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
            self._client = httpx2.AsyncClient(transport=transport, trust_env=False, timeout=self._timeout())
        return self._client

    def _timeout(self) -> "httpx2.Timeout":
        import httpx2

        return httpx2.Timeout(connect=CONNECT_S, read=self.silence_s, write=self.silence_s, pool=WAIT_FOR_SLOT_S)


async def _body(
    request: Request, upload: "Upload", uploaded: asyncio.Event, touch: Callable[[], None]
) -> AsyncGenerator[bytes]:
    """Yield the client's body until its end or the workload's refusal.

    A client that waits for `100 Continue` receives it when the first piece is read. This happens only after the
    workload has answered the head, or after a timeout.
    """
    try:
        if request.headers.get("expect", "").lower() == "100-continue":
            await upload.wait_for_response()
        pieces = request.stream()
        while (piece := await upload.next_of(pieces)) is not None:
            touch()
            yield piece
    finally:
        uploaded.set()


async def _until_left(receive: Receive, uploaded: asyncio.Event) -> None:
    """Wait until the client has left. It reads from the client only after the body is complete."""
    await uploaded.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


CONTINUE_S = 1.0
"""How long a client that sent `Expect: 100-continue` waits for an answer to its head; most workloads send none.

Source: RFC 9110 section 10.1.1."""
STILL_S = 1.0
"""How long a write may stall after an answer: a workload that still reads, slowly, receives the rest of the body."""
_READ_BYTES = 64 * 1024
_INTERIM_BYTES_MAX = 64 * 1024
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)\d\d.*?\r?\n\r?\n", re.DOTALL)
_FINAL = re.compile(rb"HTTP/1\.[01] (\d{3})")
_STATUS_BYTES = len(b"HTTP/1.1 200")
_REFUSAL = 300


class Upload:
    """The body of one request: the connection reports the workload's answers to the task that reads the body."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard: asyncio.Future[None] = loop.create_future()
        self._refused: asyncio.Future[None] = loop.create_future()

    def on_response(self, *, is_refusal: bool) -> None:
        """Note that the workload has answered; a refusal ends the body."""
        for told in (self._heard, self._refused) if is_refusal else (self._heard,):
            if not told.done():
                told.set_result(None)

    async def wait_for_response(self) -> None:
        """Wait until the workload has answered the head, at most `CONTINUE_S`."""
        await asyncio.wait({self._heard}, timeout=CONTINUE_S)

    async def next_of(self, pieces: "AsyncGenerator[bytes]") -> bytes | None:
        """Return the next piece of the body; None at its end.

        Raises:
            httpcore2.WriteError: the workload refuses the rest.
        """
        refused = httpcore2.WriteError("the workload has refused the rest of the body")
        if self._refused.done():  # do not read the body: the first read would send `100 Continue` to the client
            raise refused
        reading = asyncio.ensure_future(_next(pieces))
        try:
            await asyncio.wait({reading, self._refused}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise refused
            return reading.result()
        finally:
            if not reading.done():  # another task may read the body only after this read has ended
                reading.cancel()
                await asyncio.wait({reading})


UPLOAD: "ContextVar[Upload | None]" = ContextVar("upload", default=None)
"""The body of the request that this task sends. A context variable, because httpx2 cannot pass it to the connection."""


CONFIRM: "ContextVar[Callable[[], Awaitable[None]] | None]" = ContextVar("confirm", default=None)
"""The check that a new connection of this task must pass before anything is sent over it; it raises when it fails."""


class EarlyResponseBackend(httpcore2.AsyncNetworkBackend):
    """Connects as httpcore2 does by default, then runs the check of `CONFIRM`."""

    def __init__(self) -> None:
        self._inner: httpcore2.AsyncNetworkBackend = httpcore2.AnyIOBackend()  # pyright: ignore[reportAssignmentType, reportUnknownMemberType, reportAttributeAccessIssue] - a stand-in where anyio is missing

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: "Iterable[Any] | None" = None,
    ) -> httpcore2.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        confirm = CONFIRM.get()
        if confirm is not None:
            try:
                await confirm()
            except BaseException:
                await stream.aclose()
                raise
        return EarlyResponseStream(stream)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class EarlyResponseStream(httpcore2.AsyncNetworkStream):
    """One connection. Bytes that arrive while a body is written are kept for the next `read`."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._writes = 0
        self._reading: asyncio.Future[bytes] | None = None
        self._second: socket.socket | None = None
        self._is_reset = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._writes = 0
        reading = self._reading
        if reading is None:
            return self._left(max_bytes) if self._is_reset else await self._inner.read(max_bytes, timeout)
        await asyncio.wait({reading}, timeout=timeout)
        if not reading.done():
            raise httpcore2.ReadTimeout
        self._reading = None
        if self._is_reset and reading.exception() is not None:
            return self._left(max_bytes)
        return reading.result()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        self._writes += 1
        if self._writes == 1:  # the head; most requests have no body
            await self._inner.write(buffer, timeout)
            upload = UPLOAD.get()
            if upload is not None:
                self._reading = self._begun(upload)
            return
        self._reading = self._reading or self._begun(Upload())
        writing = asyncio.ensure_future(self._inner.write(buffer, timeout))
        try:
            await asyncio.wait({writing, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                await asyncio.wait({writing}, timeout=STILL_S)
            if not writing.done():
                raise httpcore2.WriteError("the workload has answered and does not read the rest of the body")
            writing.result()
        except httpcore2.WriteError:
            self._is_reset = self._second is not None and writing.done()
            raise
        finally:
            writing.cancel()

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._second is not None:
            self._second.close()
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return EarlyResponseStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._reading is not None:
            return self._reading.done()
        return self._inner.get_extra_info(info)

    def _begun(self, upload: Upload) -> "asyncio.Future[bytes]":
        self._second = self._second or self._duplicate()
        reading = asyncio.ensure_future(self._answer(upload))
        reading.add_done_callback(_looked_at)
        return reading

    async def _answer(self, upload: Upload) -> bytes:
        """Return the bytes that the workload sends, up to the beginning of its final answer."""
        received, at = bytearray(), 0
        is_refusal = True  # an end without an answer and a failed connection are refusals too
        try:
            while part := await self._inner.read(_READ_BYTES, None):
                received += part
                while interim := _INTERIM.match(received, at):
                    upload.on_response(is_refusal=False)
                    at = interim.end()
                if at > _INTERIM_BYTES_MAX:
                    raise httpcore2.RemoteProtocolError("the workload sends too many interim answers")
                rest = bytes(received[at : at + _READ_BYTES])
                if len(rest) >= _STATUS_BYTES and not _is_interim(rest):
                    final = _FINAL.match(rest)
                    is_refusal = final is None or int(final[1]) >= _REFUSAL
                    break
            return bytes(received)
        finally:
            upload.on_response(is_refusal=is_refusal)

    def _duplicate(self) -> socket.socket | None:
        """Return a second descriptor of the socket; None with TLS, where only the inner stream can decrypt."""
        own = self._inner.get_extra_info("socket")
        if own is None or self._inner.get_extra_info("ssl_object") is not None:
            return None
        return socket.socket(fileno=os.dup(own.fileno()))

    def _left(self, max_bytes: int) -> bytes:
        """Return bytes that arrived before the reset and were not read yet; b"" at the end."""
        if self._second is not None:
            with contextlib.suppress(OSError):
                return self._second.recv(max_bytes)
        return b""


def _is_interim(begun: bytes) -> bool:
    """Whether this is the beginning of an interim answer that is not complete yet."""
    final = _FINAL.match(begun)
    return final is not None and final[1].startswith(b"1") and final[1] != b"101" and len(begun) < _READ_BYTES


async def _next(pieces: "AsyncGenerator[bytes]") -> bytes | None:
    return await anext(pieces, None)


def _looked_at(reading: "asyncio.Future[bytes]") -> None:
    """Retrieve the error of a finished read, so that asyncio does not log it as never retrieved."""
    if not reading.cancelled():
        reading.exception()
