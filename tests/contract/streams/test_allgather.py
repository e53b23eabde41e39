"""Peers of a gathering meet once, through whichever process each joins, although peers may join again, leave or be
lost."""

import asyncio

import pytest

from slipway.errors import UnavailableError
from slipway.runtime.clock import SystemClock
from slipway.streams import keys
from slipway.streams.allgather import BYTES_MAX, COST_BYTES, KEPT_BYTES_MAX, NO_RANK, AllgatherState, GatherKey, Seat
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import Streams
from tests.support.redis import Backend, MemoryBackend, RedisBackend, an_id

KEY = GatherKey(allocation=an_id(), attempt=1, group="default")


def a_seat(name: str, *, token: str = "t", rank: int = NO_RANK, data: bytes = b"") -> Seat:
    return Seat(request_id=name, token=f"{token}-{name}", rank=rank, data=data or b'"' + name.encode() + b'"')


async def test_the_last_one_completes_it(streams: Streams, backend: Backend) -> None:
    """The seats have every peer's data, in order, permanently; the hash has a life time."""
    other = backend.connect()
    first = await streams.gatherings.join(KEY, a_seat("b", rank=1), peers=3, owner="p1")
    assert (first.outcome, first.peers, first.present) == (AllgatherState.OPEN, 3, 1)
    await other.gatherings.join(KEY, a_seat("a", rank=10), peers=3, owner="p2")
    assert (await streams.gatherings.look(KEY, owner="p1")).present == 2
    last = await other.gatherings.join(KEY, a_seat("z", rank=0), peers=3, owner="p2")
    assert (last.outcome, last.present) == (AllgatherState.COMPLETED, 3)
    assert (await streams.gatherings.look(KEY, owner="p1")).outcome is AllgatherState.DONE
    seats = await streams.gatherings.seats(KEY)
    assert [(seat.request_id, seat.rank, seat.data) for seat in seats] == [
        ("z", 0, b'"z"'),
        ("b", 1, b'"b"'),
        ("a", 10, b'"a"'),
    ]
    ttl_s = await backend.ttl_s(keys.gather(KEY.allocation, 1, "default"))
    assert ttl_s is not None
    assert 0 < ttl_s <= keys.GATHER.ttl_s


async def test_a_late_participant_changes_nothing(streams: Streams) -> None:
    """When it is complete, a new id, an old id with new data and a leaving peer do not change it."""
    for name in ("a", "b"):
        await streams.gatherings.join(KEY, a_seat(name), peers=2, owner="p")
    before = await streams.gatherings.seats(KEY)
    for late in (a_seat("c"), a_seat("a", token="again", data=b"1")):
        assert (await streams.gatherings.join(KEY, late, peers=9, owner="p")).outcome is AllgatherState.DONE
    await streams.gatherings.leave(KEY, a_seat("a"))
    assert await streams.gatherings.seats(KEY) == before


async def test_the_same_id_replaces_its_entry(streams: Streams) -> None:
    """An id has one seat: the new data replaces the old, the version notifies the old watcher, and a leave by the
    old one frees nothing."""
    first = await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p1")
    again = await streams.gatherings.join(KEY, a_seat("a", token="new", data=b"2"), peers=2, owner="p2")
    assert (again.outcome, again.present, again.version > first.version) == (AllgatherState.OPEN, 1, True)
    assert await streams.gatherings.tokens(KEY, ["a", "nobody"]) == ["new-a", ""]
    await streams.gatherings.leave(KEY, a_seat("a"))
    assert [seat.data for seat in await streams.gatherings.seats(KEY)] == [b"2"]


async def test_the_same_call_twice_is_one(streams: Streams) -> None:
    """A join whose answer was lost is sent again with its token, and no peer learns that it lost its seat."""
    first = await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    assert await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p") == first


async def test_a_participant_that_leaves_removes_its_data(streams: Streams, backend: Backend) -> None:
    """A leaving peer's data is removed; the last leave ends the gathering, so that the next one may have another
    number of peers."""
    await streams.gatherings.join(KEY, a_seat("a"), peers=3, owner="p")
    await streams.gatherings.join(KEY, a_seat("b"), peers=3, owner="p")
    await streams.gatherings.leave(KEY, a_seat("a"))
    assert [seat.request_id for seat in await streams.gatherings.seats(KEY)] == ["b"]
    await streams.gatherings.leave(KEY, a_seat("a"))
    await streams.gatherings.leave(KEY, a_seat("b"))
    assert (await streams.gatherings.look(KEY, owner="p")).outcome is AllgatherState.GONE
    assert keys.gather(KEY.allocation, 1, "default") not in await backend.keys()
    assert (await streams.gatherings.join(KEY, a_seat("c"), peers=1, owner="p")).outcome is AllgatherState.COMPLETED


async def test_all_must_state_the_same_number_of_participants(streams: Streams) -> None:
    """A peer with another number gets the number of the others. A single peer may change its number."""
    await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    assert (await streams.gatherings.join(KEY, a_seat("a"), peers=3, owner="p")).peers == 3
    wrong = await streams.gatherings.join(KEY, a_seat("b"), peers=2, owner="p")
    assert (wrong.outcome, wrong.peers, wrong.present) == (AllgatherState.MISMATCH, 3, 1)


