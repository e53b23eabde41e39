"""Signed data in Redis is accepted unchanged and at its place; forged, moved or unsigned data is refused."""

from pathlib import Path

import pytest

from slipway.errors import ExpiredError, StaleError
from slipway.runtime.clock import SystemClock
from slipway.streams import codec, keys
from slipway.streams.allgather import NO_RANK, AllgatherState, GatherKey, Seat, seats_of
from slipway.streams.mac_keys import GATHER_PURPOSE, MacKeys
from slipway.streams.macs import ForgedError
from slipway.streams.ports import FeedEntry, FeedOp
from tests.support.mac_keys import a_folder, some_keys
from tests.support.redis import Backend, an_id

CLOCK = SystemClock()
KEY = GatherKey(allocation=an_id(), attempt=1, group="default")


@pytest.fixture
def macs(tmp_path: Path) -> MacKeys:
    return some_keys(a_folder(tmp_path / "ours"), CLOCK)


@pytest.fixture
def other_keys(tmp_path: Path) -> MacKeys:
    return some_keys(a_folder(tmp_path / "theirs", byte=2), CLOCK)


@pytest.fixture
def gather_macs(tmp_path: Path) -> MacKeys:
    return some_keys(a_folder(tmp_path / "ours"), CLOCK, purpose=GATHER_PURPOSE)


def an_entry(number: int, *, epoch: int = 1) -> FeedEntry:
    return FeedEntry(epoch=epoch, number=number, kind="nodes", op=FeedOp.PUT, key=f"n{number}", rv="7", data=b"{}")


def a_seat(name: str, rank: int = NO_RANK) -> Seat:
    return Seat(request_id=name, token=f"t-{name}", rank=rank, data=b'"%s"' % name.encode())


async def test_a_signed_feed_is_read_as_it_was_written(backend: Backend, macs: MacKeys) -> None:
    """A signed feed can be read across packs, also by a reader without keys, such as an older version."""
    entries = [an_entry(number) for number in range(1, keys.FEED_PACK_MAX + 3)]
    await backend.connect(feed_macs=macs).feed.append(entries, after=None)
    for reader in (backend.connect(feed_macs=macs), backend.connect()):
        found = await reader.feed.read(None, limit=1_000, block_s=0)
        assert [entry for _, entry in found] == entries


async def test_a_feed_that_others_have_written_is_refused(
    backend: Backend, macs: MacKeys, other_keys: MacKeys, tmp_path: Path
) -> None:
    """A feed that is unsigned or signed by other keys is refused; with the switch on, an unsigned one is accepted."""
    reader = backend.connect(feed_macs=macs)
    lenient = backend.connect(feed_macs=some_keys(tmp_path / "ours", CLOCK, accepts_unsigned=True))
    for forger, is_let_in in ((backend.connect(), True), (backend.connect(feed_macs=other_keys), False)):
        await backend.flush()
        await forger.feed.append([an_entry(1)], after=None)
        with pytest.raises(ForgedError):
            await reader.feed.read(None, limit=10, block_s=0)
        if is_let_in:
            assert len(await lenient.feed.read(None, limit=10, block_s=0)) == 1
        else:
            with pytest.raises(ForgedError):
                await lenient.feed.read(None, limit=10, block_s=0)


async def test_an_end_that_others_have_written_ends_no_feed(backend: Backend, macs: MacKeys) -> None:
    """A forged end is ignored, also with an epoch that no term will reach: publishers and readers continue behind
    it."""
    ours = backend.connect(feed_macs=macs).feed
    for begun in (False, True):
        await backend.flush()
        end = await ours.append([an_entry(1)], after=None) if begun else None
        await backend.connect().feed.append([an_entry(1, epoch=10**18 - 1)], after=None)
        position = await ours.position()
        assert (position.epoch, position.number) == (0, 0)
        if begun:
            with pytest.raises(ExpiredError):
                await ours.append([an_entry(2)], after=end)
        await ours.append([an_entry(1, epoch=2)], after=None)
        assert (await ours.position()).epoch == 2
        found = await ours.read(position.cursor, limit=10, block_s=0)
        assert [entry for _, entry in found] == [an_entry(1, epoch=2)]
        with pytest.raises(StaleError):
            await ours.append([an_entry(1, epoch=2)], after=None)


@pytest.mark.parametrize("field", ["n", "e", "d", "m"])
async def test_an_entry_counts_at_its_place_only(backend: Backend, macs: MacKeys, field: str) -> None:
    """A signed entry with another number, epoch or data, or with a part of its code, is refused."""
    fields = codec.encode_feed([an_entry(1)], macs)
    others = {"n": b"3", "e": b"2", "d": codec.encode_feed([an_entry(9)])["d"], "m": fields["m"][:16]}
    await backend.add_raw(keys.CLUSTER.prefix, None, fields)
    reader = backend.connect(feed_macs=macs)
    assert len(await reader.feed.read(None, limit=10, block_s=0)) == 1
    await backend.flush()
    await backend.add_raw(keys.CLUSTER.prefix, None, {**fields, field: others[field]})
    with pytest.raises(ForgedError):
        await reader.feed.read(None, limit=10, block_s=0)


