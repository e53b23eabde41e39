"""The library for code that runs inside a pod: the calls of a rank to Slipway.

    from slipway.inside import client

    client.ready()
    everybody = client.allgather({"host": "10.0.0.7"})
    while not client.preempted():
        train_a_step()

This module owns the calls, their retries, and the sources of the address and the token: the environment of the rank. It
must not know the rest of Slipway and uses the standard library only. So this one file may be copied into any image with
a Python 3.8, under any name. `python -m slipway.inside` offers the same calls for shells.

Promises: every call ends within its time limit. A temporary failure is retried; a refusal is raised with the text of
the API. Every call may be repeated, also by this library. Outside an allocation, notes are dropped, `preempted` is
False, and an all-gather with one peer completes at once. So the same script runs on a laptop.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple, cast

CALL_S = 30.0
"""Seconds within which a note is retried."""
MEET_S = 600.0
"""Default number of seconds to wait for the other ranks."""
POLL_S = 60.0
"""Seconds of one long poll; then it is repeated."""
SLACK_S = 15.0
"""Seconds that an answer may be later than announced."""
PAUSE_S, PAUSE_S_MAX = 0.2, 10.0
QUIET_S = 5.0
"""Minimum seconds between two polls whose answers arrive at once."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would send the task's token to any host that a redirect names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""
        return


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
"""Uses no proxy and follows no redirect."""
LOST = (OSError, ValueError, http.client.HTTPException)
"""What a call raises whose answer is missing, cut off or of another program; the call may be repeated."""


