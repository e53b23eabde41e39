"""The port to gatherings: the peers of one attempt send data, and each receives all data when every peer has joined.

This module owns the rules of a seat, how a seat is kept, and the order in which seats are returned. It must not know
who the peers are, nor the meaning of their data. Pure.

Promises of every implementation:

- A gathering is complete exactly when it has as many distinct request ids as its peers have declared.
- A complete gathering never changes, and every caller can read it until its life time ends.
- A caller that replaces the seat of a request id frees no other seat.
- The seats of a process that gives no sign of life for `SILENCE_S` are freed.

Declared lossy: a waiting peer sends its data again when the gathering is `GONE`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from slipway.model.ids import AllocationId
from slipway.streams.macs import ForgedError, Macs

SILENCE_S = 15.0
"""A process that owns seats calls `look` far more often than this; a killed process does not."""
PEERS_MAX = 4096
BYTES_MAX = 1024 * 1024
"""Limit on all data of one gathering together, because each peer receives all of it."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Limit on the data of all complete gatherings of one allocation, within the life time of one."""
COST_BYTES = 512
"""The bytes that a gathering costs in addition to its data."""
NO_RANK = -1
_SEAT_PARTS, _RANK_DIGITS = 3, 9
SEAT_FIELD, DATA_FIELD, MAC_FIELD = "w:", "d:", "m:"
"""Prefixes of fields in a gathering's hash, each before a request id: the seat (`process token rank`), the data, and
the code of the seat.
"""


class GatherKey(msgspec.Struct, frozen=True, kw_only=True):
    """The name of one gathering. An attempt may have any number of gatherings with different `group`s."""

    allocation: AllocationId
    attempt: int
    group: str


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The seat of one peer. `token` distinguishes two watchers of the same request id."""

    request_id: str
    token: str = ""
    rank: int = NO_RANK
    data: bytes = b"null"


class AllgatherState(StrEnum):
    """The state of a gathering, as the answer to one call."""

    OPEN = "open"
    COMPLETED = "completed"
    """Completed by this seat."""
    DONE = "done"
    """Completed before. The seat is not part of it, unless it was already."""
    MISMATCH = "mismatch"
    """The present peers declared another number of peers."""
    FULL = "full"
    """More bytes than a gathering may contain."""
    SPENT = "spent"
    """This is the first seat, but the other gatherings of the allocation already use all the bytes that may be kept."""
    GONE = "gone"
    """The gathering has no seats: every peer left, its life time ended, or it was lost."""


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a gathering. `version` changes when a peer loses its seat through another process, or with all
    seats.
    """

    outcome: AllgatherState
    peers: int
    present: int
    version: int


class Gatherings(Protocol):
    """All gatherings of all allocations, shared by all processes."""

    async def join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        """Occupy the seat of that request id and replace an earlier one. `owner` is the process."""
        ...

    async def look(self, key: GatherKey, *, owner: str) -> Gathered:
        """Return the state. The call is also the sign of life of the owner's seats."""
        ...

    async def leave(self, key: GatherKey, seat: Seat) -> None:
        """Free the seat, if it still belongs to this watcher and the gathering is not complete."""
        ...

    async def tokens(self, key: GatherKey, request_ids: Sequence[str]) -> list[str]:
        """Return the token of each seat; empty when the seat is free."""
        ...

    async def seats(self, key: GatherKey, *, are_all: bool = False) -> list[Seat]:
        """Return all seats with their data, in order. `are_all` means that the gathering was reported as complete.

        Raises ForgedError when a stored value is not a seat, or when `are_all` is set and the number of seats is not
        the number of peers. With keys, it is also raised when a seat was not written by a process that has the keys.
        """
        ...

    async def forget(self, key: GatherKey) -> None:
        """Remove the gathering. The peers that wait for it send their data again."""
        ...


def in_order(seats: Sequence[Seat]) -> list[Seat]:
    """Return the seats by rank, then by request id. Seats without a rank are last."""
    return sorted(seats, key=lambda seat: (seat.rank == NO_RANK, seat.rank, seat.request_id))


def token_of(raw: bytes) -> str:
    """Return the token in the field of a seat; empty when the field is not a seat."""
    parts = raw.split(b" ")
    return parts[1].decode("utf-8", "replace") if len(parts) == _SEAT_PARTS else ""


def seat_code(name: str, seat: Seat, peers: int, macs: Macs | None) -> bytes:
    """Return the code of a seat in the hash `name`; empty without keys. Raises UnavailableError when a key is
    missing.
    """
    return macs.sign(_place(name, seat.request_id, seat.rank, peers), seat.data) if macs is not None else b""


def seats_of(
    fields: Mapping[str, bytes], name: str = "", macs: Macs | None = None, *, are_all: bool = False
) -> list[Seat]:
    """Return the seats in the fields of the hash `name`, in order. Raises as `Gatherings.seats` does."""
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
    # No code signs that the gathering is complete. So the seats are counted, and the hash's own mark is not trusted.
    if are_all and found and len(found) != peers:
        raise ForgedError(f"Redis says that a gathering of {peers} peers is complete, but has {len(found)} of them")
    return in_order(found)


def _seat(request_id: str, raw: bytes, fields: Mapping[str, bytes]) -> Seat:
    rank = raw.rpartition(b" ")[2]
    if not token_of(raw) or not rank.removeprefix(b"-").isdigit() or len(rank) > _RANK_DIGITS:
        raise ForgedError(f"the value in Redis for the seat of {request_id[:64]!r} is not a seat")
    data = fields.get(DATA_FIELD + request_id, b"null")
    return Seat(request_id=request_id, token=token_of(raw), rank=int(rank), data=data)


def _place(name: str, request_id: str, rank: int, peers: int) -> bytes:
    """Return the place that the code of a seat binds its data to. So a code is invalid for another attempt, group, peer
    or number of peers.
    """
    return f"{len(name)}:{name} {rank} {peers} {request_id}".encode()


def _peers_of(fields: Mapping[str, bytes]) -> int:
    text = fields.get("n", b"")
    return int(text) if text.isdigit() and len(text) < 10 else 0
