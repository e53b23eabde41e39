"""Conversion of pages of raw entries to pages of values, shared by every implementation of the ports.

This module owns the rule for entries that cannot be decoded in streams without a consumer group: skip and count them. A
reader never fails because of a bad entry. It must not know Redis or IO.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from slipway.errors import InvalidError
from slipway.streams import codec, keys, logpacks
from slipway.streams.decisions import StoredDecision
from slipway.streams.logpacks import LogKey, LogPosition, StoredLine
from slipway.streams.macs import Macs
from slipway.streams.ports import FeedEntry, FirehoseEvent, LogoutPage, SpanRecord, StoredEvent, Tally

Id = tuple[int, int]
Page = Sequence[tuple[Id, codec.Fields]]
T = TypeVar("T")
ZERO: Id = (0, 0)


def id_text(entry_id: Id) -> str:
    """Return the usual text form of an id."""
    return f"{entry_id[0]}-{entry_id[1]}"


def start_of(after: str | None) -> Id:
    """Return the id that a cursor names. Raises `InvalidError` when it is not a cursor."""
    return ZERO if after is None else codec.cursor_parts(after)


def logouts(page: Page, after: str | None, limit: int) -> LogoutPage:
    """Return the ended logins of a page. Entries that cannot be read are skipped."""
    ended: dict[str, float] = {}
    for _, fields in page:
        with suppress(InvalidError):
            login, ends_at = codec.decode_logout(fields)
            ended[login] = ends_at
    cursor = id_text(page[-1][0]) if page else after
    return LogoutPage(ended=ended, cursor=cursor, has_more=len(page) == limit)


def events(page: Page, tally: Tally) -> list[StoredEvent]:
    """Return the events of an allocation's stream."""
    return [StoredEvent(cursor=cursor, event=event) for cursor, event in _readable(page, tally, codec.decode_event)]


def lines_after(page: Page, start: Id, tally: Tally) -> list[StoredLine]:
    """Return the lines of packs after `start`. An entry's id is that of its last line; earlier lines count down from
    it.
    """
    found: list[StoredLine] = []
    for cursor, pack in _readable(page, tally, logpacks.decode_pack):
        ms, seq = codec.cursor_parts(cursor)
        for place, line in enumerate(pack, seq - len(pack) + 1):
            if (ms, place) > start:
                found.append(StoredLine(cursor=id_text((ms, place)), line=line))
    return found


def positions(states: Mapping[str, bytes]) -> dict[LogKey, LogPosition]:
    """Return the position of each log, from the fields of its hash."""
    named = ((logpacks.source_of(name), raw) for name, raw in states.items())
    return {source: logpacks.decode_position(raw) for source, raw in named if source is not None}


def spans(page: Page, tally: Tally) -> list[SpanRecord]:
    """Return the spans of a trace."""
    return [span for _, some in _readable(page, tally, codec.decode_spans) for span in some]


def decisions(page: Page, tally: Tally) -> list[StoredDecision]:
    """Return the entries of a decision log."""
    found = _readable(page, tally, codec.decode_decision)
    return [StoredDecision(cursor=cursor, entry=entry) for cursor, entry in found]


def _readable(page: Page, tally: Tally, decode: Callable[[codec.Fields], T]) -> Iterator[tuple[str, T]]:
    """Yield (cursor, decoded value) of the entries that can be read, and count the others."""
    for entry_id, fields in page:
        try:
            held = decode(fields)
        except InvalidError:
            tally.count("entries_undecodable")
            continue
        yield id_text(entry_id), held


def feed(page: Page, limit: int, macs: Macs | None = None) -> list[tuple[str, FeedEntry]]:
    """Return up to `limit` entries of the feed, or all of the first pack when that is larger.

    Raises `InvalidError` for a pack that cannot be decoded (`ForgedError`: it has no valid message
    authentication code).
    """
    found: list[tuple[str, FeedEntry]] = []
    for entry_id, fields in page:
        pack = codec.decode_feed(fields, macs)
        if found and len(found) + len(pack) > limit:
            break  # a pack is read as a whole, because there is no cursor inside
        cursor = id_text(entry_id)
        found += [(cursor, entry) for entry in pack]
    return found


def firehose_positions(cursor: str | None) -> list[Id]:
    """Return the position in each shard. Raises `InvalidError` when the number of positions is not that of the
    shards.
    """
    if cursor is None:
        return [ZERO] * keys.SHARDS
    parts = cursor.split(",")
    if len(parts) != keys.SHARDS:
        raise InvalidError("not a cursor of the firehose")
    return [codec.cursor_parts(part) for part in parts]


def firehose_cursor(positions: Sequence[Id]) -> str:
    """Return the cursor of the positions in all shards."""
    return ",".join(map(id_text, positions))


def firehose(
    found: Sequence[tuple[Id, int, codec.Fields]], positions: Sequence[Id], tally: Tally
) -> list[FirehoseEvent]:
    """Return the events of (id, shard, fields) from all shards, in the order of ids, each with the cursor after it."""
    reached = list(positions)
    page: list[FirehoseEvent] = []
    for entry_id, shard, fields in sorted(found, key=lambda each: each[:2]):
        reached[shard] = entry_id
        try:
            event = codec.decode_event(fields)
        except InvalidError:
            tally.count("entries_undecodable")
            continue
        page.append(FirehoseEvent(cursor=firehose_cursor(reached), shard=shard, event=event))
    return page
