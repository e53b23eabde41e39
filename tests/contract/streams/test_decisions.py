"""A decision log contains complete chains from their bases on, within its caps, with any writers and after any loss."""

import pytest

from slipway.errors import InvalidError
from slipway.streams import keys
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits
from slipway.streams.ports import Streams
from tests.support.redis import Backend

CAPS = DecisionLogLimits(entries=10, size=1_000)


def a_tick(chain: str, number: int, *, size: int = 10) -> DecisionEntry:
    return DecisionEntry(chain=chain, number=number, tick=100 + number, data=bytes([number]) * size)


async def write(
    streams: Streams, chain: str, count: int, *, size: int = 10, caps: DecisionLogLimits = CAPS
) -> list[str | None]:
    """Write a chain of that many entries and return their cursors."""
    base = await streams.decisions.append("p", a_tick(chain, 0, size=size), base=None, caps=caps)
    rest = [
        await streams.decisions.append("p", a_tick(chain, number, size=size), base=base, caps=caps)
        for number in range(1, count)
    ]
    return [base, *rest]


async def kept(streams: Streams) -> list[tuple[str, int]]:
    return [(each.entry.chain, each.entry.number) for each in await streams.decisions.read("p", limit=1000)]


async def test_what_is_written_is_read(streams: Streams) -> None:
    """Entries are read back unchanged, in order, from any cursor, and each pool has its own."""
    cursors = await write(streams, "a", 3)
    read = await streams.decisions.read("p")
    assert [each.entry for each in read] == [a_tick("a", number) for number in range(3)]
    assert [each.cursor for each in read] == cursors
    assert [each.entry.number for each in await streams.decisions.read("p", after=cursors[0], limit=1)] == [1]
    assert await streams.decisions.read("other") == []


async def test_the_oldest_chain_is_trimmed_as_a_whole(streams: Streams) -> None:
    """The number of entries is capped: when a base is removed, so are the entries that build on it."""
    await write(streams, "a", 6)
    await write(streams, "b", 4)
    assert len(await kept(streams)) == 10
    await write(streams, "c", 1)
    assert await kept(streams) == [*(("b", number) for number in range(4)), ("c", 0)]


async def test_bytes_are_capped(streams: Streams) -> None:
    """The bytes of the data are capped after every append."""
    for chain in "abcdefgh":
        await write(streams, chain, 2, size=150)
        assert sum(len(each.entry.data) for each in await streams.decisions.read("p")) <= CAPS.size
    assert await kept(streams) == [(chain, number) for chain in "fgh" for number in range(2)]


async def test_a_chain_that_would_push_out_its_own_base_ends(streams: Streams) -> None:
    """The writer must begin a new chain, and the log contains no entry without its base."""
    cursors = await write(streams, "a", 12, size=200)
    assert cursors[5] is None
    await write(streams, "b", 1)
    assert await kept(streams) == [("b", 0)]


async def test_after_a_loss_a_base_entry_is_requested(streams: Streams, backend: Backend) -> None:
    """An entry whose base is gone is not written."""
    [base] = await write(streams, "a", 1)
    await backend.flush()
    assert await streams.decisions.append("p", a_tick("a", 1), base=base, caps=CAPS) is None
    assert await kept(streams) == []
    await write(streams, "b", 2)
    assert await kept(streams) == [("b", 0), ("b", 1)]


async def test_chains_may_be_interleaved(streams: Streams) -> None:
    """A replaced leader may still write the decisions of its term."""
    [old] = await write(streams, "old", 1)
    await write(streams, "new", 2)
    assert await streams.decisions.append("p", a_tick("old", 1), base=old, caps=CAPS) is not None
    assert await kept(streams) == [("old", 0), ("new", 0), ("new", 1), ("old", 1)]


async def test_what_is_too_large_is_refused(streams: Streams) -> None:
    """An entry of more than half the cap would leave no space for entries that build on it."""
    with pytest.raises(InvalidError):
        await streams.decisions.append("p", a_tick("a", 0, size=501), base=None, caps=CAPS)


async def test_entries_of_another_format_are_skipped(streams: Streams, backend: Backend) -> None:
    """Entries of another version or program are skipped: they cost no reader its page, and no writer its entry."""
    await backend.add_raw(keys.decisions("p"), None, {"x": b"y"})
    await write(streams, "a", 2)
    await backend.add_raw(keys.decisions("p"), None, {"c": b"a", "n": b"minus one", "t": b"1", "d": b""})
    await write(streams, "b", 1)
    assert await kept(streams) == [("a", 0), ("a", 1), ("b", 0)]
