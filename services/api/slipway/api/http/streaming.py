"""Streams to clients: their form, how many may be open, and how one ends.

A stream is a request that stays open for long: server-sent events, a followed log, a proxied request or WebSocket, a
command in a rank, a long poll. `OpenStreams` limits the open streams of this process: in total, per user, and per
workspace.

Promises
- A user or a workspace at its limit is refused, while other users and workspaces can still open streams.
- A refusal names the limit, its setting and what to close.
- A stream is no longer counted once it has ended, however it ended.

Each process counts only its own streams: with N replicas each limit is N times as high.

A rank that waits in a long poll has a limit of its own and is not counted for its workspace, because a gang polls with
thousands of ranks. With `SLIPWAY_AUTH=none` the caller is unknown, so only the limit of the process applies.

Streamed responses are server-sent events and streamed text, with heartbeats. A stream ends when its writer is done, the
client has left, or the process drains. A writer is a coroutine that writes to a `StreamOutput`; it is cancelled when
the stream ends for another reason.

A stream that begins at its end, with what is new from now on, first sends its position as an `id` without `data`. A
reader keeps that id, and gets no event. So a client whose connection breaks before the first event misses nothing.

Source: WHATWG HTML, "Server-sent events".
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipway.api.http.errors import TooManyStreamsError, TooManyStreamsOfOneError
from slipway.api.ports import ShutdownSignal
from slipway.errors import TransientError
from slipway.kube.scope import raise_only
from slipway.runtime import log, telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run all `works` until one ends, then cancel the others and wait for them.

    A single error is raised as it is, not in a group.
    """
    try:
        async with TaskGroup() as tasks:
            running = {tasks.create_task(work) for work in works}
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()
    except BaseExceptionGroup as group:
        raise_only(group)


HOLDER_KEY = "slipway.stream_holder"
POLL_KIND = "poll"
RANK_POLLS_MAX = 32
"""Long polls of one rank at a time."""
AGAIN_S = 5.0
_CLOSE = "close one first: a page of a browser, slipway logs --follow, slipway port-forward, a notebook"


class StreamHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The user and the workspace of a stream.

    `user` is empty when the caller is unknown; `workspace` is empty when the stream is about none or several.
    """

    user: str = ""
    workspace: str = ""
    is_rank: bool = False


NO_HOLDER = StreamHolder()


def holder_of(connection: HTTPConnection) -> StreamHolder:
    """Return the user and the workspace that a stream for this request counts for."""
    found: StreamHolder = connection.scope.get(HOLDER_KEY, NO_HOLDER)
    return found


class OpenStreams:
    """Counts the open streams: at most `limit` in total, `per_user` for each user, `per_workspace` for each one."""

    def __init__(self, limit: int, *, per_user: int, per_workspace: int) -> None:
        self._limit = limit
        self._per_user = per_user
        self._per_workspace = per_workspace
        self._open = 0
        self._users: Counter[str] = Counter()
        self._workspaces: Counter[str] = Counter()
        self._polls: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Number of open streams, without the long polls of ranks."""
        return self._open

    def check(self, holder: StreamHolder = NO_HOLDER) -> None:
        """Raises TooManyStreamsError when a limit allows no further stream; the message names the limit."""
        if holder.user and self._users[holder.user] >= self._per_user:
            raise TooManyStreamsOfOneError(
                f"{holder.user[:128]} has {self._per_user} open streams at this process, and one user may have no more "
                f"(SLIPWAY_STREAMS_PER_USER_MAX); {_CLOSE}",
                retry_after_s=AGAIN_S,
            )
        if holder.workspace and self._workspaces[holder.workspace] >= self._per_workspace:
            raise TooManyStreamsOfOneError(
                f"workspace {holder.workspace} has {self._per_workspace} open streams at this process, and one "
                f"workspace may have no more (SLIPWAY_STREAMS_PER_WORKSPACE_MAX); {_CLOSE}",
                retry_after_s=AGAIN_S,
            )
        if self._open >= self._limit:
            raise TooManyStreamsError(
                f"this process serves {self._limit} streams, and may serve no more (SLIPWAY_STREAMS_MAX); try again in "
                "a moment, or ask an administrator for more replicas of the api",
                retry_after_s=AGAIN_S,
            )

    @contextlib.contextmanager
    def held(self, kind: str, holder: StreamHolder = NO_HOLDER) -> Generator[None]:
        """Count a stream while the context is open. Raises TooManyStreamsError at a limit."""
        self.check(holder)
        counts = [(self._users, holder.user), (self._workspaces, holder.workspace)]
        self._open += 1
        telemetry.HTTP_STREAMS.labels(kind=kind).inc()
        for count, name in counts:
            _add(count, name)
        try:
            yield
        finally:
            self._open -= 1
            telemetry.HTTP_STREAMS.labels(kind=kind).dec()
            for count, name in counts:
                _take_away(count, name)

    @contextlib.contextmanager
    def polled(self, holder: StreamHolder) -> Generator[None]:
        """Count a long poll while the context is open; one of an unknown caller is not counted.

        Raises:
            TooManyStreamsError: a limit is reached.
        """
        if not holder.user:
            yield
            return
        if not holder.is_rank:
            with self.held(POLL_KIND, holder):
                yield
            return
        if self._polls[holder.user] >= RANK_POLLS_MAX:
            raise TooManyStreamsOfOneError(
                f"pod {holder.user[:128]} waits in {RANK_POLLS_MAX} long polls already, and one rank may wait in no "
                "more; end one first",
                retry_after_s=AGAIN_S,
            )
        _add(self._polls, holder.user)
        try:
            yield
        finally:
            _take_away(self._polls, holder.user)


