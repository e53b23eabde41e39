"""When the reader leaves lines of a log out: only where the node would remove them unread, and before it does."""

import pytest

from slipway.model.times import format_time
from slipway.watcher.logfollower import LAG_OVER_S, ReadLag
from tests.support.clock import FakeClock

MB = 1024 * 1024
NODE_KEEPS = 10 * MB
"""The number of bytes of a log that a node keeps at least; it removes older ones."""
STEP_S = 0.1
SKIPS_AT = 40 * MB
"""The rate at which lines are read without being stored, in bytes per second."""


class FloodingRank:
    """A rank that prints, a node that keeps it, and a reader that stores what it reads unless it lags too much."""

    def __init__(
        self, *, stores_at: float, skew_s: float = 0.0, begins_after_s: float = 0.3, keeps: int = NODE_KEEPS
    ) -> None:
        self.clock = FakeClock()
        self.lag = ReadLag(self.clock, keeps)
        self.left_out = self.most_waiting = 0.0
        self._stores_at, self._skew_s = stores_at, skew_s
        self._began = self.clock.now()
        self._written: list[tuple[float, float]] = []
        """(time, number of bytes written by then)"""
        self._total = self._read = 0.0
        self._reads_from = self._began + begins_after_s

    @property
    def waiting(self) -> float:
        """The number of bytes that are on the node and were not read."""
        return self._total - self._read

    def print_at(self, rate: float, for_s: float) -> None:
        """Write `rate` bytes per second for `for_s` seconds, while the reader reads."""
        for _ in range(round(for_s / STEP_S)):
            self.clock.advance(STEP_S)
            self._total += rate * STEP_S
            self._written.append((self.clock.now(), self._total))
            self._take()
            self.most_waiting = max(self.most_waiting, self.waiting)

    def _take(self) -> None:
        if self.clock.now() < self._reads_from or self.waiting <= 0:
            return
        newest = self._newest()
        is_too_much = bool(newest) and self.lag.is_too_much(newest)
        found = min(self.waiting, (SKIPS_AT if is_too_much else self._stores_at) * STEP_S)
        self._read += found
        self.left_out += found if is_too_much else 0.0
        self.lag.add(round(found), self._newest())

    def _newest(self) -> str:
        """The time of the newest line that was read, by the node's clock."""
        at = next((when for when, total in self._written if total >= self._read > 0), None)
        return "" if at is None else format_time(at + self._skew_s, "microseconds")


@pytest.mark.parametrize("skew_s", [-3600.0, -0.7, 0.0, 30.0])
@pytest.mark.parametrize("rate", [1.5 * MB, 2 * MB, 3 * MB])
def test_no_line_is_rotated_away_unread(rate: float, skew_s: float) -> None:
    """A log that is written faster than it is stored never waits for longer than its node keeps it, whatever the
    difference between the clocks of the node and the reader."""
    flooding = FloodingRank(stores_at=1 * MB, skew_s=skew_s)
    flooding.print_at(rate, for_s=60)
    assert flooding.left_out > 0
    assert flooding.most_waiting < NODE_KEEPS


def test_a_larger_log_file_on_the_node_lets_more_lines_be_stored() -> None:
    """A flood that loses lines with a kubelet's usual file sizes is stored whole with larger files, and no line is
    removed unread."""
    usual, large = FloodingRank(stores_at=4 * MB), FloodingRank(stores_at=4 * MB, keeps=120 * MB)
    for flooding in (usual, large):
        flooding.print_at(16 * MB, for_s=1)
        flooding.print_at(0, for_s=60)
    assert usual.left_out > 0
    assert (large.left_out, large.waiting) == (0, 0)
    large.print_at(16 * MB, for_s=60)
    assert large.left_out > 0
    assert large.most_waiting < 120 * MB


@pytest.mark.parametrize("skew_s", [-3600.0, 0.0, 3600.0])
def test_what_can_be_stored_is_stored(skew_s: float) -> None:
    """No line is left out of a log that is stored as fast as it is written, however late its first line was read."""
    flooding = FloodingRank(stores_at=2 * MB, skew_s=skew_s, begins_after_s=3.0)
    flooding.print_at(1 * MB, for_s=120)
    assert flooding.left_out == 0


def test_a_short_burst_is_stored() -> None:
    """A burst of a few seconds at twice the rate is stored whole: fewer bytes wait than the node keeps, so all are read
    in time."""
    flooding = FloodingRank(stores_at=1 * MB)
    flooding.print_at(0.5 * MB, for_s=10)
    flooding.print_at(2 * MB, for_s=2)
    flooding.print_at(0, for_s=20)
    assert (flooding.left_out, flooding.waiting) == (0, 0)


def test_lines_are_stored_again_once_the_reader_has_caught_up() -> None:
    """The gap ends at the newest line, not later: the rate has fallen, and no lines wait any more."""
    flooding = FloodingRank(stores_at=1 * MB)
    flooding.print_at(4 * MB, for_s=20)
    left_out, waiting = flooding.left_out, flooding.waiting
    flooding.print_at(0.5 * MB, for_s=30)
    assert flooding.left_out - left_out <= waiting + (0.5 * MB) * (LAG_OVER_S + STEP_S)
    assert flooding.waiting < 1 * MB * STEP_S


def test_a_log_without_times_never_lags() -> None:
    """A log without times has no known lag, so none of its lines are left out."""
    lag = ReadLag(clock := FakeClock())
    lag.add(100 * MB, "")
    clock.advance(100)
    assert not lag.is_too_much("")
