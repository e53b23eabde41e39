"""Logs: one constant message and key-values per line, on the standard library.

This module owns the line's format and the ids that are bound to a context. The format is JSON for machines or text for
a terminal. The module knows no tracing library: the caller of `setup` passes a function that returns the current trace.

Lines of libraries are limited. A remote client can make a server or the event loop log, with half requests, wrong
upgrades or garbage, and would otherwise fill the log. Of lines of the same kind, the first ones of a minute are
written, then their number.

Invariants: one event is one line. Values under keys that name secrets are hidden, and so are passwords in URLs. Ids
that `bind` sets appear on every line inside it, also in tasks started there.

Without a limit, any client that can open a connection would decide how large the log is, and could hide other events in
it. Promises of the limit (`LineLimit`): at most `lines_max` lines of each kind are admitted per `window_s`. Withheld
lines are counted, and the first call after the end of the window reports their number. Not promised: more than
`KINDS_MAX` separate kinds; further kinds are counted together.
"""

import contextlib
import logging
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, Literal, TextIO

import msgspec

from slipway.model.times import format_time
from slipway.runtime.clock import Clock
from slipway.runtime.redaction import redact, redact_text

LINES_MAX: Final = 10
WINDOW_S: Final = 60.0
KINDS_MAX: Final = 64
OTHERS: Final = "others"


class LineLimit:
    """The lines of each kind in its current window. `now` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float], *, lines_max: int = LINES_MAX, window_s: float = WINDOW_S) -> None:
        self._now = now
        self._lines_max = lines_max
        self._window_s = window_s
        self._kinds: dict[str, tuple[float, int]] = {}
        """{kind: (start of its window, lines since)}, the oldest first."""

    def admits(self, kind: str) -> bool:
        """Whether a line of this kind may be written now. The line is counted in any case."""
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = OTHERS
        began, count = self._kinds.get(kind, (self._now(), 0))
        self._kinds[kind] = (began, count + 1)
        return count < self._lines_max

    def ended(self) -> list[tuple[str, int]]:
        """Return (kind, lines withheld) of each window that has ended and withheld lines. Each window is reported
        once.
        """
        now = self._now()
        told: list[tuple[str, int]] = []
        while self._kinds:
            kind, (began, count) = next(iter(self._kinds.items()))
            if now - began < self._window_s:
                break
            del self._kinds[kind]
            if count > self._lines_max:
                told.append((kind, count - self._lines_max))
        return told


TraceIds = tuple[str, str]

_FIELDS = "slipway_fields"
_OURS = "slipway"
_KIND_CHARS = 80
_NO_IDS: Mapping[str, object] = MappingProxyType({})
_bound: ContextVar[Mapping[str, object]] = ContextVar("slipway_log_ids", default=_NO_IDS)
_encoder = msgspec.json.Encoder(enc_hook=str)


class Logger:
    """A named logger whose methods take a constant message and key-values."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: object) -> None:
        self.write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        self.write(logging.INFO, message, fields)

    def warning(self, message: str, *, exc_info: bool | BaseException = False, **fields: object) -> None:
        self.write(logging.WARNING, message, fields, exc_info=exc_info)

    def error(self, message: str, *, exc_info: bool | BaseException = False, **fields: object) -> None:
        self.write(logging.ERROR, message, fields, exc_info=exc_info)

    def critical(self, message: str, *, exc_info: bool | BaseException = False, **fields: object) -> None:
        self.write(logging.CRITICAL, message, fields, exc_info=exc_info)

    def write(
        self, level: int, message: str, fields: dict[str, object], *, exc_info: bool | BaseException = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, exc_info=exc_info or None, extra={_FIELDS: fields})


def get_logger(name: str) -> Logger:
    """The logger of a module: `_log = get_logger(__name__)`."""
    return Logger(name)


_own = get_logger(__name__)


@contextlib.contextmanager
def bind(**ids: object) -> Generator[None]:
    """Put `ids` on every line that is written inside, also by tasks that start inside."""
    token = _bound.set({**_bound.get(), **ids})
    try:
        yield
    finally:
        _bound.reset(token)


def bound() -> Mapping[str, object]:
    """Return the ids that are bound to the current context."""
    return _bound.get()


