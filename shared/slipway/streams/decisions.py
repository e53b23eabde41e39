"""The port of the decision log: what the planner saw and decided, per pool, capped by entries and by bytes.

Owns the words and the promises. What an entry's data means is the scheduler's. Two implementations keep every promise
here and are held to one contract suite: `redis_decisions.py` and `memory_decisions.py`.

The entries form chains: a chain begins with its base (`number` 0), which needs nothing before it; every other entry
builds on the one before it in its chain. Chains of several leaders may be interleaved.

Promises:

- An entry that is no base is appended only while its base is still there (and not if making room for it would drop
  it). So every entry that is read has its base before it, unless it was trimmed between two pages.
- A chain has at most `CHAIN_MAX` entries, of successive ticks.
- The caps hold after every append; what goes is the oldest, and never a base without what builds on it.

Not promised: that an entry is kept for long; that a chain is whole (a leader may die, or lose the server).
"""

from typing import Final, Protocol

import msgspec

CHAIN_MAX: Final = 128
"""Entries of one chain: so many are lost at most with a base."""


class DecisionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded tick. `data` is opaque here."""

    chain: str
    number: int
    """0 for the base, then contiguous"""
    tick: int
    data: bytes


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One entry as read; resume after `cursor`."""

    cursor: str
    entry: DecisionEntry


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one pool's log is kept."""

    entries: int
    size: int
    """bytes of data"""


class DecisionLog(Protocol):
    """The decision logs of all pools."""

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None, caps: Caps) -> str | None:
        """Append, and answer the new entry's cursor; `base` is that of its base, None for a base itself.

        None when the base is gone: nothing was written, begin a new chain. Raises `InvalidError` for an entry that is
        larger than the caps allow.
        """
        ...

    async def read(self, pool: str, *, after: str | None = None, limit: int = 100) -> list[StoredDecision]:
        """Up to `limit` entries after the cursor, oldest first; what cannot be decoded is left out."""
        ...
