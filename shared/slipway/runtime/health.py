"""Health: is this process alive, is it ready, and the tiny application that says so over HTTP.

Owns `/livez` (every registered loop made progress within its deadline), `/readyz` (every check passes and the process
is not draining) and `/metrics`. The app is bare ASGI, so that services without a web framework stay small; the api
mounts it beside its own routes.

With a token set, `/metrics` is for callers that send it, and pages of other sites are refused on all three paths; the
probes ask for no token, because what they say is of no use to others.

Invariants: liveness looks at the monotonic clock only; a dependency that is away never fails liveness, because a
restart would not bring it back; each refusal says what and why.
"""

import hmac
from collections.abc import Callable

import msgspec

from slipway.runtime import telemetry, web_guard
from slipway.runtime.clock import Clock
from slipway.runtime.http_server import Receive, Scope, Send
from slipway.runtime.redaction import redact_text

Check = Callable[[], str | None]

_JSON = b"application/json"


class _Loop(msgspec.Struct):
    deadline_s: float
    required: bool
    due_s: float
    failures: int = 0
    last_error: str = ""


class Report(msgspec.Struct, frozen=True):
    """The answer of one probe: `problems` is {name: why}."""

    ok: bool
    problems: dict[str, str]


class Health:
    """What the loops and checks of one process say about it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loops: dict[str, _Loop] = {}
        self._checks: dict[str, Check] = {}
        self._draining = False

    def register_loop(self, name: str, *, deadline_s: float, required: bool = False) -> None:
        """The loop promises progress every `deadline_s`; a required one that keeps failing makes us not ready."""
        self._loops[name] = _Loop(deadline_s, required, self._clock.monotonic() + deadline_s)

    def remove_loop(self, name: str) -> None:
        """The loop ended on purpose."""
        self._loops.pop(name, None)

    def progress(self, name: str, *, next_in_s: float = 0.0) -> None:
        """The loop's step succeeded; the next one starts after `next_in_s`. A long step calls it on its way, too."""
        self._turn(name, next_in_s, failures=0, error="")

    def failed(self, name: str, error: str, *, next_in_s: float = 0.0) -> None:
        """The loop's step failed, and the loop lives on."""
        loop = self._loops.get(name)
        self._turn(name, next_in_s, failures=loop.failures + 1 if loop else 1, error=error)

    def add_check(self, name: str, check: Check) -> None:
        """`check` answers None when ready, else the reason; it must be quick and do no IO."""
        self._checks[name] = check

    def remove_check(self, name: str) -> None:
        self._checks.pop(name, None)

    def drain(self) -> None:
        """Not ready from now on."""
        self._draining = True

    def liveness(self) -> Report:
        now_s = self._clock.monotonic()
        problems = {
            name: f"no progress for {now_s - loop.due_s + loop.deadline_s:.0f} s, allowed {loop.deadline_s:.0f} s"
            for name, loop in self._loops.items()
            if now_s > loop.due_s
        }
        return Report(not problems, problems)

    def readiness(self) -> Report:
        problems = {name: f"loop {why}" for name, why in self.liveness().problems.items()}
        for name, loop in self._loops.items():
            if loop.required and loop.failures:
                problems[name] = f"failed {loop.failures} times in a row: {loop.last_error}"
        for name, check in self._checks.items():
            reason = check()
            if reason:
                problems[name] = reason
        if self._draining:
            problems["drain"] = "the process is stopping"
        return Report(not problems, problems)

    def _turn(self, name: str, next_in_s: float, *, failures: int, error: str) -> None:
        loop = self._loops.get(name)
        if loop is not None:
            loop.due_s = self._clock.monotonic() + loop.deadline_s + next_in_s
            loop.failures, loop.last_error = failures, redact_text(error)


class HealthApp:
    """ASGI app for `/livez`, `/readyz` and `/metrics`; everything else is 404. An empty `token` asks for none."""

    def __init__(self, health: Health, token: str = "") -> None:
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
