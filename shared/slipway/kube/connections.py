"""A minimal HTTP/1.1 client for one server, for Kubernetes API calls: keep-alive connections, complete responses.

Owns the connections. Must not know credentials, Kubernetes, deadlines or what a status means. A launch is half a dozen
calls of some kilobytes each, and a general HTTP client costs more per call than the TLS of the API server. Streams,
proxies and other rare cases use such a general client (`client.py`).

Promises: a request is written once. A repeatable request is written once more, on a new connection, when the kept
connection turns out to be closed before any byte of a response. A connection whose exchange was interrupted (a timeout,
a cancelled task, an unreadable response) is closed and never used again. Redirects are not followed. Not promised: a
limit on the number of open connections; the caller has one. A response must have a length or be chunked.
"""

import asyncio
import ssl
from collections import deque
from typing import NamedTuple, cast

import httptools

KEPT_S = 15.0
"""Seconds for which an unused connection is assumed to be still open."""


class RawResponse(NamedTuple):
    """A complete response, with only the headers that are used."""

    status: int
    retry_after: str | None
    body: bytes
    date: str = ""


class ClosedError(ConnectionError):
    """The server closed the connection; `is_untouched` when no byte of a response had arrived."""

    def __init__(self, message: str, *, is_untouched: bool) -> None:
        super().__init__(message)
        self.is_untouched = is_untouched


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[RawResponse] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._body: list[bytes] = []
        self._retry_after: str | None = None
        self._date = ""
        self._has_data = False
        self._may_be_kept = True
        self.unused_since = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether the connection may be used for another exchange."""
        return self._may_be_kept and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: bytes) -> RawResponse:
        """Send a request and return its response. Raises ConnectionError."""
        if self._transport is None:
            raise ClosedError("the connection is closed", is_untouched=True)
        self._waiter = self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._retry_after, self._date, self._has_data = [], None, "", False
        self._transport.write(message)
        try:
            return await self._waiter
        finally:
            self._waiter = None
            self._parser = None

    def close(self) -> None:
        """Close the connection at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # --- what the event loop calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()  # no request is in progress
            return
        self._has_data = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"an answer that is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        text = f"the server closed the connection: {exc}" if exc else "the server closed the connection"
        self._fail(ClosedError(text, is_untouched=not self._has_data))

    # --- what the parser calls --------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"date":
                self._date = value.decode("latin-1")
            case _:
                pass

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser is None or self._waiter is None or self._waiter.done():
            return
        self._may_be_kept = self._parser.should_keep_alive()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._waiter.set_result(RawResponse(self._parser.get_status_code(), self._retry_after, body, self._date))

    def _fail(self, error: ConnectionError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class KubeConnections:
    """The connections to one server; `tls` None means plain HTTP."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        connect_s: float,
    ) -> None:
        self._connect_s = connect_s
        self._host = host
        self._port = port
        self._tls = tls
        self._server_hostname = (server_hostname or host) if tls is not None else None
        self._unused: deque[_Connection] = deque()

    async def ask(self, message: bytes, *, is_repeatable: bool) -> RawResponse:
        """Send a complete request (head and body) and return the response.

        Raises:
            OSError: no connection, or a broken one. Never a TimeoutError.
        """
        kept = self._kept()
        if kept is not None:
            try:
                return await self._exchange(kept, message)
            except ClosedError as error:
                if not (is_repeatable and error.is_untouched):
                    raise
        return await self._exchange(await self._opened(), message)

    def close(self) -> None:
        """Close the unused connections; the others close when their exchange ends."""
        while self._unused:
            self._unused.pop().close()

    async def _exchange(self, connection: _Connection, message: bytes) -> RawResponse:
        try:
            answer = await connection.exchange(message)
        except BaseException:
            connection.close()
            raise
        if connection.is_usable:
            connection.unused_since = asyncio.get_running_loop().time()
            self._unused.append(connection)
        else:
            connection.close()
        return answer

    def _kept(self) -> _Connection | None:
        """Return the connection that was used last, so that the others become old and are closed; None when there is
        none."""
        oldest = asyncio.get_running_loop().time() - KEPT_S
        while self._unused and self._unused[0].unused_since < oldest:
            self._unused.popleft().close()
        while self._unused:
            found = self._unused.pop()
            if found.is_usable:
                return found
        return None

    async def _opened(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._server_hostname,
                )
        except TimeoutError as error:
            # No TimeoutError for the caller: it would mean that the request was sent and not answered.
            raise ConnectionError(f"no connection within {self._connect_s:g} s") from error
        return connection