def _add(count: Counter[str], name: str) -> None:
    if name:
        count[name] += 1


def _take_away(count: Counter[str], name: str) -> None:
    """Subtract one stream. A name without streams is removed, so there are never more names than streams."""
    if name:
        count[name] -= 1
        if not count[name]:
            del count[name]


SSE_TYPE = "text/event-stream"
HEARTBEAT_S = 15.0
RECONNECT_MS = 2000

_log = log.get_logger(__name__)


class StreamOutput:
    """The output of a writer: the body of the response."""

    def __init__(self, send: Send, clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self.sent_at = clock.monotonic()

    async def write(self, chunk: bytes) -> None:
        """Send one chunk; wait while the client does not read."""
        self.sent_at = self._clock.monotonic()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def event(self, data: bytes, *, id_: str = "", name: str = "") -> None:
        """Send one server-sent event; `data` must be one line."""
        head = (f"id: {id_}\n" if id_ else "") + (f"event: {name}\n" if name else "")
        await self.write(b"%bdata: %b\n\n" % (head.encode(), data))

    async def stands_at(self, id_: str) -> None:
        """Send the position of the stream without an event: a client that comes back continues after it."""
        await self.write(f"id: {id_}\n\n".encode())

    async def events(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Send several server-sent events at once; `entries` are (id, data)."""
        await self.write(b"".join(_event(data, id_) for id_, data in entries))


def _event(data: bytes, id_: str) -> bytes:
    return b"%bdata: %b\n\n" % (f"id: {id_}\n".encode() if id_ else b"", data)


Writer = Callable[[StreamOutput], Awaitable[None]]


class PushResponse(Response):
    """Runs a writer until it returns, the client leaves or the process drains."""

    def __init__(
        self,
        writer: Writer,
        *,
        kind: str,
        media_type: str,
        clock: Clock,
        stop: ShutdownSignal,
        streams: OpenStreams,
        holder: StreamHolder,
    ) -> None:
        streams.check(holder)
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._writer = writer
        self._kind = kind
        self._clock = clock
        self._stop = stop
        self._streams = streams
        self._holder = holder
        self._is_whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.held(self._kind, self._holder):
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                if scope["method"] != "HEAD":
                    await self._push(receive, StreamOutput(send, self._clock))
                    if self.media_type != SSE_TYPE and not self._is_whole:
                        return  # only a closed connection can show a reader of plain text that the text is incomplete
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except OSError:
                return  # the client has left

    async def _push(self, receive: Receive, output: StreamOutput) -> None:
        ends = [self._write(output), _until_left(receive), self._stop.wait()]
        if self.media_type == SSE_TYPE:
            ends.append(self._beat(output))
        await first_of(*ends)

    async def _write(self, output: StreamOutput) -> None:
        try:
            if self.media_type == SSE_TYPE:
                await output.write(b"retry: %d\n\n" % RECONNECT_MS)
            await self._writer(output)
            self._is_whole = True
        except TransientError as error:
            # The status is already sent, so the stream just ends; the client reconnects with its last event id.
            _log.warning("stream ended early", kind=self._kind, error=str(error))

    async def _beat(self, output: StreamOutput) -> None:
        while True:
            await self._clock.sleep(HEARTBEAT_S)
            if self._clock.monotonic() - output.sent_at >= HEARTBEAT_S:
                await output.write(b": alive\n\n")


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
