"""Waits in an init container until the roles that a rank's role depends on have reached the required state.

It asks the API, which knows the pods of the gang. It must not know the rest of Slipway and uses the standard library
only: its source is in the ConfigMap of the launch and runs in any image with a Python 3.8.

Invariants: it succeeds only after a positive answer of the API. While the API is unavailable, it retries without limit.
It ends when the attempt is over, and on SIGTERM, for which the first process of a container needs a handler.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from typing import Any, cast

WAIT_S = 30
SILENCE_S = 60.0
PAUSE_S = 0.5
PAUSE_S_MAX = 15.0
_OVER = (400, 404, 409, 410, 422)
"""Answers that waiting cannot change: there is no such rank or allocation, or its attempt is over."""


class StartCancelledError(Exception):
    """The rank must not start any more. The text states why."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would send the task's token to any host that a redirect names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""
        return


def ask(url: str, token_file: str = "") -> dict[str, Any]:
    """Request one answer. Raises OverError, or OSError or ValueError when the request may be repeated."""
    headers = {"Accept": "application/json", "User-Agent": "slipway-start"}
    if token_file and os.path.exists(token_file):
        with open(token_file, encoding="utf-8") as file:
            headers["Authorization"] = "Bearer " + file.read().strip()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=SILENCE_S) as answer:  # noqa: S310
            found = json.loads(answer.read(1 << 20))
    except urllib.error.HTTPError as error:
        detail = f"HTTP {error.code}"
        with contextlib.suppress(
            ValueError, AttributeError, OSError, http.client.HTTPException
        ):  # the answer of another server
            detail = f"{detail}: {json.loads(error.read(65536)).get('detail', '')}"
        if error.code in _OVER:
            raise StartCancelledError(detail) from error
        raise OSError(detail) from error
    except http.client.HTTPException as error:  # cut off, or of another program
        raise OSError(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("the answer is no object")
    return cast("dict[str, Any]", found)


def main() -> int:
    """Return 0 when the rank may start; 1 after printing the reason when it may not."""
    told = {name: os.environ.get(f"SLIPWAY_{name}", "") for name in ("API", "ALLOCATION_ID", "RANK", "ATTEMPT")}
    missing = [f"SLIPWAY_{name}" for name, value in told.items() if not value]
    if missing:
        _say(f"{missing[0]} is not set")
        return 1
    root = f"{told['API'].rstrip('/')}/api/v1/allocations/{told['ALLOCATION_ID']}/ranks/{told['RANK']}/start"
    url = f"{root}?attempt={told['ATTEMPT']}&timeout_seconds={WAIT_S}"
    pause_s, said = PAUSE_S, ""
    while True:
        try:
            found = ask(url, os.environ.get("SLIPWAY_TOKEN_FILE", ""))
        except StartCancelledError as error:
            _say(str(error))
            return 1
        except (OSError, ValueError) as error:
            text = f"asks again: {error}"
            found = None
        else:
            if found.get("start") is True:
                return 0
            text = str(found.get("message") or "waits for other roles")
            pause_s = PAUSE_S
        if text != said:
            _say(text)
            said = text
        time.sleep(pause_s)
        if found is None:
            pause_s = min(PAUSE_S_MAX, pause_s * 2)


def _say(text: str) -> None:
    sys.stdout.write(f"start order: {text}\n")
    sys.stdout.flush()


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
