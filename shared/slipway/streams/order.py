"""The one rule, pure: which entry may follow in an allocation's stream.

This module owns the decision that keeps a stream ordered and contiguous. `lua/append.lua` is its atomic twin on the
server; a test runs random operations on both.
"""

from slipway.streams import codec
from slipway.streams.ports import EntryOutcome, StreamEntry


def judge(entry: StreamEntry, last_seq: int | None) -> EntryOutcome:
    """Return whether the entry may follow a stream that ends with `last_seq` (None: it is empty)."""
    seq = entry.event.seq
    if last_seq is None:
        return EntryOutcome.APPENDED if entry.oldest_seq in (None, seq) else EntryOutcome.GAP
    if seq <= last_seq:
        return EntryOutcome.DUPLICATE
    if entry.event.truncated is not None:
        bridges = codec.truncated_range(entry.event.truncated) == (last_seq + 1, seq - 1)
        return EntryOutcome.APPENDED if bridges else EntryOutcome.GAP
    return EntryOutcome.APPENDED if seq == last_seq + 1 else EntryOutcome.GAP
