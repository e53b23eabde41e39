"""Kueue's tests as this bench runs them: sizes, arrival times, and the lower bound of the duration."""

import pytest
from bench.cohorts import arrivals, work_of


def test_the_whole_of_both_is_as_large_as_theirs() -> None:
    """Both tests have Kueue's sizes: 15,000 and 50,000 pieces; the work alone takes 66 s and 4 s on the quota of all
    queues."""
    baseline, large = work_of("W7a", 1), work_of("W7b", 1)
    assert (baseline.total, baseline.cpus, round(baseline.bound_s)) == (15_000, 600, 66)
    assert (large.total, large.cpus, round(large.bound_s)) == (50_000, 20_000, 4)
    assert (baseline.kueue_s, large.kueue_s) == (351.0, 1179.0)


@pytest.mark.parametrize("id_", ["W7a", "W7b"])
def test_a_part_is_compared_with_that_part_of_the_time(id_: str) -> None:
    """A part of the test, such as a tenth of the pieces, is compared with that part of Kueue's time."""
    whole, tenth = work_of(id_, 1), work_of(id_, 0.1)
    assert tenth.total == whole.total // 10
    assert tenth.kueue_s == pytest.approx(whole.kueue_s / 10)


def test_pieces_arrive_in_order_and_on_time() -> None:
    """Each class of each queue sends one piece per interval, from the beginning."""
    work = work_of("W7a", 0.1)
    found = arrivals(work)
    times = [due_s for due_s, _, _ in found]
    assert len(found) == work.total
    assert times == sorted(times)
    medium = [due_s for due_s, queue, piece in found if queue == "queue-4-5" and piece.name == "medium"]
    assert medium == pytest.approx([0.5 * number for number in range(10)])


def test_the_bound_waits_for_the_last_arrival() -> None:
    """With little work the last arrival decides the bound."""
    work = work_of("W7a", 0.002)
    assert work.total == 30 * 3
    assert work.bound_s == pytest.approx((0.2 + 5 * 0.5 + 20 * 1.0) / 20)
