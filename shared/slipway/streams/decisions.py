"""The port of the decision log: the planner's input and decisions, per pool, limited by entries and by bytes.

This module owns the terms and the promises. The scheduler owns the meaning of an entry's data. Two implementations keep
every promise and pass one contract suite: `redis_side.py` and `memory_side.py`.

The entries form chains. A chain begins with its base (`number` 0), which depends on no other entry. Every other entry
depends on the entry before it in its chain. Chains of several leaders may be interleaved.

Promises:

- An entry that is not a base is appended only while its base still exists. It is not appended when making room
  for it would remove its base. So every entry that is read has its base before it, unless the base was trimmed between
  two pages.
- A chain has at most `CHAIN_MAX` entries, of successive ticks.
- The caps are respected after every append. The oldest entries are removed first, and never a base without its chain.

Not promised: that an entry is kept for long; that a chain is complete (a leader may die, or lose the server).
"""

from typing import Final, Protocol

import msgspec

CHAIN_MAX: Final = 128
"""Limit on the entries of one chain, and so on the entries that are lost together with their base."""


class DecisionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded tick. This package does not decode `data`."""

    chain: str
    number: int
    """0 for the base, then contiguous."""
    tick: int
    data: bytes


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One entry as read. Resume after `cursor`."""

    cursor: str
    entry: DecisionEntry


class DecisionLogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on the log of one pool."""

    entries: int
    size: int
    """Limit on the bytes of data."""


class DecisionLog(Protocol):
    """The decision logs of all pools."""

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None, caps: DecisionLogLimits) -> str | None:
        """Append, and return the new entry's cursor. `base` is the cursor of its base; None for a base itself.

        Returns None when the base is gone: then nothing was written, and the caller must begin a new chain. Raises
        `InvalidError` for an entry that is larger than the caps allow.
        """
        ...

    async def read(self, pool: str, *, after: str | None = None, limit: int = 100) -> list[StoredDecision]:
        """Return up to `limit` entries after the cursor, oldest first, without entries that cannot be decoded."""
        ...
