"""Health of a process: whether it is alive and ready, and the small ASGI app that reports this over HTTP.

This module owns `/livez` (every loop is within its bound, see `liveness.py`), `/readyz` (every check passes and the
process is not draining) and `/metrics`. The app is bare ASGI, so that services without a web framework stay small. The
api mounts it beside its own routes.

When a token is set, `/metrics` requires it, and all three paths refuse requests from pages of other sites. The probes
require no token, because their answers are of no use to others.

Invariants: liveness reads the monotonic clock only. An unavailable dependency never fails liveness, because a restart
would not bring it back. Each refusal states what is wrong and why.

For an operator who finds that the process does not move, the stack of every task is logged: one record per different
stack, so that a thousand tasks that wait at the same place are one line.
"""

import asyncio
import contextlib
import hmac
import os
import types
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

import msgspec

from slipway.runtime import log, telemetry, web_guard
from slipway.runtime.clock import Clock
from slipway.runtime.http_server import Receive, Scope, Send
from slipway.runtime.liveness import CURRENT, Loop, Pulse

FRAMES_MAX = 20
STACKS_MAX = 200

_log = log.get_logger(__name__)


def log_stacks(why: str) -> None:
    """Log the stacks of all tasks of the running event loop."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for task in asyncio.all_tasks():
        found[stack_of(task)].append(task.get_name())
    _log.warning("task stacks follow", why=why, tasks=sum(map(len, found.values())), stacks=len(found))
    for stack, names in sorted(found.items(), key=lambda item: (len(item[1]), item[0]))[:STACKS_MAX]:
        _log.warning("task stack", task=names[0], count=len(names), stack=stack)


def stack_of(task: "asyncio.Task[Any]") -> str:
    """Return the stack of a task, the outermost frame first: `watcher.py:204 run > lease.py:150 run`."""
    frames: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < FRAMES_MAX:
        frame, awaited = _step(awaited)
        if frame is None:
            break
        code = frame.f_code
        frames.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
    return " > ".join(frames) or "no frame"


def _step(awaited: Any) -> tuple[types.FrameType | None, Any]:
    """Return (the frame of a coroutine or generator, the object that it awaits)."""
    for kind in ("cr", "gi", "ag"):
        if hasattr(awaited, f"{kind}_frame"):
            following = getattr(awaited, f"{kind}_await", None)
            return getattr(awaited, f"{kind}_frame"), following or getattr(awaited, "gi_yieldfrom", None)
    return None, None


Check = Callable[[], str | None]

_JSON = b"application/json"
EXIT_STANDSTILL = 71

T = TypeVar("T")


class ProbeReport(msgspec.Struct, frozen=True):
    """The result of one probe. `problems` is {name: reason}."""

    ok: bool
    problems: dict[str, str]


class ProcessHealth:
    """The health of one process, from its loops and checks. `exit_process` ends the process at once."""

    def __init__(self, clock: Clock, *, exit_process: Callable[[int], object] = os._exit) -> None:
        self._clock = clock
        self._exit_process = exit_process
        self._pulses: dict[Pulse, None] = {}
        self._checks: dict[str, Check] = {}
        self._draining = False

    @contextlib.contextmanager
    def watch(
        self, loop: Loop, *, required: bool = False, since: Callable[[], float] = lambda: 0.0, part: bool = False
    ) -> Generator[Pulse]:
        """Supervise `loop`, which the caller runs in the `with` block: liveness fails when the loop exceeds its bound.

        A `required` loop that keeps failing makes the process not ready. Time before `since()` is not counted as
        standstill. A `part` belongs to the loop that starts it; a move of the part is also a move of that loop.
        """
        whole = CURRENT.get() if part else None
        pulse = Pulse(loop, self._clock, required=required, since=since, whole=whole)
        self._pulses[pulse] = None
        before = CURRENT.set(pulse)
        try:
            yield pulse
        finally:
            CURRENT.reset(before)
            del self._pulses[pulse]

    async def supervise(
        self, loop: Loop, work: Callable[[], Awaitable[T]], *, since: Callable[[], float] = lambda: 0.0
    ) -> T:
        """Run `work`, which is itself a loop, under the bound of `loop`."""
        with self.watch(loop, since=since):
            return await work()

    @property
    def loops(self) -> list[Loop]:
        """The loops that are running now."""
        return [pulse.loop for pulse in self._pulses]

    def add_check(self, name: str, check: Check) -> None:
        """Add a readiness check. `check` returns None when ready, else the reason; it must be quick and do no IO."""
        self._checks[name] = check

    def remove_check(self, name: str) -> None:
        self._checks.pop(name, None)

    def drain(self) -> None:
        """Make the process not ready from now on."""
        self._draining = True

    def liveness(self) -> ProbeReport:
        problems = {
            pulse.loop.name: f"no progress for {still_s:.0f} s, allowed {pulse.loop.bound_s:.0f} s"
            for pulse in self._pulses
            if (still_s := pulse.still_s()) > pulse.loop.bound_s
        }
        return ProbeReport(not problems, problems)

    def standstill(self) -> str | None:
        """Return which loops stand still, and for how long; None when none does. A process with such a loop should lead
        nothing.
        """
        problems = self.liveness().problems
        return "; ".join(f"loop {name}: {why}" for name, why in sorted(problems.items())) or None

    def readiness(self) -> ProbeReport:
        problems = {name: f"loop {why}" for name, why in self.liveness().problems.items()}
        for pulse in self._pulses:
            if pulse.required and pulse.failures:
                problems[pulse.loop.name] = f"failed {pulse.failures} times in a row: {pulse.last_error}"
        for name, check in self._checks.items():
            reason = check()
            if reason:
                problems[name] = reason
        if self._draining:
            problems["drain"] = "the process is stopping"
        return ProbeReport(not problems, problems)

    def end_process(self, why: str) -> None:
        """End the process at once, because its work cannot be stopped in order. The process is then started again."""
        _log.critical("process ended: its work cannot be stopped", why=why)
        log_stacks(why)
        self._exit_process(EXIT_STANDSTILL)


class HealthApp:
    """ASGI app for `/livez`, `/readyz` and `/metrics`; every other path is 404. With an empty `token`, none is
    required.
    """

    def __init__(self, health: ProcessHealth, token: str = "") -> None:
        self._health = health
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {bytes(name).decode("latin-1"): bytes(value).decode("latin-1") for name, value in scope["headers"]}
        status, content_type, body = self._answer(str(scope["path"]), str(scope["method"]), headers)
        answered = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        if status == 405:
            answered.append((b"allow", b"GET, HEAD"))
        if status == 401:
            answered.append((b"www-authenticate", b"Bearer"))
        answered.append((b"cache-control", b"no-store"))
        await send({"type": "http.response.start", "status": status, "headers": answered})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, path: str, method: str, headers: dict[str, str]) -> tuple[int, bytes, bytes]:
        if self._token and (foreign := web_guard.check(lambda name: headers.get(name, ""))) is not None:
            return foreign.status, _JSON, msgspec.json.encode({"status": foreign.detail})
        if path not in ("/livez", "/readyz", "/metrics"):
            return 404, _JSON, b'{"status":"not found","see":["/livez","/readyz","/metrics"]}'
        if method not in ("GET", "HEAD"):
            return 405, _JSON, b'{"status":"method not allowed"}'
        if path == "/metrics":
            if self._token and not self._is_known(headers.get("authorization", "")):
                return 401, _JSON, b'{"status":"missing or unknown bearer token (SLIPWAY_METRICS_TOKEN_FILE)"}'
            metrics_type, text = telemetry.render_metrics(headers.get("accept", ""))
            return 200, metrics_type.encode(), text
        report = self._health.liveness() if path == "/livez" else self._health.readiness()
        words = {"status": "ok" if report.ok else "failing", "problems": report.problems}
        return (200 if report.ok else 503), _JSON, msgspec.json.encode(words)

    def _is_known(self, given: str) -> bool:
        scheme, _, token = given.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode("latin-1"), self._token)