class ApiRefusedError(Exception):
    """The API refused the call. `code` is its code for the reason; the text states why and what to do."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail or code or f"HTTP {status}")
        self.status = status
        self.code = code
        self.retry_after_s = 0.0


class NotInTimeError(Exception):
    """The API or the other ranks did not answer in time. The text states what is known."""


class PreemptionSignal(NamedTuple):
    """The order to save work and exit with 0 before `deadline` (RFC 3339; empty when it is not fixed yet)."""

    n: int
    reason: str
    deadline: str
    requeue: bool
    """Whether this work continues later, as the next attempt."""


class RankPeer(NamedTuple):
    """The host of a rank."""

    rank: int
    role: str
    host: str


class Client:
    """One rank. Without arguments, it is the rank of this process's environment."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        found = dict(os.environ) if env is None else env
        self.allocation = found.get("SLIPWAY_ALLOCATION_ID", "")
        self.attempt = int(found.get("SLIPWAY_ATTEMPT") or 1)
        self.rank = int(found.get("SLIPWAY_RANK") or 0)
        # torchrun sets these variables when it starts several processes in a rank.
        self.position = int(found.get("RANK") or self.rank)
        self.world_size = int(found.get("WORLD_SIZE") or 1)
        self._root = f"{found.get('SLIPWAY_API', '').rstrip('/')}/api/v1/allocations/{self.allocation}"
        self._is_inside = bool(found.get("SLIPWAY_API") and self.allocation)
        self._token_file = found.get("SLIPWAY_TOKEN_FILE", "")
        self._traceparent = found.get("TRACEPARENT", "")
        self._preempt_file = found.get("SLIPWAY_PREEMPT_FILE", "")
        self._lock = threading.Lock()
        self._rounds: dict[str, int] = {}
        self._asked: PreemptionSignal | None = None
        self._watcher: threading.Thread | None = None
        self._heard = threading.Event()

    # --- notes ------------------------------------------------------------------------------------------------------

    def ready(self, value: bool = True) -> bool:
        """Report that the service inside answers (or no longer does). Return whether it was reported."""
        return self._note("ready", {"value": value})

    def waiting(self, value: bool = True) -> bool:
        """Report that there is nothing to show yet."""
        return self._note("waiting", {"value": value})

    def progress(self, part: float | None = None, *, checkpoint: bool = False) -> bool:
        """Report the progress of the work, from 0 to 1; with `checkpoint`, that the work was just saved."""
        said = {} if part is None else {"progress": part}
        return self._note("progress", {**said, "checkpoint": True} if checkpoint else said)

    def activity(self) -> bool:
        """Report use, so that the idle timeout starts again."""
        if not self._is_inside:
            return False
        self._call("POST", "/activity", {}, timeout_s=CALL_S)
        return True

    def daemon(self, rank: int | None = None, value: bool = True) -> bool:
        """Report that the rank (default: this one) is a daemon, which does not delay the end of the other ranks."""
        return self._note(f"ranks/{self.rank if rank is None else rank}/daemon", {"value": value})

    def _note(self, what: str, body: dict[str, Any]) -> bool:
        if not self._is_inside:
            return False
        self._call("POST", f"/{what}", {**body, "attempt": self.attempt}, timeout_s=CALL_S)
        return True

    # --- preemption -------------------------------------------------------------------------------------------------

    def preempted(self) -> bool:
        """Return whether the ranks must end. The call is cheap: from the first call on, a thread waits for the signal.

        Also true when the file in SLIPWAY_PREEMPT_FILE exists.
        """
        if self._asked is None and self._is_inside:
            self.watch()
        return self._asked is not None or bool(self._preempt_file and os.path.exists(self._preempt_file))

    def watch(self, then: Callable[[PreemptionSignal], object] | None = None) -> None:
        """Wait for a preemption in a separate thread, and then call `then` in a thread."""
        with self._lock:
            if then is not None:
                threading.Thread(target=self._tell, args=(then,), daemon=True).start()
            if self._watcher is None and self._is_inside:
                self._watcher = threading.Thread(target=self._watch, name="slipway-preemption", daemon=True)
                self._watcher.start()

    def preemption(self, timeout_s: float = 0.0) -> PreemptionSignal | None:
        """Return the preemption signal; wait for it up to `timeout_s` seconds. None when there is none."""
        until = time.monotonic() + timeout_s
        while self._is_inside:
            left_s = max(0.0, until - time.monotonic())
            asked_at = time.monotonic()
            found = self._poll(min(POLL_S, left_s), timeout_s=left_s + CALL_S)
            if found is not None or time.monotonic() >= until:
                return found
            # The answer came before its time: the attempt has ended, or the API is about to stop.
            time.sleep(max(0.0, min(asked_at + QUIET_S, until) - time.monotonic()))
        return None

    def ack(self, n: int | None = None) -> bool:
        """Acknowledge the preemption: what this rank does from now on is an orderly end. False outside an
        allocation.
        """
        if not self._is_inside:
            return False
        body = {"rank": self.rank, "attempt": self.attempt, **({} if n is None else {"n": n})}
        self._call("POST", "/signals/preemption/ack", body, timeout_s=CALL_S)
        return True

    def _poll(self, wait_s: float, *, timeout_s: float) -> PreemptionSignal | None:
        path = f"/signals/preemption?timeout_seconds={int(wait_s)}"
        found = self._call("GET", path, None, timeout_s=timeout_s, answer_s=wait_s)
        if not found.get("preempt"):
            return None
        asked = PreemptionSignal(found["n"], found["reason"], found.get("deadline", ""), bool(found.get("requeue")))
        self._asked = asked
        self._heard.set()
        return asked

    def _watch(self) -> None:
        pause_s = 1.0
        while self._asked is None:
            asked_at = time.monotonic()
            try:
                self._poll(POLL_S, timeout_s=2 * POLL_S)
                pause_s = 1.0
            except ApiRefusedError as error:
                if error.status in (403, 404, 409):
                    return  # this attempt is over, so no preemption will follow
                pause_s = min(30.0, pause_s * 2)
            except NotInTimeError:
                pause_s = min(30.0, pause_s * 2)
            if self._asked is None:
                time.sleep(max(pause_s, asked_at + QUIET_S - time.monotonic()))

    def _tell(self, then: Callable[[PreemptionSignal], object]) -> None:
        self._heard.wait()
        if self._asked is not None:
            then(self._asked)

    # --- others -----------------------------------------------------------------------------------------------------

    def allgather(
        self,
        data: Any = None,
        *,
        name: str = "default",
        peers: int | None = None,
        request_id: str = "",
        timeout_s: float = MEET_S,
    ) -> list[Any]:
        """Return the data of every peer, in the order of their ranks; wait for all peers.

        Each call with the same name is a separate round, so all peers must call equally often. A restarted process
        repeats the rounds and receives the data that was exchanged. `peers` is WORLD_SIZE by default.

        Raises:
            NotInTimeError: the text names the missing peers.
            ApiRefusedError: code `replaced`: another process waits under the same request id.
        """
        count = self.world_size if peers is None else peers
        if not self._is_inside and count == 1:
            return [data]
        with self._lock:
            number = self._rounds.get(name, 0)
            self._rounds[name] = number + 1
        body = {
            "requestId": request_id or f"rank-{self.position}",
            "numPeers": count,
            "data": data,
            "group": f"{name}#{number}" if number else name,
            "rank": self.position,
            "attempt": self.attempt,
        }
        answer = self._meet(timeout_s, lambda wait_s: ("POST", "/allgather", {**body, "timeoutSeconds": wait_s}))
        found: list[Any] = answer["data"]
        return found

    def rendezvous(self, timeout_s: float = MEET_S) -> list[RankPeer]:
        """Return the hosts of all ranks, by rank; wait until all ranks run.

        Raises:
            NotInTimeError: the text names the missing ranks.
            ApiRefusedError: the attempt is over.
        """
        if not self._is_inside:
            return [RankPeer(0, "", "127.0.0.1")]
        query = f"rank={self.rank}&attempt={self.attempt}"
        answer = self._meet(
            timeout_s, lambda wait_s: ("POST", f"/rendezvous?timeout_seconds={int(wait_s)}&{query}", None)
        )
        return [RankPeer(each["rank"], each["role"], each["host"]) for each in answer["addresses"]]

    def _meet(self, timeout_s: float, ask: Callable[[float], tuple[str, str, dict[str, Any] | None]]) -> dict[str, Any]:
        """Repeat the request until every peer has arrived."""
        until = time.monotonic() + timeout_s
        why = ""
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0 and why:
                raise NotInTimeError(why)
            wait_s = max(0.0, min(POLL_S, left_s))
            method, path, body = ask(wait_s)
            try:
                answer = self._call(method, path, body, timeout_s=max(left_s, 1.0), answer_s=wait_s)
            except ApiRefusedError as error:
                if error.code != "peers-missing":
                    raise
                why = str(error)
                continue
            if answer.get("ready", True):
                return answer
            why = answer.get("message") or "not all ranks are there"

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None, *, timeout_s: float, answer_s: float = 0.0
    ) -> dict[str, Any]:
        """Make one call, with retries after temporary failures. `answer_s` is the time that the server may take for the
        answer.
        """
        if not self._is_inside:
            raise ApiRefusedError(0, "outside", "SLIPWAY_API and SLIPWAY_ALLOCATION_ID are not set: this is no rank")
        until, pause_s, is_renewed = time.monotonic() + timeout_s, PAUSE_S, False
        while True:
            wait_s = pause_s * (0.5 + os.urandom(1)[0] / 510)
            try:
                return self._once(method, path, body, answer_s + SLACK_S)
            except ApiRefusedError as error:
                if error.status == 401 and not is_renewed:
                    is_renewed = True  # if this token has expired, the file contains a newer one by now
                elif error.code == "peers-missing" or error.status not in _PASSING:
                    raise
                why: Exception = error
                wait_s = max(wait_s, error.retry_after_s)
            except LOST as error:
                why = error
            if time.monotonic() + wait_s > until:
                raise NotInTimeError(f"no answer of {self._root}{path.partition('?')[0]} in time: {why}") from why
            time.sleep(wait_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)

    def _once(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        headers = {"Accept": "application/json", "User-Agent": "slipway-inside"}
        if self._traceparent:
            headers["traceparent"] = self._traceparent
        if self._token_file:
            with open(self._token_file, encoding="utf-8") as file:  # read at each call, because it is renewed in place
                headers["Authorization"] = f"Bearer {file.read().strip()}"
        data = None
        if method == "POST":
            data, headers["Content-Type"] = json.dumps(body or {}).encode(), "application/json"
        request = urllib.request.Request(self._root + path, data, headers, method=method)  # noqa: S310 - as configured
        try:
            with OPENER.open(request, timeout=timeout_s) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error) from None
        return _object(raw)


