"""A snapshot of what the feed has told, for a reader that begins: where it stands in the feed, and pages of objects.

Owns how a snapshot is put into the two slots and found there, and when it is none. Knows nothing of what is in a page.

It is made while the publisher goes on: a page shows objects as they are when it is made, which is no earlier than where
the snapshot stands. So whoever takes in all pages, and then all that the feed has told from there on, knows what a
reader does that has followed all the while; by the versions of the objects, what comes twice changes nothing.

Each part says of which snapshot it is: a writer whose term is over may write among the parts of another's, and such a
snapshot is none. One that the feed does not reach back to, or that is of a former epoch, is none either. Then LIST.
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
"""before the name of a part: its code"""
_PAGES_AT_ONCE: Final = 8
PAGES_MAX: Final = 100_000


class SnapshotPosition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where in the feed a snapshot stands."""

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
    """One that was found."""

    slot: int
    stands: SnapshotPosition
    pages: int


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(_Head)
_page = msgspec.msgpack.Decoder(_Page)


def signed(key: str, parts: Mapping[str, bytes], macs: Macs | None) -> dict[str, bytes]:
    """The fields of parts of the snapshot at `key`: each part, and with keys its code beside it.

    A code binds a part to its slot and name; the position in the feed is in every part. So a part counts neither in the
    place of another one nor in another snapshot. Raises `UnavailableError` when a key is missing.
    """
    fields = dict(parts)
    if macs is not None:
        fields |= {_MAC + name: macs.sign(f"{key} {name}".encode(), value) for name, value in parts.items()}
    return fields


def fields_of(names: Sequence[str], macs: Macs | None) -> list[str]:
    """The fields that hold these parts, and with keys their codes behind them."""
    return [*names, *(_MAC + name for name in names)] if macs is not None else list(names)


def checked(key: str, names: Sequence[str], values: Sequence[bytes | None], macs: Macs | None) -> list[bytes | None]:
    """The parts in the values of `fields_of`. Raises `ForgedError` for one without a code of our keys."""
    found = list(values[: len(names)])
    if macs is not None:
        for name, part, code in zip(names, found, values[len(names) :], strict=True):
            if part is not None:
                macs.check(code, f"{key} {name}".encode(), part)
    return found


class SnapshotWriter:
    """Puts one snapshot into a slot, page by page; it is there once `finish` has ended."""

    def __init__(self, feed: Feed, slot: int, stands: SnapshotPosition) -> None:
        self._feed, self._slot, self._stands = feed, slot, stands
        self._count = 0

    async def add(self, data: bytes) -> None:
        """One more page. Raises `TransientError`."""
        page = _encode(_Page(stands=self._stands, data=data))
        await self._feed.keep(self._slot, {str(self._count): page}, anew=self._count == 0)
        self._count += 1

    async def finish(self) -> None:
        """Make it one. Raises `TransientError`."""
        head = _encode(_Head(stands=self._stands, pages=self._count))
        await self._feed.keep(self._slot, {_HEAD: head}, anew=self._count == 0)


async def find(feed: Feed, end: FeedPosition) -> FeedSnapshot | None:
    """The latest snapshot of the epoch in which the feed ends, None when there is none. Raises `TransientError`."""
    found = [await _look(feed, slot) for slot in range(keys.SNAPSHOT_SLOTS)]
    fitting = [each for each in found if each is not None and each.stands.epoch == end.epoch]
    return max(fitting, key=lambda each: each.stands.number, default=None)


async def pages_of(feed: Feed, snapshot: FeedSnapshot) -> AsyncGenerator[bytes]:
    """The data of its pages, in order.

    Raises:
        InvalidError: a page is not there any more, or is another's.
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