async def test_bytes_are_bounded(streams: Streams) -> None:
    """Data beyond the limit is refused and changes nothing; a seat that is taken again is counted once."""
    half = b'"' + b"x" * (BYTES_MAX // 2 - 2) + b'"'
    await streams.gatherings.join(KEY, a_seat("a", data=half), peers=3, owner="p")
    await streams.gatherings.join(KEY, a_seat("a", token="again", data=half), peers=3, owner="p")
    assert (
        await streams.gatherings.join(KEY, a_seat("b", data=half), peers=3, owner="p")
    ).outcome is AllgatherState.OPEN
    assert (await streams.gatherings.join(KEY, a_seat("c"), peers=3, owner="p")).outcome is AllgatherState.FULL
    await streams.gatherings.leave(KEY, a_seat("b"))
    assert (await streams.gatherings.join(KEY, a_seat("c"), peers=3, owner="p")).present == 2


async def test_what_is_kept_is_bounded(streams: Streams, backend: Backend) -> None:
    """Complete gatherings are counted by their bytes, for as long as one is stored; beyond the limit no new one
    begins, and those that are open or complete continue."""
    await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    for name in ("one", "two"):
        key = GatherKey(allocation=KEY.allocation, attempt=1, group=name)
        assert (await streams.gatherings.join(key, a_seat("a"), peers=1, owner="p")).outcome is AllgatherState.COMPLETED
    kept = keys.gathered(KEY.allocation)
    assert await counted(backend, kept) == 2 * (COST_BYTES + 3)
    await counted(backend, kept, KEPT_BYTES_MAX + 1)
    new = GatherKey(allocation=KEY.allocation, attempt=1, group="three")
    for peers in (1, 2):
        assert (await streams.gatherings.join(new, a_seat("a"), peers=peers, owner="p")).outcome is AllgatherState.SPENT
        assert (await streams.gatherings.look(new, owner="p")).outcome is AllgatherState.GONE
    assert (await streams.gatherings.join(KEY, a_seat("b"), peers=2, owner="p")).outcome is AllgatherState.COMPLETED
    ttl_s = await backend.ttl_s(kept)
    assert ttl_s is not None
    assert 0 < ttl_s <= keys.GATHER.ttl_s


async def counted(backend: Backend, name: str, value: int | None = None) -> int:
    """The counted bytes; set to `value` first, if given."""
    if isinstance(backend, MemoryBackend):
        if value is not None:
            backend.server.hash_set(name, {"b": str(value).encode()})
        return int(backend.server.hash_get(name)["b"])
    assert isinstance(backend, RedisBackend)
    if value is not None:
        await backend.command("HSET", name, "b", value, key=name)
    return int(await backend.command("HGET", name, "b", key=name))


async def test_gatherings_are_apart(streams: Streams) -> None:
    """Each attempt and each name has its own gathering."""
    await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    for key in (
        GatherKey(allocation=KEY.allocation, attempt=2, group="default"),
        GatherKey(allocation=KEY.allocation, attempt=1, group="other"),
        GatherKey(allocation=an_id("more"), attempt=1, group="default"),
    ):
        assert (await streams.gatherings.look(key, owner="p")).outcome is AllgatherState.GONE


async def test_a_loss_is_noticed(streams: Streams, backend: Backend) -> None:
    """After FLUSHALL the gathering is gone; peers that send their data again complete it."""
    before = await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    await backend.flush()
    assert (await streams.gatherings.look(KEY, owner="p")).outcome is AllgatherState.GONE
    await asyncio.sleep(0.002)  # the version of a new gathering is its start time
    assert (await streams.gatherings.join(KEY, a_seat("b"), peers=2, owner="p")).version > before.version
    await streams.gatherings.join(KEY, a_seat("b"), peers=2, owner="p")
    assert (await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")).outcome is AllgatherState.COMPLETED


async def test_many_peers_at_once(streams: Streams) -> None:
    """Exactly one of the joins completes it."""
    joins = [streams.gatherings.join(KEY, a_seat(f"r{n:03}", rank=n), peers=200, owner="p") for n in range(200)]
    outcomes = [each.outcome for each in await asyncio.gather(*joins)]
    assert outcomes.count(AllgatherState.COMPLETED) == 1
    assert [seat.rank for seat in await streams.gatherings.seats(KEY)] == list(range(200))


async def test_the_entries_of_a_dead_process_are_freed(streams: Streams, backend: Backend) -> None:
    """The seats of a process that has not looked for a while are freed; a process that looks keeps its seats."""
    await streams.gatherings.join(KEY, a_seat("dead"), peers=3, owner="killed")
    await streams.gatherings.join(KEY, a_seat("alive"), peers=3, owner="p")
    before = await streams.gatherings.look(KEY, owner="p")
    assert before.present == 2
    await long_ago(backend, keys.gather(KEY.allocation, 1, "default"), "killed")
    found = await streams.gatherings.look(KEY, owner="p")
    assert (found.present, found.version) == (1, before.version + 1)
    assert [seat.request_id for seat in await streams.gatherings.seats(KEY)] == ["alive"]


async def long_ago(backend: Backend, name: str, owner: str) -> None:
    """Set the owner's last look to a time before any tolerated silence."""
    if isinstance(backend, MemoryBackend):
        backend.server.hash_set(name, {"o": f"{owner}=-1e9".encode()})
    else:
        assert isinstance(backend, RedisBackend)
        await backend.command("HSET", name, "o", f"{owner}=1", key=name)


async def test_without_a_server() -> None:
    """Without a server a join raises UnavailableError."""
    server = MemoryServer(SystemClock())
    server.absent = True
    with pytest.raises(UnavailableError):
        await MemoryStreams(server).gatherings.join(KEY, a_seat("a"), peers=1, owner="p")
