"""Ended and renewed logins of browsers, and used one-time codes: the data that replicas of the api share.

This module owns the terms and the promises. It must not know Redis, cookies or tokens: it handles ids only.

Promises: every reader that reads before the cap of the table drops an entry receives the entry. `take` returns True
once for a code, within its time, as long as the server keeps its data. `kept` returns the text that was written last.
Not promised: that the server keeps the data; `is_lost` reports a loss.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class LogoutPage(msgspec.Struct, frozen=True, kw_only=True):
    """Ended logins: {id of a login: when it would have expired, epoch seconds}. Read on after `cursor`."""

    ended: Mapping[str, float]
    cursor: str | None
    has_more: bool = False
    is_lost: bool = False
    """The server has lost the entries that the cursor refers to. Read from the beginning, and append the known
    logins.
    """


class Logouts(Protocol):
    """Ended logins and used codes."""

    async def append(self, ended: Mapping[str, float]) -> None:
        """Publish ended logins. Repeating a login does no harm."""
        ...

    async def read(self, after: str | None, *, limit: int) -> LogoutPage:
        """Return the logins that were published after a cursor, oldest first."""
        ...

    async def keep(self, login: str, text: str, ttl_s: int) -> None:
        """Store a text about a login for other replicas, in place of an earlier one."""
        ...

    async def kept(self, login: str) -> str:
        """Return the stored text about a login; empty when there is none or it has expired."""
        ...

    async def take(self, code: str, ttl_s: int) -> bool:
        """Return whether this code was not taken before. The code is remembered for `ttl_s` seconds."""
        ...
