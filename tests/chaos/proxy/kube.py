"""The proxy between services and the API server: reads every request, and treats it as the rules decide.

Owns the connections: one upstream connection for each downstream one. A listener is a port for one process of a
service, so that faults can strike one replica. Other traffic passes unchanged.
"""

import asyncio
import contextlib
import socket
import ssl
import struct

import msgspec

from tests.chaos.proxy.messages import HEAD_BYTES_MAX, PIECE, Head, chunk, lines, pieces, read_head, whole
from tests.chaos.proxy.rules import OF_CALLS, ActiveRule, Effect, Rules
from tests.chaos.proxy.watches import Watch

SLOW_S = 1.0
_REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the real server; `tls` None means no TLS."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        name = self.host if self.tls else None
        return await asyncio.open_connection(
            self.host, self.port, ssl=self.tls, server_hostname=name, limit=HEAD_BYTES_MAX
        )


class KubeListener:
    """The address that one process uses as its API server."""

    def __init__(self, name: str, upstream: Upstream, rules: Rules) -> None:
        self.name = name
        self._upstream = upstream
        self._rules = rules
        self._watches: set[Watch] = set()

    def strike(self, active_rule: ActiveRule) -> None:
        """Apply a new rule for watches to the open ones too."""
        if active_rule.rule.is_for(self.name):
            for watch in list(self._watches):
                active_rule.struck += 1
                watch.strike(active_rule.rule.kind)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the process, until either side closes it."""
        link: _Link | None = None
        try:
            while (head := await read_head(reader)) is not None:
                link = link or _Link(*await self._upstream.connect())
                if not await self._exchange(head, reader, writer, link):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            reset(writer)
        finally:
            writer.close()
            if link is not None:
                link.writer.close()

    async def _exchange(
        self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: "_Link"
    ) -> bool:
        """Pass one request and its answer; return whether the connection may be used again."""
        body = await whole(reader, head, is_answer=False)
        active_rule = self._rules.draw(self.name, OF_CALLS)
        match active_rule.rule.kind if active_rule else None:
            case Effect.ANSWER if active_rule:
                writer.write(refusal(active_rule.rule.status, active_rule.rule.retry_after_s))
                await writer.drain()
                return True
            case Effect.TIMEOUT_NOT_APPLIED if active_rule:
                await self._hold(reader, active_rule)
                raise ConnectionResetError
            case _:
                pass
        framed = {"transfer_encoding": "", "content_length": str(len(body))} if body else {}
        link.writer.write(head.encode(**framed) + body)
        await link.writer.drain()
        answer = await read_head(link.reader)
        if answer is None:
            raise ConnectionResetError("the server closed the connection")
        if head.is_upgrade and answer.status == 101:
            writer.write(answer.encode())
            await _splice((reader, writer), (link.reader, link.writer))
            return False
        if answer.status == 200 and is_watch(head.target):
            await self._watch(answer, reader, writer, link)
            return False
        if answer.is_chunked and "follow=true" in head.target:
            await _pass(answer, writer, link)
            return True
        return await self._answer(head, answer, active_rule, reader, writer, link)

    async def _answer(
        self,
        head: Head,
        answer: Head,
        active_rule: ActiveRule | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: "_Link",
    ) -> bool:
        body = await whole(link.reader, answer, is_answer=True, is_bare=head.method == "HEAD")
        blob = answer.encode(transfer_encoding="", content_length="" if head.method == "HEAD" else str(len(body)))
        match active_rule.rule.kind if active_rule else None:
            case Effect.TIMEOUT_APPLIED if active_rule:
                await self._hold(reader, active_rule)
                raise ConnectionResetError
            case Effect.RESET_BODY:
                writer.write(blob + body[: len(body) // 2])
                await writer.drain()
                raise ConnectionResetError
            case Effect.SLOW_BODY if active_rule:
                writer.write(blob)
                at = 0
                while at < len(body) and not active_rule.ended.is_set():
                    writer.write(body[at : at + 1])
                    at += 1
                    await self._hold(reader, active_rule, SLOW_S)
                writer.write(body[at:])
            case _:
                writer.write(blob + body)
        await writer.drain()
        return "close" not in answer.get("connection").lower()

    @property
    def stalled(self) -> int:
        """The number of open watches on which nothing passes any more."""
        return sum(watch.is_stalled for watch in self._watches)

    async def _watch(
        self, answer: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: "_Link"
    ) -> None:
        writer.write(answer.encode(transfer_encoding="chunked", content_length=""))
        await writer.drain()
        watch = Watch(self.name, self._rules, writer)
        self._watches.add(watch)
        try:
            await watch.run(lines(pieces(link.reader, answer, is_answer=True)), reader)
        finally:
            self._watches.discard(watch)

    async def _hold(
        self, reader: asyncio.StreamReader, active_rule: ActiveRule, timeout_s: float | None = None
    ) -> None:
        """Wait until the rule is dropped, the time is over, or the client has closed. Raises ConnectionResetError in
        the last case."""
        gone = asyncio.ensure_future(reader.read(1))
        over = asyncio.ensure_future(active_rule.ended.wait())
        try:
            await asyncio.wait({gone, over}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ConnectionResetError("the client gave up")
        finally:
            gone.cancel()
            over.cancel()
            await asyncio.wait({gone, over})


class _Link(msgspec.Struct, frozen=True):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def is_watch(target: str) -> bool:
    """Whether a request opens a watch."""
    query = target.partition("?")[2].split("&")
    return "watch=true" in query or "watch=1" in query


def refusal(status: int, retry_after_s: int) -> bytes:
    """A whole answer in the words of the API server."""
    reason = _REASONS.get(status, "Unknown")
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}
    details = {"retryAfterSeconds": retry_after_s} if retry_after_s else {}
    body = msgspec.json.encode({**told, "message": "the server is not able to answer now", "details": details})
    wait = (("retry-after", str(retry_after_s)),) if retry_after_s else ()
    headers = (("content-type", "application/json"), ("content-length", str(len(body))), *wait)
    return Head(first=f"HTTP/1.1 {status} {reason}", headers=headers).encode() + body


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST: the peer loses everything that it has not read yet."""
    with contextlib.suppress(OSError):
        sock: socket.socket | None = writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _pass(answer: Head, writer: asyncio.StreamWriter, link: _Link) -> None:
    """Pass a stream that is no watch: a followed log."""
    writer.write(answer.encode())
    async for piece in pieces(link.reader, answer, is_answer=True):
        writer.write(chunk(piece))
        await writer.drain()
    writer.write(chunk(b""))
    await writer.drain()


async def _splice(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], two: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Pass bytes both ways until either side ends."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()

    tasks = [asyncio.ensure_future(copy(source[0], target[1])) for source, target in ((one, two), (two, one))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
