"""Limits on the open streams of this process: in total, per user, and per workspace.

A stream is a request that stays open for long: server-sent events, a followed log, a proxied request or WebSocket, a
command in a rank, a long poll. Owns the counts and the refusals; must not know what a stream carries.

Promises
- A user or a workspace at its limit is refused, while other users and workspaces can still open streams.
- A refusal names the limit, its setting and what to close.
- A stream is no longer counted once it has ended, however it ended.

Each process counts only its own streams: with N replicas each limit is N times as high.

A rank that waits in a long poll has a limit of its own and is not counted for its workspace, because a gang polls with
thousands of ranks. With `SLIPWAY_AUTH=none` the caller is unknown, so only the limit of the process applies.
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
