"""The port to gatherings: peers of one attempt bring data, and all get all of it once everybody is there.

Owns what a seat is, how it is kept, and in which order the seats are told. Must not know who the peers are, nor what
they bring. Pure.

Promises of every implementation: a gathering is complete exactly when as many distinct request ids sit in it as its
peers have said; from then on it never changes, and is told to whoever asks until its life time is over; who takes the
seat of an id frees nobody else's; the seats of a process that shows no sign of life for `SILENCE_S` are free again.
Declared lossy: whoever waits sends what it brought again when the gathering is `GONE`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from slipway.model.ids import AllocationId
from slipway.streams.macs import ForgedError, Macs

SILENCE_S = 15.0
"""A process that holds seats looks far more often; one that was killed does not."""
PEERS_MAX = 4096
BYTES_MAX = 1024 * 1024
"""All data of one gathering together: each of its peers is sent all of it."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Of complete gatherings of one allocation, within the life time of one."""
COST_BYTES = 512
"""What one costs besides its data."""
NO_RANK = -1
_SEAT_PARTS, _RANK_DIGITS = 3, 9
SEAT_FIELD, DATA_FIELD, MAC_FIELD = "w:", "d:", "m:"
"""Fields of a gathering's hash, each before a request id: `process token rank`, the data, and the code of the seat."""


class GatherKey(msgspec.Struct, frozen=True, kw_only=True):
    """Which gathering: an attempt has as many as it has names for them."""

    allocation: AllocationId
    attempt: int
    group: str


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One peer; `token` tells two watchers of the same request id apart."""

    request_id: str
    token: str = ""
    rank: int = NO_RANK
    data: bytes = b"null"


class AllgatherState(StrEnum):
    """Where a gathering stands."""

    OPEN = "open"
    COMPLETED = "completed"
    """with this very seat"""
    DONE = "done"
    """before; the seat is not part of it, unless it was already"""
    MISMATCH = "mismatch"
    """those who are there said another number of peers"""
    FULL = "full"
    """more bytes than a gathering holds"""
    SPENT = "spent"
    """nobody sat here yet, and the allocation's other gatherings hold as much as may be kept"""
    GONE = "gone"
    """nobody is there: everybody left, its life time is over, or it was lost"""


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Where it stands. `version` changes when somebody loses a seat through another's doing, or with everything."""

    outcome: AllgatherState
    peers: int
    present: int
    version: int


class Gatherings(Protocol):
    """Every gathering of every allocation, shared by all processes."""

    async def join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        """Take the seat of that request id, in the place of whoever had it. `owner` is the process."""
        ...

    async def look(self, key: GatherKey, *, owner: str) -> Gathered:
        """Where it stands; also the sign of life of the owner's seats."""
        ...

    async def leave(self, key: GatherKey, seat: Seat) -> None:
        """Free the seat, if it is still this watcher's and nothing is complete yet."""
        ...

    async def tokens(self, key: GatherKey, request_ids: Sequence[str]) -> list[str]:
        """Whose each seat is now; empty where nobody sits."""
        ...

    async def seats(self, key: GatherKey, *, are_all: bool = False) -> list[Seat]:
        """Everybody who is there, with what they brought, in order; `are_all`: it was said to be complete.

        Raises ForgedError when what is there is no seat, or when all should be there and are not as many as peers.
        With keys, also when a seat was not written by a process that holds them.
        """
        ...

    async def forget(self, key: GatherKey) -> None:
        """Remove the gathering: those who wait for it bring their data again."""
        ...


def in_order(seats: Sequence[Seat]) -> list[Seat]:
    """By rank, then by request id; those that named no rank come last."""
    return sorted(seats, key=lambda seat: (seat.rank == NO_RANK, seat.rank, seat.request_id))


def token_of(raw: bytes) -> str:
    """The watcher in the field of a seat; empty where the field is not one of a seat."""
    parts = raw.split(b" ")
    return parts[1].decode("utf-8", "replace") if len(parts) == _SEAT_PARTS else ""


def seat_code(name: str, seat: Seat, peers: int, macs: Macs | None) -> bytes:
    """The code of a seat in the hash `name`; empty without keys. Raises UnavailableError when a key is missing."""
    return macs.sign(_place(name, seat.request_id, seat.rank, peers), seat.data) if macs is not None else b""


def seats_of(
    fields: Mapping[str, bytes], name: str = "", macs: Macs | None = None, *, are_all: bool = False
) -> list[Seat]:
    """The seats in the fields of the hash `name`, in order. Raises as `Gatherings.seats` does."""
    found = [
        _seat(field.removeprefix(SEAT_FIELD), raw, fields)
        for field, raw in fields.items()
        if field.startswith(SEAT_FIELD)
    ]
    peers = _peers_of(fields)
    if macs is not None:
        for seat in found:
            code, place = fields.get(MAC_FIELD + seat.request_id), _place(name, seat.request_id, seat.rank, peers)
            macs.check(code, place, seat.data)
    # Nobody signs that it is complete: that counts by the seats, whatever the hash says of itself by now.
    if are_all and found and len(found) != peers:
        raise ForgedError(f"Redis says that a gathering of {peers} peers is complete, and has {len(found)} of them")
    return in_order(found)


def _seat(request_id: str, raw: bytes, fields: Mapping[str, bytes]) -> Seat:
    rank = raw.rpartition(b" ")[2]
    if not token_of(raw) or not rank.removeprefix(b"-").isdigit() or len(rank) > _RANK_DIGITS:
        raise ForgedError(f"what Redis holds as the seat of {request_id[:64]!r} is none")
    data = fields.get(DATA_FIELD + request_id, b"null")
    return Seat(request_id=request_id, token=token_of(raw), rank=int(rank), data=data)


def _place(name: str, request_id: str, rank: int, peers: int) -> bytes:
    """What the code of a seat binds its data to: no data count for another attempt, group, peer or number of peers."""
    return f"{len(name)}:{name} {rank} {peers} {request_id}".encode()


def _peers_of(fields: Mapping[str, bytes]) -> int:
    text = fields.get("n", b"")
    return int(text) if text.isdigit() and len(text) < 10 else 0
