"""Gatherings in memory: the twin of `lua/gather.lua`, on the server model. Must not import redis."""

from collections.abc import Sequence

import msgspec

from slipway.streams import keys
from slipway.streams.allgather import (
    BYTES_MAX,
    COST_BYTES,
    DATA_FIELD,
    KEPT_BYTES_MAX,
    MAC_FIELD,
    SEAT_FIELD,
    SILENCE_S,
    AllgatherState,
    Gathered,
    GatherKey,
    Seat,
    seat_code,
    seats_of,
    token_of,
)
from slipway.streams.macs import Macs
from slipway.streams.memory_server import MemoryServer


class MemoryGatherings:
    """The `Gatherings` in memory."""

    def __init__(self, server: MemoryServer, macs: Macs | None = None) -> None:
        """With `macs`, seats are signed, and signatures are required on reading."""
        self._server, self._macs = server, macs

    async def join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        await self._server.enter("gather.join")
        with self._server.script():
            found = self._join(key, seat, peers=peers, owner=owner)
        is_in = found.outcome in (AllgatherState.OPEN, AllgatherState.COMPLETED)
        name, kept = _name(key), keys.gathered(key.allocation)
        if is_in and found.present == 1 and _number(self._server.hash_get(kept), "b") > KEPT_BYTES_MAX:
            self._server.drop(name)
            return msgspec.structs.replace(found, outcome=AllgatherState.SPENT)
        if found.outcome is AllgatherState.COMPLETED:
            self._add(kept, "b", _number(self._server.hash_get(name), "b") + COST_BYTES)
            self._server.expire(kept, keys.GATHER.ttl_s, keep_existing=True)
        return found

    def _join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        name, id_ = _name(key), seat.request_id
        if self._is_done(name):
            return self._answer(name, AllgatherState.DONE)
        self._beat(name, owner)
        before = self._server.hash_get(name)
        sat = before.get(SEAT_FIELD + id_)
        others = _number(before, "c") - (sat is not None)
        if others > 0 and _number(before, "n") != peers:
            return self._answer(name, AllgatherState.MISMATCH)
        size = _number(before, "b") - len(before.get(DATA_FIELD + id_, b"")) + len(seat.data)
        if size > BYTES_MAX:
            return self._answer(name, AllgatherState.FULL)
        if sat is not None and token_of(sat) != seat.token:
            self._add(name, "v", 1)
        if "v" not in before:
            self._server.hash_set(name, {"v": _text(int(self._server.clock.now() * 1_000))})
        numbers = {"n": _text(peers), "c": _text(others + 1), "b": _text(size)}
        seated = f"{owner} {seat.token} {seat.rank}".encode()
        code = seat_code(name, seat, peers, self._macs)
        self._server.hash_cut(name, (MAC_FIELD + id_,))
        signed = {MAC_FIELD + id_: code} if code else {}
        self._server.hash_set(name, {**numbers, SEAT_FIELD + id_: seated, DATA_FIELD + id_: seat.data, **signed})
        self._server.expire(name, keys.GATHER.ttl_s)
        if others + 1 < peers:
            return self._answer(name, AllgatherState.OPEN)
        self._server.hash_set(name, {"s": b"1"})
        return self._answer(name, AllgatherState.COMPLETED)

    async def look(self, key: GatherKey, *, owner: str) -> Gathered:
        await self._server.enter("gather.look")
        name = _name(key)
        if not self._server.hash_get(name):
            return Gathered(outcome=AllgatherState.GONE, peers=0, present=0, version=0)
        if self._is_done(name):
            return self._answer(name, AllgatherState.DONE)
        with self._server.script():
            self._beat(name, owner)
            self._server.expire(name, keys.GATHER.ttl_s)
        return self._answer(name, AllgatherState.OPEN)

    async def leave(self, key: GatherKey, seat: Seat) -> None:
        await self._server.enter("gather.leave")
        name = _name(key)
        sat = self._server.hash_get(name).get(SEAT_FIELD + seat.request_id)
        is_own = sat is not None and token_of(sat) == seat.token
        with self._server.script():
            if not self._is_done(name) and is_own and self._drop(name, seat.request_id) == 0:
                self._server.drop(name)

    async def tokens(self, key: GatherKey, request_ids: Sequence[str]) -> list[str]:
        await self._server.enter("gather.tokens")
        found = self._server.hash_get(_name(key))
        raw = [found.get(SEAT_FIELD + request_id) for request_id in request_ids]
        return [token_of(each) if each is not None else "" for each in raw]

    async def seats(self, key: GatherKey, *, are_all: bool = False) -> list[Seat]:
        await self._server.enter("gather.seats")
        name = _name(key)
        return seats_of(self._server.hash_get(name), name, self._macs, are_all=are_all)

    async def forget(self, key: GatherKey) -> None:
        await self._server.enter("gather.forget")
        self._server.drop(_name(key))

    def _is_done(self, name: str) -> bool:
        return self._server.hash_get(name).get("s") == b"1"

    def _answer(self, name: str, outcome: AllgatherState) -> Gathered:
        found = self._server.hash_get(name)
        peers, present, version = (_number(found, field) for field in ("n", "c", "v"))
        return Gathered(outcome=outcome, peers=peers, present=present, version=version)

    def _beat(self, name: str, owner: str) -> None:
        now_s = self._server.clock.monotonic()
        found = self._server.hash_get(name)
        beats = dict(part.split("=") for part in found.get("o", b"").decode().split())
        gone = {each for each, at in beats.items() if each != owner and now_s - float(at) > SILENCE_S}
        kept = {each: at for each, at in beats.items() if each not in gone} | {owner: repr(now_s)}
        self._server.hash_set(name, {"o": " ".join(f"{each}={at}" for each, at in kept.items()).encode()})
        for field, raw in found.items():
            if field.startswith(SEAT_FIELD) and raw.split(b" ")[0].decode() in gone:
                self._drop(name, field.removeprefix(SEAT_FIELD))
                self._add(name, "v", 1)

    def _drop(self, name: str, request_id: str) -> int:
        size = len(self._server.hash_get(name)[DATA_FIELD + request_id])
        self._add(name, "b", -size)
        self._server.hash_cut(name, (SEAT_FIELD + request_id, DATA_FIELD + request_id, MAC_FIELD + request_id))
        return self._add(name, "c", -1)

    def _add(self, name: str, field: str, amount: int) -> int:
        value = _number(self._server.hash_get(name), field) + amount
        self._server.hash_set(name, {field: _text(value)})
        return value


def _name(key: GatherKey) -> str:
    return keys.gather(key.allocation, key.attempt, key.group)


def _number(fields: dict[str, bytes], name: str) -> int:
    return int(fields.get(name, b"0"))


def _text(number: int) -> bytes:
    return str(number).encode()
