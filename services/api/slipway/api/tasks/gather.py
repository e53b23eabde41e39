"""All-gathers: requests of the ranks of one attempt that wait for each other, over all replicas of the api.

Owns the requests that wait in this process for a gathering, and how each learns that the gathering is complete, that
the request was replaced, or that the wait is over. The data of all ranks are in Redis. There is no background task: of
the requests that wait for one gathering, one polls for all (the leader), and another takes over when it ends.

Promises: all ranks of a complete gathering get the same data in the same order. A repeated request with the same
request id replaces the old request, which is refused. The data of a request that ends early are removed. After a loss
of Redis the waiting requests send their data again. Every wait ends: with the time limit, the attempt, or the process.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from slipway.api.http.errors import (
    BodyTooLargeError,
    ConflictError,
    PeersMissingError,
    RedisUnavailableError,
    ReplacedError,
    TooManyStreamsError,
)
from slipway.api.http.ttl_cache import LoadingCache
from slipway.api.ports import ShutdownSignal
from slipway.errors import ControlPlaneError, InvariantError, ThrottledError, TransientError, UnavailableError
from slipway.runtime import log, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.streams.allgather import (
    BYTES_MAX,
    KEPT_BYTES_MAX,
    NO_RANK,
    AllgatherState,
    Gathered,
    Gatherings,
    GatherKey,
    Seat,
)
from slipway.streams.macs import ForgedError

T = TypeVar("T")
_log = log.get_logger(__name__)

POLL_MIN_S = 0.05
POLL_MAX_S = 1.0
SHOWN_MAX = 16
WAITING_MAX = 20_000
"""Limit of peers that wait at one process, over all gatherings."""
WHO_TTL_S = 1.0

StillOn = Callable[[], Awaitable[object]]
"""Checks that the attempt is still the current one. Raises ConflictError otherwise."""


class CompleteGathering(msgspec.Struct, frozen=True, kw_only=True):
    """A complete gathering: all peers in order, and the part of the answer that is the same for all."""

    seats: Sequence[Seat]
    places: dict[str, int]
    tail: bytes

    def answer(self, request_id: str) -> bytes:
        """Return the body for one peer; `position` is null for a peer that came too late to be part of it."""
        place = self.places.get(request_id)
        return b'{"position":%s,%s' % (b"null" if place is None else b"%d" % place, self.tail)


class _WaitingPeer:
    """One waiting request; it is woken when its outcome is decided, or when it has to become the leader."""

    def __init__(self, seat: Seat, peers: int) -> None:
        self.seat = seat
        self.peers = peers
        self.decided: CompleteGathering | ControlPlaneError | None = None
        self.stirred = asyncio.Event()

    def decide(self, outcome: CompleteGathering | ControlPlaneError) -> None:
        if self.decided is None:
            self.decided = outcome
            self.stirred.set()


class _LocalGathering:
    """The requests that wait in this process for one gathering."""

    def __init__(self, version: int, still_on: StillOn) -> None:
        self.version = version
        self.still_on = still_on
        self.watchers: dict[str, _WaitingPeer] = {}
        self.leader: _WaitingPeer | None = None

    def settle(self, outcome: CompleteGathering | ControlPlaneError) -> None:
        for watcher in self.watchers.values():
            watcher.decide(outcome)

    def hand_on(self) -> None:
        """Give the lead up, and wake a waiting request that becomes the leader."""
        self.leader = None
        for watcher in self.watchers.values():
            if watcher.decided is None:
                watcher.stirred.set()
                return


class AllGather:
    """The all-gathers of this process."""

    def __init__(self, gatherings: Gatherings, clock: Clock, random: Random, stop: ShutdownSignal) -> None:
        self._gatherings = gatherings
        self._random = random
        self._stop = stop
        self._owner = random.token_hex(8)
        self._local: dict[GatherKey, _LocalGathering] = {}
        self._waiting = 0
        self._who = LoadingCache[GatherKey, str](clock, ttl_s=WHO_TTL_S)

    async def gather(
        self, key: GatherKey, seat: Seat, *, peers: int, wait_s: float, still_on: StillOn
    ) -> CompleteGathering:
        """Join a gathering, and return it when it is complete.

        Raises:
            PeersMissingError: it is not complete within `wait_s`; the message names present and missing peers.
            ReplacedError: another request with the same request id has replaced this one.
            ConflictError: the other peers stated another number of peers, or the attempt has ended.
            RedisUnavailableError: Redis is unavailable; the client can send the request again.
            TooManyStreamsError: too many requests wait in this process.
        """
        if self._waiting >= WAITING_MAX:
            raise TooManyStreamsError(
                f"{WAITING_MAX} peers wait at this replica of the api already; send the request again in a moment"
            )
        seat = msgspec.structs.replace(seat, token=self._random.token_hex(8))
        try:
            state = await self._join(key, seat, peers)
        except asyncio.CancelledError:
            await self._leave(key, seat)  # the join may have succeeded in Redis
            raise
        gathering = self._local.get(key)
        if state.outcome in (AllgatherState.DONE, AllgatherState.COMPLETED):
            met = await self._result(key)
            if met is not None:
                if gathering is not None:
                    gathering.settle(met)
                return _of_as_many(met, peers)
        if gathering is None:
            gathering = self._local[key] = _LocalGathering(state.version, still_on)
        watcher = _WaitingPeer(seat, peers)
        replaced = gathering.watchers.get(seat.request_id)
        if replaced is not None:
            replaced.decide(_replaced(seat.request_id))
        gathering.watchers[seat.request_id] = watcher
        self._waiting += 1
        try:
            return await self._wait(key, gathering, watcher, wait_s)
        finally:
            self._waiting -= 1
            if gathering.watchers.get(seat.request_id) is watcher:
                del gathering.watchers[seat.request_id]
            if gathering.leader is None:
                gathering.hand_on()
            if not gathering.watchers and self._local.get(key) is gathering:
                del self._local[key]

    async def _wait(
        self, key: GatherKey, gathering: _LocalGathering, watcher: _WaitingPeer, wait_s: float
    ) -> CompleteGathering:
        is_over = False
        try:
            async with asyncio.timeout(wait_s):
                while watcher.decided is None:
                    await self._turn(key, gathering, watcher)
        except TimeoutError:
            is_over = True
        finally:
            if not isinstance(watcher.decided, CompleteGathering | ReplacedError):
                text = await self._missing(key, watcher.peers) if is_over else ""
                await self._leave(key, watcher.seat)
                if is_over:
                    raise PeersMissingError(text)
        if isinstance(watcher.decided, CompleteGathering):
            return _of_as_many(watcher.decided, watcher.peers)
        # The error is copied, because all waiting requests share it and each raises it.
        raise copy.copy(watcher.decided) if watcher.decided else InvariantError("a wait ended without an outcome")

    async def _turn(self, key: GatherKey, gathering: _LocalGathering, watcher: _WaitingPeer) -> None:
        """Lead until this request is decided; or, with another leader, wait until it is decided or has to lead."""
        if gathering.leader is not None:
            watcher.stirred.clear()
            await watcher.stirred.wait()
            return
        gathering.leader = watcher
        pause_s = POLL_MIN_S
        try:
            while watcher.decided is None:
                watcher.stirred.clear()
                try:
                    async with asyncio.timeout(pause_s):
                        await watcher.stirred.wait()
                except TimeoutError:
                    await self._round(key, gathering)
                pause_s = min(POLL_MAX_S, pause_s * 1.5)
        finally:
            gathering.hand_on()

    async def _round(self, key: GatherKey, gathering: _LocalGathering) -> None:
        """Check the gathering once, for all requests that wait here."""
        try:
            if self._stop.is_set():
                raise UnavailableError("this replica of the api is about to stop; send the request again")
            await gathering.still_on()
            state = await _redis(self._gatherings.look(key, owner=self._owner))
            if state.outcome is AllgatherState.GONE:
                state = await self._rejoin(key, list(gathering.watchers.values()))
            if state is not None and state.outcome in (AllgatherState.DONE, AllgatherState.COMPLETED):
                met = await self._result(key)
                if met is not None:
                    gathering.settle(met)
            elif state is not None and state.version != gathering.version:
                await self._check_seats(key, gathering)
                gathering.version = state.version
        except InvariantError:
            raise
        except ControlPlaneError as error:
            gathering.settle(error)

    async def _check_seats(self, key: GatherKey, gathering: _LocalGathering) -> None:
        """Handle requests that lost their seat in Redis.

        A request that a newer one replaced is refused. A request whose seat was freed, because this process seemed
        dead, joins again.
        """
        watchers = list(gathering.watchers.values())
        tokens = await _redis(self._gatherings.tokens(key, [each.seat.request_id for each in watchers]))
        freed: list[_WaitingPeer] = []
        for watcher, token in zip(watchers, tokens, strict=True):
            if not token:
                freed.append(watcher)
            elif token != watcher.seat.token:
                watcher.decide(_replaced(watcher.seat.request_id))
        await self._rejoin(key, freed)

    async def _rejoin(self, key: GatherKey, watchers: Sequence[_WaitingPeer]) -> Gathered | None:
        state: Gathered | None = None
        for watcher in watchers:
            if watcher.decided is None:
                state = await self._join(key, watcher.seat, watcher.peers)
        return state

    async def _join(self, key: GatherKey, seat: Seat, peers: int) -> Gathered:
        state = await _redis(self._gatherings.join(key, seat, peers=peers, owner=self._owner))
        if state.outcome is AllgatherState.MISMATCH:
            raise ConflictError(
                f"numPeers: {state.present} peers that wait in {key.group!r} sent {state.peers}, this request sent "
                f"{peers}; all must send the same number, or use a group of another name"
            )
        if state.outcome is AllgatherState.FULL:
            raise BodyTooLargeError(
                f"data: all peers together may send {BYTES_MAX} bytes, because each receives all of it; for large "
                "data, send its location instead"
            )
        if state.outcome is AllgatherState.SPENT:
            raise ThrottledError(
                f"this allocation has exchanged more than the {KEPT_BYTES_MAX >> 20} MiB in an hour that are "
                "stored for late peers; exchange less often, or use a group that is open already"
            )
        return state

    async def _leave(self, key: GatherKey, seat: Seat) -> None:
        try:
            await self._gatherings.leave(key, seat)
        except TransientError:
            return  # Redis frees the seat when this process stops renewing it, or has lost all seats

    async def _result(self, key: GatherKey) -> CompleteGathering | None:
        """Return the complete gathering; None when Redis has just lost it."""
        try:
            seats = await _redis(self._gatherings.seats(key, are_all=True))
        except ForgedError as error:
            # The gathering is removed, so the waiting requests send their data again, as after a loss of Redis.
            telemetry.DELIVERIES.labels(stream="gather", outcome="forged").inc()
            _log.warning("gathering refused and removed", allocation=key.allocation, group=key.group, why=str(error))
            await _redis(self._gatherings.forget(key))
            return None
        if not seats:
            return None
        ids = [seat.request_id for seat in seats]
        facts = {
            "requestIds": ids,
            "ranks": [None if seat.rank == NO_RANK else seat.rank for seat in seats],
            "numPeers": len(seats),
            "group": key.group,
            "attempt": key.attempt,
        }
        data = b",".join(seat.data for seat in seats)
        tail = msgspec.json.encode(facts)[1:-1] + b',"data":[' + data + b"]}"
        return CompleteGathering(seats=seats, places={id_: place for place, id_ in enumerate(ids)}, tail=tail)

    async def _missing(self, key: GatherKey, peers: int) -> str:
        async def load() -> str:
            return who_is_missing(await self._gatherings.seats(key), peers, key.group)

        try:
            return await self._who.get(key, load)
        except ForgedError:
            return f"not all {peers} peers of {key.group!r} arrived in time; Redis contains data that they did not send"
        except TransientError:
            return (
                f"not all {peers} peers of {key.group!r} arrived in time; Redis is unavailable, so the missing "
                "peers are unknown"
            )


def who_is_missing(seats: Sequence[Seat], peers: int, group: str) -> str:
    """Return a sentence with the present and the missing peers."""
    shown = ", ".join(_name(seat) for seat in seats[:SHOWN_MAX])
    more = f" and {len(seats) - SHOWN_MAX} more" if len(seats) > SHOWN_MAX else ""
    text = f"{len(seats)} of {peers} peers of {group!r} have arrived ({shown}{more}); {peers - len(seats)} missing"
    ranks = {seat.rank for seat in seats}
    if NO_RANK not in ranks and len(ranks) == len(seats) and max(ranks, default=0) < peers:
        lacking = [rank for rank in range(peers) if rank not in ranks]
        text += f": rank {', '.join(map(str, lacking[:SHOWN_MAX]))}" + (" ..." if len(lacking) > SHOWN_MAX else "")
    return f"{text}. Send the same request again to continue to wait"


def _of_as_many(met: CompleteGathering, peers: int) -> CompleteGathering:
    """Return the gathering if it has `peers` peers. Raises ConflictError when it has another number."""
    if len(met.seats) != peers:
        raise ConflictError(
            f"numPeers: {len(met.seats)} have met in this group, this request sent {peers}; all must send the same "
            "number, or use a group of another name"
        )
    return met


def _name(seat: Seat) -> str:
    return f"{seat.request_id} of rank {seat.rank}" if seat.rank != NO_RANK else seat.request_id


def _replaced(request_id: str) -> ReplacedError:
    return ReplacedError(f"request id {request_id!r} was sent again: the newer request replaces this one")


async def _redis(call: Awaitable[T]) -> T:
    try:
        return await call
    except TransientError as error:
        raise RedisUnavailableError(
            "all-gathers are kept in Redis, which cannot be reached; send the same request again in a moment"
        ) from error
