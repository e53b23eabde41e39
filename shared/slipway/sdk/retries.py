"""Decides when the SDK retries a call: which answers allow it, how long to wait, and when to stop.

Invariants: a call that may not be made twice is retried only when it certainly had no effect. All tries of one call end
before its deadline. One client retries at most a part of its calls (`RetryBudget`), so that many clients do not keep an
overloaded server down.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, cast

from slipway.errors import ControlPlaneError, ExpiredError, StaleError, ThrottledError, TransientError

TRIES_MAX = 5
FIRST_S, CAP_S = 0.25, 4.0
TOKENS_MAX, EARNED = 10.0, 0.1
"""A client may retry ten calls in a row, then one more for every ten calls that succeed."""
_LASTING = frozenset({"quota-exceeded", "peers-missing"})
"""Codes of refusals that a wait of some seconds does not change."""
_NOT_DONE = frozenset({"throttled", "stream-limit", "too-many-streams"})
"""Codes of refusals that the server sends before it has done anything."""
_REPEATABLE_POSTS = re.compile(r"/[a-z]+/[^/]+/(?:hold|resume|priority)")
"""Paths of POST requests that set a value which the request names."""
_FORCED_POSTS = re.compile(r"/[a-z]+/[^/]+/kill")
"""Paths of POST requests that have the same effect when they are sent twice with `force`."""
UNKNOWN = "whether the call took effect is unknown"
LOOK = "read the object before you call again"


def chance() -> float:
    """Return a random number from 0 to 1, for the wait before the next try."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def is_read(method: str, path: str, query: Mapping[str, Any]) -> bool:
    """Whether a call changes nothing; `path` is below /api/v1."""
    return method == "GET" or path == "/simulate" or str(query.get("dryRun", "")).lower() == "true"


def is_repeatable(
    method: str, path: str, *, query: Mapping[str, Any], headers: Mapping[str, str], body: Any = None
) -> bool:
    """Whether a call has the same effect and the same answer when it is sent twice; `path` is below /api/v1.

    A second kill ends the ranks without their grace. A second DELETE finds nothing, and a second creation finds the
    first one.
    """
    if method in ("GET", "PUT", "PATCH") or "Idempotency-Key" in headers:
        return True
    if method != "POST":
        return False
    if is_read(method, path, query) or _REPEATABLE_POSTS.fullmatch(path):
        return True
    forced = cast("Mapping[str, Any]", body).get("force") if isinstance(body, Mapping) else getattr(body, "force", None)
    return forced is True and _FORCED_POSTS.fullmatch(path) is not None


def is_without_effect(error: ControlPlaneError) -> bool:
    """Whether the server refused the call before it did anything; after other transient errors that is unknown."""
    return isinstance(error, ThrottledError) or error.code in _NOT_DONE


class RetryBudget:
    """The number of calls that one client may still retry."""

    def __init__(self) -> None:
        self._tokens = TOKENS_MAX

    def earn(self) -> None:
        """Record a call that succeeded."""
        self._tokens = min(TOKENS_MAX, self._tokens + EARNED)

    def spend(self) -> bool:
        """Use one retry; return False when none is left."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Tries:
    """The tries of one call. Times are seconds of one monotonic clock; `chance` is from 0 to 1, drawn for each wait."""

    def __init__(self, budget: RetryBudget, *, is_repeatable: bool, now: float, timeout_s: float) -> None:
        self._budget = budget
        self._is_repeatable = is_repeatable
        self._deadline = now + timeout_s
        self.count = 1

    def left_s(self, now: float) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - now)

    def pause_after(self, error: ControlPlaneError, *, was_sent: bool, now: float, chance: float) -> float:
        """Return the seconds to wait before the next try. Raises `error`, with its `attempts`, when no try is left."""
        error.attempts = self.count
        if self.count >= TRIES_MAX or not self._may_repeat(error, was_sent=was_sent):
            if was_sent and self._is_of_unknown_outcome(error):
                error.args = (f"{error}; {UNKNOWN}: {LOOK}",)
            raise error
        asked_s = (error.retry_after_s if isinstance(error, TransientError) else None) or 0.0
        pause_s = max(asked_s, chance * min(CAP_S, FIRST_S * 2 ** (self.count - 1)))
        if pause_s >= self.left_s(now) or not self._budget.spend():
            raise error
        self.count += 1
        return pause_s

    def _is_of_unknown_outcome(self, error: ControlPlaneError) -> bool:
        is_refused = self._is_repeatable or not isinstance(error, TransientError) or is_without_effect(error)
        return not is_refused and UNKNOWN not in str(error)

    def _may_repeat(self, error: ControlPlaneError, *, was_sent: bool) -> bool:
        if error.code in _LASTING or isinstance(error, ExpiredError):
            return False
        if not isinstance(error, TransientError | StaleError):
            return False
        return self._is_repeatable or not was_sent or is_without_effect(error)
