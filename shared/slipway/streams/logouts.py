"""Logins of browsers that were ended or renewed, and one-time codes that were used: what replicas of the api tell
each other.

Owns the words and the promises. Must not know Redis, cookies or tokens: ids only.

Promises: an entry is read by every reader that looks before the cap of the table drops it; `take` answers yes once for
a code, within its time, as long as the server keeps its data; `kept` answers what was written last. Not promised: that
the server keeps them; `is_lost` says that it has not.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class LogoutPage(msgspec.Struct, frozen=True, kw_only=True):
    """What was ended: {id of a login: when it would have ended by itself, epoch seconds}; go on after `cursor`."""

    ended: Mapping[str, float]
    cursor: str | None
    has_more: bool = False
    is_lost: bool = False
    """The server no longer has what the cursor was read from: begin anew, and append what is known."""


class Logouts(Protocol):
    """Ended logins and used codes."""

    async def append(self, ended: Mapping[str, float]) -> None:
        """Tell of ended logins; the same again does no harm."""
        ...

    async def read(self, after: str | None, *, limit: int) -> LogoutPage:
        """What was told after a cursor, oldest first."""
        ...

    async def keep(self, login: str, text: str, ttl_s: int) -> None:
        """Write what other replicas are to know of a login, in the place of what was there."""
        ...

    async def kept(self, login: str) -> str:
        """What was written of a login; empty when there is nothing, or it is over."""
        ...

    async def take(self, code: str, ttl_s: int) -> bool:
        """Whether nobody took this code before; that is remembered for `ttl_s`."""
        ...
