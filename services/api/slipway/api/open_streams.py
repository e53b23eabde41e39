"""How many streams are open at this process: in all, of one user, and in one workspace.

A stream is what holds a place for long: server-sent events, a followed log, a proxied request or WebSocket, a command
in a rank, a long poll. Owns the counts and the refusals; must not know what a stream carries.

Promises: a user or a workspace at its limit is refused while others still get a place; a refusal names the limit, its
setting and what to close; a place is given back however the stream ends. The counts are those of one process: with
several replicas each limit is that many times as high.

A rank that waits in a long poll has a limit of its own and takes no place of its workspace: a gang polls with thousands
of ranks. In mode `none` nobody is known, so that only the limit of the process holds.
"""

import contextlib
from collections import Counter
from collections.abc import Generator

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.http_errors import TooManyStreamsError, TooManyStreamsOfOneError
from slipway.runtime import telemetry

HOLDER_KEY = "slipway.stream_holder"
POLL_KIND = "poll"
RANK_POLLS_MAX = 32
"""Long polls of one rank at a time."""
AGAIN_S = 5.0
_CLOSE = "close one first: a page of a browser, slipway logs --follow, slipway port-forward, a notebook"


class StreamHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a stream is; an empty `user` is not known, an empty `workspace` is none or several."""

    user: str = ""
    workspace: str = ""
    is_rank: bool = False


NOBODY = StreamHolder()


def holder_of(connection: HTTPConnection) -> StreamHolder:
    """Whose stream the answer to this request would be."""
    found: StreamHolder = connection.scope.get(HOLDER_KEY, NOBODY)
    return found


class OpenStreams:
    """`limit` in all; `per_user` and `per_workspace` of each."""

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
        """Open now; polls of ranks are not among them."""
        return self._open

    def check(self, holder: StreamHolder = NOBODY) -> None:
        """Raises TooManyStreamsError when another one is too many, by the limit that is reached."""
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
    def held(self, kind: str, holder: StreamHolder = NOBODY) -> Generator[None]:
        """Counts one while inside. Raises TooManyStreamsError."""
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
        """Counts a long poll while inside. Raises TooManyStreamsError."""
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
    """Names without a stream are forgotten, so that their number is bounded by that of the streams."""
    if name:
        count[name] -= 1
        if not count[name]:
            del count[name]