async def test_parts_of_a_snapshot_count_in_their_place_only(
    backend: Backend, macs: MacKeys, other_keys: MacKeys
) -> None:
    """A part is refused in the place of another part, in another slot, or with other keys; a missing part is None."""
    ours, plain = backend.connect(feed_macs=macs).feed, backend.connect().feed
    await ours.keep(0, {"head": b"h", "0": b"zero", "1": b"one"}, anew=True)
    assert await ours.kept(0, ["head", "1", "7"]) == [b"h", b"one", None]
    assert await plain.kept(0, ["head", "1"]) == [b"h", b"one"]
    signed = dict(zip(("0", "m:0"), await plain.kept(0, ["0", "m:0"]), strict=True))
    assert signed["m:0"] is not None
    for slot, part in ((0, "1"), (1, "0")):
        moved = {part: b"zero", f"m:{part}": signed["m:0"]}
        await plain.keep(slot, moved, anew=False)
        with pytest.raises(ForgedError):
            await ours.kept(slot, [part])
    await backend.connect(feed_macs=other_keys).feed.keep(0, {"0": b"zero"}, anew=True)
    with pytest.raises(ForgedError):
        await ours.kept(0, ["0"])


async def test_a_signed_gathering_is_as_one_that_is_not(backend: Backend, gather_macs: MacKeys) -> None:
    """A signed gathering can be joined, replaced, left and completed, over two processes."""
    one, two = (backend.connect(gather_macs=gather_macs).gatherings for _ in range(2))
    await one.join(KEY, a_seat("a", 1), peers=2, owner="p1")
    await two.join(KEY, Seat(request_id="a", token="again", rank=1, data=b"2"), peers=2, owner="p2")
    assert [seat.data for seat in await one.seats(KEY)] == [b"2"]
    await two.leave(KEY, Seat(request_id="a", token="again"))
    await one.join(KEY, a_seat("a", 1), peers=2, owner="p1")
    last = await two.join(KEY, a_seat("b", 0), peers=2, owner="p2")
    assert last.outcome is AllgatherState.COMPLETED
    assert [seat.request_id for seat in await one.seats(KEY)] == ["b", "a"]


async def test_a_forged_entry_of_a_rank_is_refused(backend: Backend, gather_macs: MacKeys, macs: MacKeys) -> None:
    """A seat that is unsigned, or signed by keys of another purpose, is refused; the gathering can be removed, and
    begins anew."""
    ours = backend.connect(gather_macs=gather_macs).gatherings
    for forger in (backend.connect(), backend.connect(gather_macs=macs)):
        await ours.join(KEY, a_seat("a", 0), peers=2, owner="p")
        await forger.gatherings.join(KEY, a_seat("forged", 1), peers=2, owner="x")
        with pytest.raises(ForgedError):
            await ours.seats(KEY)
        await ours.forget(KEY)
        assert await ours.seats(KEY) == []


async def test_the_number_of_peers_is_signed(backend: Backend, gather_macs: MacKeys) -> None:
    """A gathering of three cannot be made complete with two peers."""
    ours = backend.connect(gather_macs=gather_macs).gatherings
    plain = backend.connect().gatherings
    await ours.join(KEY, a_seat("a", 0), peers=3, owner="p")
    await ours.leave(KEY, a_seat("a", 0))
    await ours.join(KEY, a_seat("a", 0), peers=2, owner="p")
    assert len(await ours.seats(KEY)) == 1
    other = GatherKey(allocation=KEY.allocation, attempt=2, group="default")
    await plain.join(other, a_seat("a", 0), peers=1, owner="x")
    with pytest.raises(ForgedError):
        await ours.seats(other)


async def test_a_gathering_is_complete_when_each_peer_has_an_entry(backend: Backend, gather_macs: MacKeys) -> None:
    """A gathering is complete when every peer has a seat; the flag in Redis is not signed, and is ignored."""
    ours = backend.connect(gather_macs=gather_macs).gatherings
    await ours.join(KEY, a_seat("a", 0), peers=2, owner="p")
    with pytest.raises(ForgedError):
        await ours.seats(KEY, are_all=True)
    await ours.join(KEY, a_seat("b", 1), peers=2, owner="p")
    assert len(await ours.seats(KEY, are_all=True)) == 2


NO_SEATS = [b"", b"p", b"p t", b"p  1", b"p t x", b"p t 1 m", b"p t " + b"9" * 40, b"\xff \xff \xff"]


@pytest.mark.parametrize("seat", NO_SEATS)
def test_an_entry_that_cannot_be_decoded_is_refused(seat: bytes) -> None:
    """A malformed seat is refused, with keys and without: it ends no process and becomes no rank's data."""
    with pytest.raises(ForgedError):
        seats_of({"n": b"1", "w:a": seat, "d:a": b"1"})
