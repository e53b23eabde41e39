"""Reading a browser's trace, and the simulated slow line."""

import asyncio
from typing import Any

from bench.browser_tab import FRAME_MS, RTT_S, frames_of, slow_line

Json = dict[str, Any]
MAIN = {"pid": 7, "tid": 1}


def a_task(at_ms: float, took_ms: float, *, own_ms: float | None = None, thread: Json = MAIN) -> Json:
    """A task of a thread."""
    own = {} if own_ms is None else {"tdur": own_ms * 1_000}
    return {"ph": "X", "name": "RunTask", "ts": at_ms * 1_000, "dur": took_ms * 1_000, **own, **thread}


def mark() -> Json:
    return {"ph": "I", "name": "TimeStamp", "ts": 1, "args": {"data": {"message": "here"}}, **MAIN}


def test_a_frame_has_the_own_time_of_the_tasks_that_began_in_it() -> None:
    """A frame has the own time of the tasks that began in it: the thread's processor time, without waits; other threads
    do not count."""
    other = {"pid": 7, "tid": 2}
    tasks = [a_task(1, 30, own_ms=5), a_task(32, 1), a_task(2, 400, thread=other)]
    found = frames_of([mark(), *tasks], 0, 2 * FRAME_MS * 1_000, "here")
    assert (found.p95_ms, found.longest_ms) == (5, 5)
    assert found.wall_p95_ms == 30


def test_a_task_within_a_task_counts_once() -> None:
    """A nested task counts once, as part of the outer task."""
    found = frames_of([mark(), a_task(1, 10), a_task(2, 4)], 0, FRAME_MS * 1_000, "here")
    assert found.p95_ms == 10


async def test_the_slow_line_takes_a_round_trip_to_connect_and_one_to_answer() -> None:
    """The slow line needs one round trip to connect and one to answer: the first request is answered two round trips
    later, and the bytes are unchanged."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    async with server, slow_line(server.sockets[0].getsockname()[1]) as port:
        began_s = loop.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.read(100) == b"hello"
        assert loop.time() - began_s >= 2 * RTT_S
        writer.close()
