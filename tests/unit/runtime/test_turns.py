"""Turns: many small pieces of one peer let other tasks run."""

import asyncio
from typing import cast

import pytest

from slipway.runtime.tasks import TURN_BYTES, TURN_UNITS, ByteTurns, UnitTurns


class RecordingTransport:
    """A transport that records whether it reads."""

    def __init__(self) -> None:
        self.reads = True
        self.is_over = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_over

    def as_transport(self) -> asyncio.Transport:
        return cast("asyncio.Transport", self)


async def test_long_work_yields_to_the_event_loop() -> None:
    """A reader that passes on existing data never waits, so units give other tasks a turn now and then."""
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    turns = UnitTurns()
    for _ in range(10 * TURN_UNITS):
        await turns.passed()
    running.cancel()
    assert 9 <= others <= 12


async def test_bytes_come_in_order_a_piece_for_each_turn() -> None:
    """Bytes are passed on in order, one piece for each turn; the transport does not read in that time, and its later
    data follows."""
    pipe, taken = RecordingTransport(), list[bytes]()
    turns = ByteTurns(lambda piece: taken.append(piece) is None, lambda: True)
    data = bytes(range(256)) * (TURN_BYTES // 64)
    turns.add(data, pipe.as_transport())
    assert ([len(each) for each in taken], pipe.reads) == ([TURN_BYTES], False)
    turns.add(b"more", pipe.as_transport())
    for _ in range(10):
        await asyncio.sleep(0)
    assert pipe.reads
    assert b"".join(taken) == data + b"more"
    assert max(map(len, taken)) == TURN_BYTES
    turns.add(b"at once", pipe.as_transport())
    assert taken[-1] == b"at once"


@pytest.mark.parametrize("ends", ["the parser", "the connection"])
async def test_unread_data_is_dropped(ends: str) -> None:
    """After a refusal, or the end of the connection, the remaining bytes are dropped."""
    pipe, taken = RecordingTransport(), list[bytes]()

    def take(piece: bytes) -> bool:
        taken.append(piece)
        pipe.is_over = ends == "the connection"
        return ends != "the parser"

    turns = ByteTurns(take, lambda: True)
    turns.add(b"x" * (3 * TURN_BYTES), pipe.as_transport())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(taken) == 1


async def test_a_reader_that_stops_is_not_forced_to_read_on() -> None:
    """A transport that was paused before, because a body waits for its application, stays paused."""
    pipe = RecordingTransport()
    turns = ByteTurns(lambda _: True, lambda: False)
    turns.add(b"x" * (2 * TURN_BYTES), pipe.as_transport())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not pipe.reads
