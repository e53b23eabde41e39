"""A snapshot of the feed's content for a new reader: its position in the feed, and pages of objects.

This module owns how a snapshot is written into the two slots and found there, and when it is invalid. It does not know
the content of a page.

The publisher continues while the snapshot is made. A page contains objects as they are when it is made, which is never
before the snapshot's position. A reader reads all pages, and then all entries of the feed after that position. Then it
has the same state as a reader that has followed the feed all the time: by the versions of the objects, a repeated
object changes nothing.

Each part names its snapshot, because a writer whose term is over may write among the parts of another snapshot. Such a
snapshot is invalid. A snapshot is also invalid when the feed no longer reaches back to it, or when it is of an earlier
epoch. Then the reader does a LIST.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from slipway.errors import InvalidError
from slipway.streams import keys
from slipway.streams.macs import Macs
from slipway.streams.ports import Feed, FeedPosition

_HEAD: Final = "head"
_MAC: Final = "m:"
"""The prefix before the name of a part, for the field with its code."""
_PAGES_AT_ONCE: Final = 8
PAGES_MAX: Final = 100_000


class SnapshotPosition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The position of a snapshot in the feed."""

    epoch: int
    number: int
    cursor: str


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    stands: SnapshotPosition
    pages: int


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    stands: SnapshotPosition
    data: bytes


class FeedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was found."""

    slot: int
    stands: SnapshotPosition
    pages: int


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(_Head)
_page = msgspec.msgpack.Decoder(_Page)


def signed(key: str, parts: Mapping[str, bytes], macs: Macs | None) -> dict[str, bytes]:
    """Return the fields of parts of the snapshot at `key`: each part, and with keys also its code.

    A code binds a part to its slot and name, and every part contains the position in the feed. So a part is invalid in
    place of another part and in another snapshot. Raises `UnavailableError` when a key is missing.
    """
    fields = dict(parts)
    if macs is not None:
        fields |= {_MAC + name: macs.sign(f"{key} {name}".encode(), value) for name, value in parts.items()}
    return fields


def fields_of(names: Sequence[str], macs: Macs | None) -> list[str]:
    """Return the fields that contain these parts; with keys, followed by the fields of their codes."""
    return [*names, *(_MAC + name for name in names)] if macs is not None else list(names)


def checked(key: str, names: Sequence[str], values: Sequence[bytes | None], macs: Macs | None) -> list[bytes | None]:
    """Return the parts in the values of `fields_of`. Raises `ForgedError` for a part without a code of our keys."""
    found = list(values[: len(names)])
    if macs is not None:
        for name, part, code in zip(names, found, values[len(names) :], strict=True):
            if part is not None:
                macs.check(code, f"{key} {name}".encode(), part)
    return found


class SnapshotWriter:
    """Writes one snapshot into a slot, page by page. Readers find it only after `finish`."""

    def __init__(self, feed: Feed, slot: int, stands: SnapshotPosition) -> None:
        self._feed, self._slot, self._stands = feed, slot, stands
        self._count = 0

    async def add(self, data: bytes) -> None:
        """Write one more page. Raises `TransientError`."""
        page = _encode(_Page(stands=self._stands, data=data))
        await self._feed.keep(self._slot, {str(self._count): page}, anew=self._count == 0)
        self._count += 1

    async def finish(self) -> None:
        """Complete the snapshot, so that readers find it. Raises `TransientError`."""
        head = _encode(_Head(stands=self._stands, pages=self._count))
        await self._feed.keep(self._slot, {_HEAD: head}, anew=self._count == 0)


async def find(feed: Feed, end: FeedPosition) -> FeedSnapshot | None:
    """Return the latest snapshot of the feed's current epoch; None when there is none. Raises `TransientError`."""
    found = [await _look(feed, slot) for slot in range(keys.SNAPSHOT_SLOTS)]
    fitting = [each for each in found if each is not None and each.stands.epoch == end.epoch]
    return max(fitting, key=lambda each: each.stands.number, default=None)


async def pages_of(feed: Feed, snapshot: FeedSnapshot) -> AsyncGenerator[bytes]:
    """Yield the data of its pages, in order.

    Raises:
        InvalidError: a page is missing, or belongs to another snapshot.
        TransientError: Redis cannot be reached.
    """
    for start in range(0, snapshot.pages, _PAGES_AT_ONCE):
        numbers = range(start, min(start + _PAGES_AT_ONCE, snapshot.pages))
        for part in _own(await feed.kept(snapshot.slot, [str(number) for number in numbers]), snapshot.stands):
            yield part


async def _look(feed: Feed, slot: int) -> FeedSnapshot | None:
    (found,) = await feed.kept(slot, [_HEAD])
    if found is None:
        return None
    try:
        head = _head.decode(found)
    except msgspec.DecodeError:
        return None
    if not 0 <= head.pages <= PAGES_MAX:
        return None
    return FeedSnapshot(slot=slot, stands=head.stands, pages=head.pages)


def _own(parts: Sequence[bytes | None], stands: SnapshotPosition) -> Iterable[bytes]:
    for part in parts:
        if part is None:
            raise InvalidError("a page of the snapshot is gone")
        try:
            page = _page.decode(part)
        except msgspec.DecodeError as exc:
            raise InvalidError("not a page of a snapshot") from exc
        if page.stands != stands:
            raise InvalidError("a page of another snapshot")
        yield page.data