def _object(raw: bytes) -> dict[str, Any]:
    """Return a JSON object; empty when the text is another JSON value."""
    found: Any = json.loads(raw) if raw else {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _refused(error: urllib.error.HTTPError) -> ApiRefusedError:
    try:
        problem = _object(error.read())
    except LOST:
        problem = {}
    refused = ApiRefusedError(error.code, str(problem.get("code", "")), str(problem.get("detail", "")))
    after = error.headers.get("Retry-After", "")
    refused.retry_after_s = float(after) if after.isascii() and after.isdigit() else 0.0
    return refused


_own: Client | None = None


def own() -> Client:
    """Return the rank of this process."""
    global _own
    if _own is None:
        _own = Client()
    return _own


def ready(value: bool = True) -> bool:
    """See `Client.ready`; the functions below call the methods of the same name."""
    return own().ready(value)


def waiting(value: bool = True) -> bool:
    return own().waiting(value)


def progress(part: float | None = None, *, checkpoint: bool = False) -> bool:
    return own().progress(part, checkpoint=checkpoint)


def activity() -> bool:
    return own().activity()


def daemon(rank: int | None = None, value: bool = True) -> bool:
    return own().daemon(rank, value)


def preempted() -> bool:
    return own().preempted()


def preemption(timeout_s: float = 0.0) -> PreemptionSignal | None:
    return own().preemption(timeout_s)


def ack(n: int | None = None) -> bool:
    return own().ack(n)


def allgather(data: Any = None, **options: Any) -> list[Any]:
    return own().allgather(data, **options)


def rendezvous(timeout_s: float = MEET_S) -> list[RankPeer]:
    return own().rendezvous(timeout_s)
