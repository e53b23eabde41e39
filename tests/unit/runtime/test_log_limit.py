"""Log lines that any client can cause: the first ones of each kind in a minute, then their number."""

import io
import json
import logging
from collections.abc import Generator
from typing import Any

import pytest

from slipway.runtime import log
from slipway.runtime.log import KINDS_MAX, LINES_MAX, OTHERS, WINDOW_S, LineLimit
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stream(clock: FakeClock) -> Generator[io.StringIO]:
    """The log output of a process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    log.setup("test", stream=written, now=clock.monotonic)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_first_lines_of_a_kind_are_admitted_and_the_others_counted(clock: FakeClock) -> None:
    """The first lines of a kind are written and the others counted; each kind has its own limit, and each minute starts
    anew."""
    limit = LineLimit(clock.monotonic)
    assert [limit.admits("a") for _ in range(LINES_MAX + 5)] == [True] * LINES_MAX + [False] * 5
    assert limit.admits("b")
    assert limit.ended() == []
    clock.advance(WINDOW_S)
    assert limit.ended() == [("a", 5)]
    assert limit.ended() == []
    assert limit.admits("a")


def test_kinds_without_end_count_together(clock: FakeClock) -> None:
    """Unlimited kinds count together: a client that causes a new kind with each line gets a limited number of lines,
    and no more memory."""
    limit = LineLimit(clock.monotonic, lines_max=1)
    admitted = sum(limit.admits(f"kind {number}") for number in range(10_000))
    assert admitted == KINDS_MAX + 1
    clock.advance(WINDOW_S)
    assert limit.ended() == [(OTHERS, 10_000 - KINDS_MAX - 1)]


def test_what_a_library_says_again_and_again_is_withheld_and_told(stream: io.StringIO, clock: FakeClock) -> None:
    """Repeated messages of a library are withheld and counted, also with other values or another end of the message;
    our own lines are not limited here."""
    library, own = logging.getLogger("a.library"), log.get_logger("slipway.test")
    for number in range(100):
        library.warning("Unsupported request %d", number)
        library.error("Fatal error\nprotocol: <object at 0x%x>" % number)  # noqa: UP031 - as asyncio does it
        own.warning("ours")
    said = [line["msg"].split()[0] for line in lines(stream)]
    assert (said.count("Unsupported"), said.count("Fatal"), said.count("ours")) == (LINES_MAX, LINES_MAX, 100)
    clock.advance(WINDOW_S)
    own.info("anything")
    told = [line for line in lines(stream) if "were not written" in line["msg"]]
    assert [(line["count"], line["like"]) for line in told] == [
        (100 - LINES_MAX, "a.library WARNING Unsupported request %d"),
        (100 - LINES_MAX, "a.library ERROR Fatal error"),
    ]
