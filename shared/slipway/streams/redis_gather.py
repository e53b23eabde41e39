"""Gatherings on Redis: one hash for each, changed by one script.

This module owns the calls of `lua/gather.lua`, which owns the numbers in the hash.
"""

from collections.abc import Sequence

import msgspec

from slipway.streams import keys, rows, scripts
from slipway.streams.allgather import (
    BYTES_MAX,
    COST_BYTES,
    KEPT_BYTES_MAX,
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
from slipway.streams.client import Argument, RedisClient, command
from slipway.streams.macs import Macs

_SILENCE_MS = int(SILENCE_S * 1_000)


class RedisGatherings:
    """The `Gatherings` on Redis."""

    def __init__(self, client: RedisClient, macs: Macs | None = None) -> None:
        """With `macs`, seats are signed, and signatures are required on reading."""
        self._client, self._macs = client, macs

    async def join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        limits = (BYTES_MAX, keys.GATHER.ttl_s, _SILENCE_MS)
        call = (seat.request_id, seat.token, owner, seat.rank, peers, *limits, seat.data)
        code = seat_code(_name(key), seat, peers, self._macs)
        state = await self._run(key, "join", *call, *([code] if code else []))
        is_in = state.outcome in (AllgatherState.OPEN, AllgatherState.COMPLETED)
        if is_in and state.present == 1 and await self._is_spent(key):
            await self._client.run(command("DEL", _name(key)))
            return msgspec.structs.replace(state, outcome=AllgatherState.SPENT)
        if state.outcome is AllgatherState.COMPLETED:
            await self._count(key)
        return state

    async def look(self, key: GatherKey, *, owner: str) -> Gathered:
        return await self._run(key, "look", owner, keys.GATHER.ttl_s, _SILENCE_MS)

    async def leave(self, key: GatherKey, seat: Seat) -> None:
        await self._run(key, "leave", seat.request_id, seat.token)

    async def tokens(self, key: GatherKey, request_ids: Sequence[str]) -> list[str]:
        if not request_ids:
            return []
        names = [f"{SEAT_FIELD}{request_id}" for request_id in request_ids]
        found = await self._client.run(command("HMGET", _name(key), *names))
        return [token_of(raw) if raw is not None else "" for raw in found]

    async def seats(self, key: GatherKey, *, are_all: bool = False) -> list[Seat]:
        name = _name(key)
        found = rows.fields(await self._client.run(command("HGETALL", name)))
        return seats_of(found, name, self._macs, are_all=are_all)

    async def forget(self, key: GatherKey) -> None:
        await self._client.run(command("DEL", _name(key)))

    async def _count(self, key: GatherKey) -> None:
        """Add a complete gathering to the stored bytes. The window ends when the oldest of them may have expired."""
        size = int(await self._client.run(command("HGET", _name(key), "b")) or 0) + COST_BYTES
        kept = keys.gathered(key.allocation)
        counted = command("HINCRBY", kept, "b", size)
        rows.checked(await self._client.pipeline([counted, command("EXPIRE", kept, keys.GATHER.ttl_s, "NX")]))

    async def _is_spent(self, key: GatherKey) -> bool:
        kept = await self._client.run(command("HGET", keys.gathered(key.allocation), "b"))
        return int(kept or 0) > KEPT_BYTES_MAX

    async def _run(self, key: GatherKey, what: str, *args: Argument) -> Gathered:
        call = (_name(key), what, int(self._client.clock.now() * 1_000), *args)
        outcome, peers, present, version = await scripts.run(self._client, scripts.GATHER, *call)
        return Gathered(outcome=AllgatherState(outcome.decode()), peers=peers, present=present, version=version)


def _name(key: GatherKey) -> str:
    return keys.gather(key.allocation, key.attempt, key.group)
