"""Peers meet once, whatever process each came through, and whoever comes again, leaves or is lost on the way."""

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
    """Everybody's data, in order, for ever the same; the hash has a life time."""
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


async def test_whoever_comes_late_changes_nothing(streams: Streams) -> None:
    """After it is complete a new id, an old id with new data and a leaver all leave it as it is."""
    for name in ("a", "b"):
        await streams.gatherings.join(KEY, a_seat(name), peers=2, owner="p")
    before = await streams.gatherings.seats(KEY)
    for late in (a_seat("c"), a_seat("a", token="again", data=b"1")):
        assert (await streams.gatherings.join(KEY, late, peers=9, owner="p")).outcome is AllgatherState.DONE
    await streams.gatherings.leave(KEY, a_seat("a"))
    assert await streams.gatherings.seats(KEY) == before


async def test_the_same_id_takes_the_seat(streams: Streams) -> None:
    """One seat per id: the newcomer's data counts, the version tells the old watcher, who frees nothing any more."""
    first = await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p1")
    again = await streams.gatherings.join(KEY, a_seat("a", token="new", data=b"2"), peers=2, owner="p2")
    assert (again.outcome, again.present, again.version > first.version) == (AllgatherState.OPEN, 1, True)
    assert await streams.gatherings.tokens(KEY, ["a", "nobody"]) == ["new-a", ""]
    await streams.gatherings.leave(KEY, a_seat("a"))
    assert [seat.data for seat in await streams.gatherings.seats(KEY)] == [b"2"]


async def test_the_same_call_twice_is_one(streams: Streams) -> None:
    """A join whose answer was lost is sent again with its token: nobody is told that they lost a seat."""
    first = await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    assert await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p") == first


async def test_whoever_leaves_takes_the_data_along(streams: Streams, backend: Backend) -> None:
    """And the last one to leave ends it, so that the next may say another number."""
    await streams.gatherings.join(KEY, a_seat("a"), peers=3, owner="p")
    await streams.gatherings.join(KEY, a_seat("b"), peers=3, owner="p")
    await streams.gatherings.leave(KEY, a_seat("a"))
    assert [seat.request_id for seat in await streams.gatherings.seats(KEY)] == ["b"]
    await streams.gatherings.leave(KEY, a_seat("a"))
    await streams.gatherings.leave(KEY, a_seat("b"))
    assert (await streams.gatherings.look(KEY, owner="p")).outcome is AllgatherState.GONE
    assert keys.gather(KEY.allocation, 1, "default") not in await backend.keys()
    assert (await streams.gatherings.join(KEY, a_seat("c"), peers=1, owner="p")).outcome is AllgatherState.COMPLETED


async def test_all_must_say_the_same_number(streams: Streams) -> None:
    """Who says another one is told what the others said; alone, one may think again."""
    await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    assert (await streams.gatherings.join(KEY, a_seat("a"), peers=3, owner="p")).peers == 3
    wrong = await streams.gatherings.join(KEY, a_seat("b"), peers=2, owner="p")
    assert (wrong.outcome, wrong.peers, wrong.present) == (AllgatherState.MISMATCH, 3, 1)


async def test_bytes_are_bounded(streams: Streams) -> None:
    """What does not fit is refused, and leaves what is there; taking a seat again counts once."""
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
    """Complete ones are counted by their bytes, for as long as one is kept; beyond the limit none begins, and those
    that are open or complete go on."""
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
    """The bytes that are counted; set to `value` first, if there is one."""
    if isinstance(backend, MemoryBackend):
        if value is not None:
            backend.server.hash_set(name, {"b": str(value).encode()})
        return int(backend.server.hash_get(name)["b"])
    assert isinstance(backend, RedisBackend)
    if value is not None:
        await backend.command("HSET", name, "b", value, key=name)
    return int(await backend.command("HGET", name, "b", key=name))


async def test_gatherings_are_apart(streams: Streams) -> None:
    """Each attempt, and each name, has its own."""
    await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    for key in (
        GatherKey(allocation=KEY.allocation, attempt=2, group="default"),
        GatherKey(allocation=KEY.allocation, attempt=1, group="other"),
        GatherKey(allocation=an_id("more"), attempt=1, group="default"),
    ):
        assert (await streams.gatherings.look(key, owner="p")).outcome is AllgatherState.GONE


async def test_a_loss_is_noticed(streams: Streams, backend: Backend) -> None:
    """After FLUSHALL it is gone; who sends again what it brought completes it."""
    before = await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")
    await backend.flush()
    assert (await streams.gatherings.look(KEY, owner="p")).outcome is AllgatherState.GONE
    await asyncio.sleep(0.002)  # the version of one that begins is its time
    assert (await streams.gatherings.join(KEY, a_seat("b"), peers=2, owner="p")).version > before.version
    await streams.gatherings.join(KEY, a_seat("b"), peers=2, owner="p")
    assert (await streams.gatherings.join(KEY, a_seat("a"), peers=2, owner="p")).outcome is AllgatherState.COMPLETED


async def test_many_peers_at_once(streams: Streams) -> None:
    """Exactly one of them completes it."""
    joins = [streams.gatherings.join(KEY, a_seat(f"r{n:03}", rank=n), peers=200, owner="p") for n in range(200)]
    outcomes = [each.outcome for each in await asyncio.gather(*joins)]
    assert outcomes.count(AllgatherState.COMPLETED) == 1
    assert [seat.rank for seat in await streams.gatherings.seats(KEY)] == list(range(200))


async def test_the_seats_of_a_dead_process_are_freed(streams: Streams, backend: Backend) -> None:
    """A process that does not look for a while holds nothing any more; one that does keeps its seats."""
    await streams.gatherings.join(KEY, a_seat("dead"), peers=3, owner="killed")
    await streams.gatherings.join(KEY, a_seat("alive"), peers=3, owner="p")
    before = await streams.gatherings.look(KEY, owner="p")
    assert before.present == 2
    await long_ago(backend, keys.gather(KEY.allocation, 1, "default"), "killed")
    found = await streams.gatherings.look(KEY, owner="p")
    assert (found.present, found.version) == (1, before.version + 1)
    assert [seat.request_id for seat in await streams.gatherings.seats(KEY)] == ["alive"]


async def long_ago(backend: Backend, name: str, owner: str) -> None:
    """The owner's last sign of life is older than any silence that is tolerated."""
    if isinstance(backend, MemoryBackend):
        backend.server.hash_set(name, {"o": f"{owner}=-1e9".encode()})
    else:
        assert isinstance(backend, RedisBackend)
        await backend.command("HSET", name, "o", f"{owner}=1", key=name)


async def test_without_a_server() -> None:
    """Nothing is pretended."""
    server = MemoryServer(SystemClock())
    server.absent = True
    with pytest.raises(UnavailableError):
        await MemoryStreams(server).gatherings.join(KEY, a_seat("a"), peers=1, owner="p")
