"""The port to the condition of the Redis server: its settings, the permissions of our account, and its backlogs.

This module reports facts only; other modules judge them for an operator. A value that the account may not read is None,
and its command is listed. So "unknown" never looks like "fine".
"""

from typing import Protocol

import msgspec


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The condition of the server at one moment. Sizes are in bytes, times in epoch seconds.

    On a Redis Cluster the settings and sizes are those of one master.
    """

    product: str
    """Redis or Valkey, with its own version."""
    version: str
    """The Redis version that it is compatible with."""
    time: float | None
    """The server's clock, in the middle of the query."""
    asked_at: float
    """Our clock at that moment."""
    role: str = ""
    policy: str | None = None
    """The setting maxmemory-policy."""
    memory_used: int | None = None
    memory_max: int | None = None
    """The memory limit; 0 means no limit."""
    evicted: int | None = None
    appendonly: bool | None = None
    saves: bool | None = None
    """Whether the server takes snapshots."""
    is_persisting: bool | None = None
    """Whether the last snapshot and the last write of the append-only file succeeded."""
    account: str = ""
    """The service whose needs the login was compared with; of several services, the one that it matches best."""
    refused: list[str] = []
    """Commands with their keys that this service needs and the login may not use."""
    unread: list[str] = []
    """Commands of this check that the account may not use."""
    dead: int | None = 0
    """Number of dead letters."""
    waiting: int | None = 0
    """Number of hints that were delivered and not acknowledged."""
    stale_consumers: int | None = 0
    """Number of consumers that have left a hint untouched for `STALE_S`, without another consumer claiming it."""


STALE_S = 600.0


class ServerHealthReader(Protocol):
    """Reads the condition of the server."""

    async def look(self) -> ServerHealth:
        """Return the current condition. Changes nothing. Raises `UnavailableError`, `DeadlineError`, `DeniedError`."""
        ...
