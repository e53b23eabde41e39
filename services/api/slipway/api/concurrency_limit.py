"""A limit on expensive operations: so many run at a time, and one user can never occupy all places."""

import contextlib
from collections import Counter
from collections.abc import Generator

from slipway.errors import ThrottledError


class ConcurrencyLimit:
    """At most `most` operations run at a time; one user may run all but one of them, but always at least one.

    An empty user is unknown and has no limit of its own. `what` names the operations, in the plural.
    """

    def __init__(self, most: int, what: str, *, retry_s: float) -> None:
        self._most = most
        self._what = what
        self._retry_s = retry_s
        self._taken = 0
        self._of_users: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, user: str) -> Generator[None]:
        """Occupy a place while the context is open. Raises ThrottledError when none is free for the user."""
        share = max(1, self._most - 1)
        if user and self._of_users[user] >= share:
            raise ThrottledError(
                f"{user[:128]} has {share} of {self._most} {self._what} in progress, and one user may have no more "
                "at a time; try again when it has ended",
                retry_after_s=self._retry_s,
            )
        if self._taken >= self._most:
            raise ThrottledError(f"{self._most} {self._what} are in progress already", retry_after_s=self._retry_s)
        self._taken += 1
        self._of_users[user] += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._of_users[user] -= 1
            if not self._of_users[user]:
                del self._of_users[user]
