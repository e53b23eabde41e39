"""The API server's own record of the requests of service accounts.

Owns how the log is read, and which parts of it are excluded: requests that a test caused on purpose.
"""

import contextlib
from collections.abc import Generator
from pathlib import Path

import msgspec

from tests.conformance.system.permissions import Account, Request, request_of

_LINES = msgspec.json.Decoder()


class Audit:
    """The audit log of a cluster. It is written before a request is answered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._excluded: list[tuple[int, int]] = []

    def position(self) -> int:
        """The present end of the log."""
        return self._path.stat().st_size if self._path.exists() else 0

    @contextlib.contextmanager
    def excluded(self) -> Generator[None]:
        """Exclude the requests that are made inside this context."""
        since = self.position()
        try:
            yield
        finally:
            self._excluded.append((since, self.position()))

    def requests(self, *accounts: Account, since: int | None = None) -> set[Request]:
        """The requests of these accounts: from `since` on, or all that are not excluded."""
        users = {account.user for account in accounts}
        skipped = self._excluded if since is None else []
        found: set[Request] = set()
        at = 0
        with self._path.open("rb") as lines:
            for line in lines:
                start, at = at, at + len(line)
                if start < (since or 0) or any(low <= start < high for low, high in skipped):
                    continue
                entry = _LINES.decode(line) if line.endswith(b"\n") else None
                if entry is not None and entry["user"]["username"] in users:
                    found.add(request_of(entry))
        return found
