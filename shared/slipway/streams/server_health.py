"""The port to the condition of the Redis server: how it is set up, what our account may, and what has piled up.

Facts only; what they mean for an operator is judged elsewhere. What the account may not read is None and is named, so
that "unknown" never looks like "fine".
"""

from typing import Protocol

import msgspec


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One look at the server; sizes in bytes, times in epoch seconds or, where said, in seconds ago.

    On a Redis Cluster the settings and sizes are those of one master.
    """

    product: str
    """redis or valkey, with its own version"""
    version: str
    """the Redis version that it is compatible with"""
    time: float | None
    """its clock, in the middle of the question"""
    asked_at: float
    """our clock at that moment"""
    role: str = ""
    policy: str | None = None
    """maxmemory-policy"""
    memory_used: int | None = None
    memory_max: int | None = None
    """0: no limit"""
    evicted: int | None = None
    appendonly: bool | None = None
    saves: bool | None = None
    """whether snapshots are taken"""
    is_persisting: bool | None = None
    """whether the last snapshot and the last write of the log went well"""
    account: str = ""
    """the service whose needs the login was compared with; of several, the one that it meets best"""
    refused: list[str] = []
    """commands, and the keys they are for, that this service needs and the login may not use"""
    unread: list[str] = []
    """questions of this look that the account may not ask"""
    dead: int | None = 0
    """dead letters"""
    waiting: int | None = 0
    """hints that were handed out and not acknowledged"""
    stale_consumers: int | None = 0
    """consumers that have left a hint alone for `STALE_S`, and nobody took it over"""


STALE_S = 600.0


class Conditions(Protocol):
    """Looks at the server."""

    async def look(self) -> ServerHealth:
        """The condition now. Changes nothing. Raises `UnavailableError`, `DeadlineError`, `DeniedError`."""
        ...
