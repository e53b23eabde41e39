"""Proxied HTTP: forwards a request to a workload and its answer to the client, both streamed.

Owns the HTTP client, which is imported and created only at the first proxied request. Bodies are forwarded as they
arrive, in the encoding that the workload chose. The proxy follows no redirects: the client does.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import Message, Receive, Send

from slipway.api.first_completed import first_of
from slipway.api.http_errors import BadGatewayError, NotListeningError
from slipway.api.ports import ShutdownSignal
from slipway.api.proxy.headers import raw_fields, request_fields, response_fields, wire_fields, without_length
from slipway.api.proxy.target import ProxyTarget
from slipway.errors import BusyError, DeadlineError
from slipway.runtime import log
from slipway.runtime.turns import UnitTurns

if TYPE_CHECKING:
    import httpx2

    from slipway.api.proxy.early_response import Upload

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

        from slipway.api.proxy.early_response import CONFIRM, UPLOAD, Upload

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

            from slipway.api.proxy.early_response import EarlyResponseBackend

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
