"""A decision log as a file: one JSON object per line and recorded tick. Pure.

`slipway replay --save` writes the same lines from a live log, so a replay needs neither the cluster nor the version
that wrote the log.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator

import msgspec

from slipway.errors import InvalidError
from slipway.streams.decisions import DecisionEntry


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One entry; `data` is base64. Unknown fields are ignored: another version may have written them."""

    pool: str
    chain: str
    number: int
    tick: int
    data: str


_lines = msgspec.json.Decoder(DecisionLine)


def line_of(pool: str, entry: DecisionEntry) -> bytes:
    """Return the line of an entry."""
    data = base64.b64encode(entry.data).decode()
    line = DecisionLine(pool=pool, chain=entry.chain, number=entry.number, tick=entry.tick, data=data)
    return msgspec.json.encode(line) + b"\n"


def entries_of(lines: Iterable[bytes], pool: str = "") -> Iterator[tuple[str, DecisionEntry]]:
    """Return (pool, entry) of each line, in order; with `pool`, only its entries.

    Raises:
        InvalidError: a line is damaged; the message has its number.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = _lines.decode(text)
            data = base64.b64decode(line.data, validate=True)
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError) as exc:
            raise InvalidError(f"line {number} is not an entry of a decision log: {exc}") from exc
        if pool in ("", line.pool):
            yield line.pool, DecisionEntry(chain=line.chain, number=line.number, tick=line.tick, data=data)
