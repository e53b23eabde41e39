"""Which entry may follow in an allocation's stream: the one rule, pure.

Owns the judgement that keeps a stream ordered and contiguous. `lua/append.lua` is its atomic twin on the server; a
test runs random operations against both.
"""

from slipway.streams import codec
from slipway.streams.ports import Entry, Outcome


def judge(entry: Entry, last_seq: int | None) -> Outcome:
    """Whether the entry may follow a stream that ends with `last_seq` (None: it is empty)."""
    seq = entry.event.seq
    if last_seq is None:
        return Outcome.APPENDED if entry.oldest_seq in (None, seq) else Outcome.GAP
    if seq <= last_seq:
        return Outcome.DUPLICATE
    if entry.event.truncated is not None:
        bridges = codec.truncated_range(entry.event.truncated) == (last_seq + 1, seq - 1)
        return Outcome.APPENDED if bridges else Outcome.GAP
    return Outcome.APPENDED if seq == last_seq + 1 else Outcome.GAP