class CanonicalLine:
    """The one line that reports the result of a request, message or tick. `set` adds fields."""

    def __init__(self, fields: dict[str, object]) -> None:
        self.fields = fields
        self.outcome = "ok"
        self.is_withheld = False
        """Whether the line is written at the level debug only."""

    def set(self, **fields: object) -> None:
        self.fields.update(fields)


@contextlib.contextmanager
def canonical_line(logger: Logger, message: str, *, clock: Clock, **fields: object) -> Generator[CanonicalLine]:
    """Write exactly one line at the end, with `duration_s` and `outcome`: `ok`, the outcome that was set, or the class
    of the error.
    """
    line = CanonicalLine(dict(fields))
    started_s = clock.monotonic()
    failed = False
    try:
        yield line
    except BaseException as error:
        line.outcome = type(error).__name__
        line.fields.setdefault("error", str(error))
        failed = True
        raise
    finally:
        line.set(outcome=line.outcome, duration_s=round(clock.monotonic() - started_s, 6))
        level = logging.WARNING if failed else logging.DEBUG if line.is_withheld else logging.INFO
        logger.write(level, message, line.fields)


class LibraryFilter(logging.Filter):
    """A filter that withholds repeated lines of libraries. It reports their number when the next line is written.

    Lines are of the same kind when these are equal: the logger, the level, the first line of the message template and
    the class of the error. Our own lines pass: those that a remote client can cause are limited where they are written.
    """

    def __init__(self, limit: LineLimit) -> None:
        super().__init__()
        self._limit = limit

    def filter(self, record: logging.LogRecord) -> bool:
        for kind, count in self._limit.ended():
            _own.warning("more lines like this in the last minute were not written", count=count, like=kind)
        if record.name.partition(".")[0] == _OURS:
            return True
        error = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
        said = str(record.msg).partition("\n")[0][:_KIND_CHARS]
        return self._limit.admits(f"{record.name} {record.levelname} {said}{f' {error.__name__}' if error else ''}")


class JsonFormatter(logging.Formatter):
    """Write one JSON object per line: ts, level, logger, msg, service, trace ids, bound ids, the line's own fields."""

    def __init__(self, service: str, trace_ids: Callable[[], TraceIds | None]) -> None:
        super().__init__()
        self._service = service
        self._trace_ids = trace_ids

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": format_time(record.created, "microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": redact_text(record.getMessage()),
            "service": self._service,
        }
        ids = self._trace_ids()
        if ids is not None:
            line["trace_id"], line["span_id"] = ids
        for key, value in _fields(record).items():
            # A field may not overwrite the line's own keys.
            line[f"field_{key}" if key in line else key] = redact(key, value)
        if record.exc_info:
            line["traceback"] = _traceback(record)
        return _encoder.encode(line).decode()


class TextFormatter(logging.Formatter):
    """Write lines for people: `12:00:00 INFO  scheduler  message  key=value`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = format_time(record.created)[11:19]
        head = f"{clock} {record.levelname:<7} {self._service}  {record.getMessage()}"
        pairs = [f"{key}={redact(key, value)}" for key, value in _fields(record).items()]
        text = redact_text("  ".join([head, *pairs]))
        return f"{text}\n{_traceback(record)}" if record.exc_info else text


def setup(
    service: str,
    *,
    level: str = "info",
    style: Literal["json", "text"] = "json",
    trace_ids: Callable[[], TraceIds | None] = lambda: None,
    stream: TextIO | None = None,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Send every logger of the process to `stream` (default: standard error). Replaces an earlier setup."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service, trace_ids) if style == "json" else TextFormatter(service))
    handler.addFilter(LibraryFilter(LineLimit(now)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries log only problems; our own lines report the rest.
    for name in ("uvicorn", "asyncio", "httpx2", "httpcore2", "websockets", "opentelemetry"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    own: dict[str, object] = getattr(record, _FIELDS, {})
    return {**_bound.get(), **own}


def _traceback(record: logging.LogRecord) -> str:
    if not isinstance(record.exc_info, tuple) or record.exc_info[1] is None:
        return ""
    return redact_text("".join(traceback.format_exception(record.exc_info[1])).rstrip())
