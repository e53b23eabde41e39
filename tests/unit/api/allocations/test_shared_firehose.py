"""Reads of the firehose that wait at the same place are one read."""

import asyncio

import pytest

from slipway.api.allocations.event_feed import SharedFirehose
from slipway.errors import TransientError, UnavailableError
from slipway.streams.ports import FirehoseEvent

READERS = 50


class CountingFirehose:
    """A `Firehose` in which nothing happens until the test puts an answer: it counts the reads that have begun."""

    def __init__(self) -> None:
        self.begun = list[str | None]()
        self.answers = asyncio.Queue[list[FirehoseEvent] | TransientError]()

    async def tail(self) -> str:
        return "tail"

    async def has_lost(self, after: str) -> bool:
        return False

    async def read(self, *, after: str | None = None, limit: int = 100, block_s: float = 0.0) -> list[FirehoseEvent]:
        self.begun.append(after)
        if block_s <= 0:
            return []
        answer = await self.answers.get()
        if isinstance(answer, TransientError):
            raise answer
        return answer


async def waiting(firehose: SharedFirehose, count: int, after: str = "1") -> list["asyncio.Task[list[FirehoseEvent]]"]:
    found = [asyncio.ensure_future(firehose.read(after=after, limit=10, block_s=5.0)) for _ in range(count)]
    await asyncio.sleep(0)
    return found


PAGE = list[FirehoseEvent]()


async def test_readers_at_the_same_cursor_share_one_read() -> None:
    """Fifty open pages at rest are one read; the next wait is another."""
    inner = CountingFirehose()
    firehose = SharedFirehose(inner)
    for round_ in (1, 2):
        readers = await waiting(firehose, READERS)
        page = list[FirehoseEvent]()
        inner.answers.put_nowait(page)
        assert all(each is page for each in await asyncio.gather(*readers))
        assert inner.begun == ["1"] * round_


async def test_readers_at_other_cursors_have_their_own_reads() -> None:
    """A reader that is behind does not wait for those that are not."""
    inner = CountingFirehose()
    firehose = SharedFirehose(inner)
    readers = await waiting(firehose, 2, "1") + await waiting(firehose, 2, "2")
    assert inner.begun == ["1", "2"]
    for _ in range(2):
        inner.answers.put_nowait([])
    await asyncio.gather(*readers)


async def test_when_the_reader_leaves_another_one_reads() -> None:
    """The others do not wait for a client that is gone."""
    inner = CountingFirehose()
    readers = await waiting(SharedFirehose(inner), 3)
    readers[0].cancel()
    inner.answers.put_nowait([])
    left, *others = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    assert (others, inner.begun) == ([[], []], ["1", "1"])


async def test_an_error_reaches_all_who_wait() -> None:
    """Each reader gets the error; they do not try one after the other."""
    inner = CountingFirehose()
    firehose = SharedFirehose(inner)
    readers = await waiting(firehose, READERS)
    inner.answers.put_nowait(UnavailableError("Redis is away"))
    assert {type(each) for each in await asyncio.gather(*readers, return_exceptions=True)} == {UnavailableError}
    assert inner.begun == ["1"]
    inner.answers.put_nowait(PAGE)
    assert await firehose.read(after="1", limit=10, block_s=5.0) is PAGE


@pytest.mark.parametrize("count", [1, 3])
async def test_reads_that_do_not_wait_are_their_own(count: int) -> None:
    """A read that does not wait returns what is there now."""
    inner = CountingFirehose()
    firehose = SharedFirehose(inner)
    await asyncio.gather(*(firehose.read(after="1") for _ in range(count)))
    assert (len(inner.begun), await firehose.tail()) == (count, "tail")
