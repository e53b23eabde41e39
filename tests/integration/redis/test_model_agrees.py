"""The in-memory model and real servers give the same answers to the same random operations on every port.

A slice of `python -m tests.models redis`, which explains how. A wrong model is found too.
"""

from collections.abc import Iterable

from slipway.streams.allgather import SILENCE_S, AllgatherState, GatherKey, Seat
from slipway.streams.memory_server import MemoryServer
from slipway.streams.pages import Id
from tests.models import redis as models
from tests.models.redis_servers import ModelServer, RealServer
from tests.support.clock import FakeClock
from tests.support.redis import an_id, server_process

SLICE = 3_000


def test_model_and_servers_agree() -> None:
    """Answers, errors and states are equal, on an emptied server, after a lost key or group, over time, and when
    refused."""
    report = models.differ(SLICE, 1, "")
    assert not report.differences, report.differences[0]
    assert report.operations == SLICE


class LosesAcknowledgements(MemoryServer):
    """Acknowledges only the first of the entries."""

    def acknowledge(self, key: str, group_name: str, entry_ids: Iterable[Id]) -> None:
        super().acknowledge(key, group_name, [*entry_ids][:1] if "{07}" not in key else [])


class WrongModel(ModelServer):
    """A model with a seeded bug, in one shard of sixteen."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.server = LosesAcknowledgements(clock)


async def test_a_wrong_model_is_detected_with_a_short_sequence() -> None:
    """The difference is found within a few hundred operations, and shown as a short sequence."""
    async with server_process() as server:
        redis_comparison = models.RedisComparison(server.url, model=WrongModel)
        for number in range(40):
            steps = models.steps_of(3, number, models.SEQUENCE)
            if await redis_comparison.play(steps) is not None:
                short = await redis_comparison.shorten(steps)
                break
        else:
            raise AssertionError("the mistake was not found")
        assert {step.name for step in short} >= {"send", "claim", "ack"}
        assert len(short) <= 12
        assert await redis_comparison.play(short) is not None


async def test_a_participant_that_returns_after_a_silence_is_counted_once() -> None:
    """A seat that was lost by its silent process is not counted when the peer joins again, on both sides."""
    clock, seat = FakeClock(), Seat(request_id="p", token="1")
    group = GatherKey(allocation=an_id(), attempt=1, group="start")
    async with server_process() as server:
        real = RealServer(server.url, clock)
        sides = [ModelServer(clock).connect().gatherings, real.connect().gatherings]
        for compared_server in sides:
            await compared_server.join(group, seat, peers=2, owner="killed")
        clock.advance(SILENCE_S + 1)
        for compared_server in sides:
            back = await compared_server.join(group, seat, peers=2, owner="other")
            assert (back.outcome, back.present) == (AllgatherState.OPEN, 1)
            last = await compared_server.join(group, Seat(request_id="q", token="2"), peers=2, owner="other")
            assert (last.outcome, last.present) == (AllgatherState.COMPLETED, 2)
        await real.aclose()
