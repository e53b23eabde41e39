"""A stream of typed entries over several connections. Pure: the client provides the bytes and the time.

Promises: entries are delivered in order and once. A new stream can continue at `cursor`, which is after the last
delivered entry. With a deadline the stream ends in time, even while no entry arrives.

Log lines are delivered once each, also when the stream restarts from its beginning. Lines that are read directly from
pods have no ids, and after a lost connection their stream starts from the beginning. A line that was already delivered
is recognised by its number. Without a number it is recognised by its rank, time and text, as many times as it was
delivered.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from slipway.api.schemas import AllocationView, LogLineView
from slipway.errors import DeadlineError, FieldError, InvalidError, PermanentError
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event, Phase
from slipway.model.times import parse_time
from slipway.sdk.sse import SILENCE_S, EventParser, ResumableStream, ServerSentEvent

Json = dict[str, Any]

MISSING = re.compile(r"^\d+ lines? (?:is|are)")
"""The beginning of the text that marks missing lines."""
REMEMBERED_MAX = 10_000
TIME_LENGTH = len("2026-01-02T03:04:05.678")


class LineDeduplicator:
    """Remembers the delivered lines of one stream of log lines, and recognises a line that is repeated."""

    def __init__(self) -> None:
        self._told, self._replayed = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
        self._numbers: dict[tuple[Any, ...], int] = {}

    def reopened(self) -> None:
        """Note that another connection begins, so lines without an id may be repeated."""
        self._replayed = self._told.copy()

    def is_new(self, line: Json, id_: str) -> bool:
        """Whether to deliver the line. A mark of missing lines is shortened, in place, to the lines not yet counted."""
        if self._is_told(line):
            return False
        mark = _mark(line)
        if self._replayed[mark] > 0:
            self._replayed[mark] -= 1
            return False
        if not id_ and len(self._told) < REMEMBERED_MAX:
            self._told[mark] += 1
        return True

    def _is_told(self, line: Json) -> bool:
        """Whether a numbered line, or a later line of its log, was delivered before; if not, record it as delivered.

        After a lost connection the server starts again. Its mark of missing lines then includes lines that were already
        delivered or counted. The mark is shortened to the rest.
        """
        number, missing = int(line.get("number") or 0), int(line.get("missing") or 0)
        # An event of Kubernetes about a pod is not a line of the pod's log, even when a server numbers it.
        if not number or line.get("stream") == "event":
            return False
        source = (line.get("attempt"), line.get("rank"), line.get("container"))
        last, told = number + max(missing, 1) - 1, self._numbers.get(source, 0)
        if last <= told:
            return True
        if missing and number <= told:
            rest = last - told
            line |= {"number": told + 1, "missing": rest}
            line["text"] = MISSING.sub(
                "1 line is" if rest == 1 else f"{rest} lines are", str(line.get("text", "")), count=1
            )
        self._numbers[source] = last
        return False


def _mark(line: Json) -> tuple[Any, ...]:
    """Return the key that identifies a line. Its time is in milliseconds, because not every runtime is more precise."""
    return line.get("attempt"), line.get("rank"), str(line.get("time", ""))[:TIME_LENGTH].rstrip("Z"), line.get("text")


T = TypeVar("T")

REOPEN_S = 1.0
"""Seconds beyond the deadline that a connection may be silent before it is reopened with a shorter timeout."""


GOALS = ("running", "ready", "ended")


class Watch(Generic[T]):
    """One stream. `decode` converts an entry into a value, or into None when the entry is left out."""

    def __init__(
        self,
        path: str,
        query: Mapping[str, Any],
        decode: Callable[[ServerSentEvent], T | None],
        *,
        after: str = "",
        deadline: float | None = None,
    ) -> None:
        self.path, self.query = path, query
        self._decode = decode
        self._deadline = deadline
        self._course = ResumableStream(after)
        self._parser = EventParser(self._course.stands_at)
        self._silence_s = SILENCE_S
        self.is_over = False
        """the subject of the stream has ended: no more entries follow"""
        self.reopened: Callable[[], None] = lambda: None

    @property
    def cursor(self) -> str:
        """The id of the last delivered entry; before the first one, the position at which the server began."""
        return self._course.last

    @property
    def headers(self) -> dict[str, str]:
        """The headers that request the stream, and only the entries after the cursor."""
        last = {"Last-Event-ID": self.cursor} if self.cursor else {}
        return {"Accept": "text/event-stream", **last}

    def open(self, now: float) -> float:
        """Begin a connection; return the seconds that it may be silent."""
        self._parser = EventParser(self._course.stands_at)
        self._course.opened(now)
        self.reopened()
        left_s = SILENCE_S if self._deadline is None else max(0.001, self._deadline - now)
        self._silence_s = min(SILENCE_S, left_s)
        return self._silence_s

    def feed(self, chunk: bytes, now: float) -> list[tuple[ServerSentEvent, T]]:
        """Return the entries that these bytes complete; the caller delivers each one and calls `passed`.

        Raises:
            PermanentError: this version cannot read them.
        """
        self._course.heard(now)
        try:
            found = [(entry, self._decode(entry)) for entry in self._parser.feed(chunk)]
        except ValueError as error:
            raise PermanentError(
                f"the stream {self.path} is not what this version of the SDK reads: {error}"
            ) from error
        return [(entry, value) for entry, value in found if value is not None]

    def passed(self, entry: ServerSentEvent) -> None:
        """Record that the entry was delivered."""
        self._course.passed(entry)

    def is_to_reopen(self, now: float) -> bool:
        """Whether to reopen this connection, because its timeout ends well after the deadline (`REOPEN_S`).

        Raises:
            DeadlineError: the deadline has passed.
        """
        if self._deadline is None:
            return False
        if now >= self._deadline:
            raise DeadlineError("the timeout was reached")
        return self._silence_s > self._deadline - now + REOPEN_S

    def pause_after(self, broken: Exception, now: float) -> float:
        """Return the seconds until the stream is reopened. Raises `broken`, or a DeadlineError after the deadline."""
        if self._deadline is not None and now >= self._deadline:
            raise DeadlineError("the timeout was reached") from broken
        pause_s = self._course.pause_after(broken, now)
        return pause_s if self._deadline is None else min(pause_s, self._deadline - now)


def watch_events(
    path: str, query: Mapping[str, Any], *, after: str, ends: bool, deadline: float | None = None
) -> Watch[AllocationEvent]:
    """Return a watch of events; with `ends`, of one allocation, whose `terminated` event ends it."""

    def decode(entry: ServerSentEvent) -> AllocationEvent | None:
        event = event_of(entry.data)
        if ends and event is not None and event.type is Event.TERMINATED:
            watch.is_over = True
        return event

    watch = Watch(path, query, decode, after=after, deadline=deadline)
    return watch


def watch_lines(path: str, query: Mapping[str, Any], *, after: str) -> Watch[LogLineView]:
    """Return a watch of new log lines, each once. A gap is a line whose `missing` counts the lost lines."""
    once = LineDeduplicator()

    def decode(entry: ServerSentEvent) -> LogLineView | None:
        return msgspec.convert(entry.data, LogLineView) if once.is_new(entry.data, entry.id) else None

    watch = Watch(path, {**query, "follow": True}, decode, after=after)
    watch.reopened = once.reopened
    return watch


def event_of(told: Json) -> AllocationEvent | None:
    """Return the event in a CloudEvent of the API; None for a type that this version does not know.

    Raises:
        InvalidError: the object is no valid event.
    """
    # Imported with the first event: most programs read none.
    from slipway.streams.codec import UnknownTypeError, decode_event

    fields = {name: value.encode() for name, value in told.items() if isinstance(value, str)}
    fields["data"] = json.dumps(told.get("data")).encode()
    try:
        return decode_event(fields)
    except UnknownTypeError:
        return None


def cursor_of(view: AllocationView) -> str:
    """Return the cursor after the last event that the view of an allocation includes."""
    seq = int(view.status.get("seq") or 0)
    return f"{int(parse_time(view.created_at)) * 1000}-{seq}" if seq else ""


def watch_of(view: AllocationView, path: str, goal: str, deadline: float | None) -> Watch[AllocationEvent]:
    """Return a watch of the events after the view. Raises InvalidError for an unknown goal."""
    if goal not in GOALS:
        detail = f"must be one of {', '.join(GOALS)}, not {goal!r}"
        raise InvalidError(f"until: {detail}", fields=(FieldError("/until", detail),))
    return watch_events(path, {}, after=cursor_of(view), ends=True, deadline=deadline)


def late(view: AllocationView, goal: str, timeout_s: float | None) -> DeadlineError:
    """Return the error for a wait that took too long."""
    done = "has not ended" if goal == "ended" else f"is not {goal}"
    error = DeadlineError(f"{view.id} {done} after {timeout_s or 0:g} s: it is {view.phase.value}")
    error.next_step = "ask explain() what it waits for, or wait longer"
    error.add_note(f"next step: {error.next_step}")
    return error


def has_reached(view: AllocationView, goal: str) -> bool:
    """Whether the goal is reached. An ended allocation reaches every goal: it can no longer be `running` or `ready`."""
    if view.phase is Phase.TERMINATED:
        return True
    return (goal == "running" and view.phase is Phase.RUNNING) or (goal == "ready" and view.ready)
