"""Streamed responses: server-sent events and streamed text.

Owns the end of a stream (the writer is done, the client left, the process drains) and its heartbeats. A writer is a
coroutine that writes to a `StreamOutput`; it is cancelled when the stream ends for another reason.

A stream that begins at its end, with what is new from now on, first sends its position as an `id` without `data`. A
reader keeps that id, and gets no event. So a client whose connection breaks before the first event misses nothing.

Source: WHATWG HTML, "Server-sent events".
"""

from collections.abc import Awaitable, Callable, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipway.api.first_completed import first_of
from slipway.api.open_streams import OpenStreams, StreamHolder
from slipway.api.ports import ShutdownSignal
from slipway.errors import TransientError
from slipway.runtime import log
from slipway.runtime.clock import Clock

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
