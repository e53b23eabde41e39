"""HTTP/1.1 to one API server, as cheap as possible in Python: kept connections, one request at a time on each.

Owns sockets, the pool and retries. A general client costs three times as much processor time for each request, and on a
small machine the system under test would lack that time.

Promises: every request has a deadline; at most `limit` are under way; `call` retries only idempotent requests, and all
of a kubelet's requests are.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools
import msgspec

from tests.conformance.kubelets.access import Access
from tests.conformance.kubelets.objects import Refusal

REQUEST_S = 30.0
BUDGET_S = 120.0
"""The seconds for which a request is retried."""
PAUSE_S = 0.1
PAUSE_MAX_S = 2.0
SILENCE_S = 180.0
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json"
BRIEF = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"
"""Requested when no caller reads the answer to a write: a server that supports it omits most of the object."""


class LostConnectionError(Exception):
    """The connection broke or no answer arrived, so the outcome of the request is unknown."""


class RefusedError(Exception):
    """The API server refused the request."""

    def __init__(self, code: int, refusal: Refusal, request: str) -> None:
        super().__init__(f"{request}: {code} {refusal.reason}: {refusal.message}"[:500])
        self.code = code
        self.reason = refusal.reason


class Connections:
    """A pool; close it with `close`."""

    def __init__(self, access: Access, *, limit: int = 64) -> None:
        self.access = access
        self.sent = 0
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(limit)

    async def call(self, method: str, target: str, body: bytes = b"", content: str = JSON) -> bytes:
        """Return the body of a 2xx answer; retry while the server is overloaded or away.

        Raises:
            RefusedError: any other answer.
            LostConnectionError: the server was away for too long.
        """
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + BUDGET_S, PAUSE_S
        while True:
            try:
                code, answer = await self.once(method, target, body, content)
                if code < 300:
                    return answer
                if (code != 429 and code < 500) or loop.time() > until:
                    raise RefusedError(code, _refusal(answer), f"{method} {target}")
            except LostConnectionError:
                if loop.time() > until:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)

    async def once(self, method: str, target: str, body: bytes = b"", content: str = JSON) -> tuple[int, bytes]:
        """Return status code and body. Raises LostConnectionError."""
        self.sent += 1
        async with self._slots:
            while True:
                is_fresh = not self._idle
                try:
                    connection = await self._open() if is_fresh else self._idle.pop()
                    async with asyncio.timeout(REQUEST_S):
                        answer = await connection.ask(method, target, body, content)
                except _StaleError:
                    if is_fresh:
                        raise LostConnectionError(f"{method} {target}") from None
                    continue
                except (OSError, TimeoutError) as error:
                    raise LostConnectionError(f"{method} {target}: {error}") from error
                if connection.is_reusable:
                    self._idle.append(connection)
                else:
                    connection.close()
                return answer

    async def lines(self, target: str, take: Callable[[bytes], object]) -> None:
        """Call `take` with every line of a streamed answer until the server ends it.

        Raises:
            RefusedError: the answer is no stream.
            LostConnectionError: the connection broke, or went silent.
        """
        try:
            connection = await self._open()
        except OSError as error:
            raise LostConnectionError(f"GET {target}: {error}") from error
        try:
            await connection.stream(target, take)
        except _StaleError as error:
            raise LostConnectionError(f"GET {target}: ended") from error
        except TimeoutError as error:
            raise LostConnectionError(f"GET {target}: silent") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _open(self) -> "_Connection":
        access, loop = self.access, asyncio.get_running_loop()
        async with asyncio.timeout(REQUEST_S):
            _, protocol = await loop.create_connection(
                lambda: _Connection(access.head), access.host, access.port, ssl=access.tls
            )
        return protocol


class _StaleError(Exception):
    """The connection was closed before an answer arrived."""


class _Connection(asyncio.Protocol):
    """One connection: the callbacks of the parser and of the transport complete one future."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._take: Callable[[bytes], object] | None = None
        self._tail = b""
        self._heard_at = 0.0
        self.is_reusable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self.is_reusable = None, False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_StaleError())

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # --- what the parser calls --------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        if self._take is None or self._parser.get_status_code() >= 300:
            self._body.append(body)
            return
        self._heard_at = asyncio.get_running_loop().time()
        *lines, tail = body.split(b"\n")
        if lines:
            lines[0] = self._tail + lines[0]
            self._tail = tail
            for line in lines:
                self._take(line)
        else:
            self._tail += tail

    def on_message_complete(self) -> None:
        self.is_reusable = self._parser.should_keep_alive()
        answer = self._answer
        if answer is not None and not answer.done():
            answer.set_result((self._parser.get_status_code(), b"".join(self._body)))

    # --- requests ---------------------------------------------------------------------------------------------------

    async def ask(self, method: str, target: str, body: bytes, content: str) -> tuple[int, bytes]:
        """Send a request and return its answer. Raises _StaleError."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise _StaleError
        self._body, self.is_reusable = [], False
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        kind = f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n" if body else ""
        accept = BRIEF if method in ("PATCH", "DELETE") else JSON
        head = f"{method} {target} HTTP/1.1\r\n{self._head}Accept: {accept}\r\n{kind}\r\n"
        transport.write(head.encode("latin-1") + body)
        try:
            return await self._answer
        finally:
            if not self._answer.done() or self._answer.cancelled():
                self.close()
            self._answer = None

    async def stream(self, target: str, take: Callable[[bytes], object]) -> None:
        self._take = take
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        asking = asyncio.ensure_future(self.ask("GET", target, b"", JSON))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=SILENCE_S / 4)
                if loop.time() - self._heard_at > SILENCE_S:
                    raise TimeoutError
            code, body = asking.result()
        finally:
            asking.cancel()
        if code >= 300:
            raise RefusedError(code, _refusal(body), f"GET {target}")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _refusal(body: bytes) -> Refusal:
    try:
        return msgspec.json.decode(body, type=Refusal)
    except msgspec.DecodeError:
        return Refusal(message=body[:200].decode(errors="replace"))
