"""The bench of schedules: its work, its conservative backfill, and the page that shows what was measured."""

import math
from collections.abc import Sequence

import pytest
from bench.conservative import conservative
from bench.quality import GPUS, LIMITS_S, NODES, POLICIES, WORK, Piece, one_queue, work
from bench.quality_page import BEGIN, END, ESTIMATES_BEGIN, ESTIMATES_END, PAGE, interval, stored, whole


def piece(name: str, submit: float, duration: float, limit: float, *, ranks: int = 1, gpus: int = GPUS) -> Piece:
    return Piece(name=name, user=0, submit=submit, duration=duration, limit=limit, ranks=ranks, gpus=gpus)


def in_use(pieces: Sequence[Piece], starts: dict[str, float], at: float) -> int:
    """GPUs in use at a moment."""
    running = (each for each in pieces if starts[each.name] <= at < starts[each.name] + each.duration)
    return sum(each.ranks * each.gpus for each in running)


def test_the_page_says_what_was_measured() -> None:
    """The page has the measured figures; `python -m bench.quality_page` updates it after a run."""
    page = PAGE.read_text("utf-8")
    assert [page.count(mark) for mark in (BEGIN, END, ESTIMATES_BEGIN, ESTIMATES_END)] == [1, 1, 1, 1]
    assert whole(page, stored()) == page


def test_a_seed_is_one_piece_of_work() -> None:
    """A seed determines the work, and another seed makes other work; each piece fits the pool and ends within its
    limit."""
    pieces = work(3)
    assert pieces == work(3)
    assert pieces != work(4)
    assert (len(pieces), pieces[0].submit) == (WORK, 0)
    assert [each.submit for each in pieces] == sorted(each.submit for each in pieces)
    for each in pieces:
        assert each.ranks <= NODES
        assert 1 <= each.gpus <= GPUS
        assert each.ranks == 1 or each.gpus == GPUS, "what is larger than a node asks for whole nodes"
        assert each.duration <= each.limit
        assert each.limit in LIMITS_S


def test_run_times_are_heavy_tailed() -> None:
    """A tenth of the work has most of the GPU time."""
    areas = sorted((each.duration * each.ranks * each.gpus for each in work(1)), reverse=True)
    assert sum(areas[: len(areas) // 10]) > 0.5 * sum(areas)


def test_conservative_backfill_delays_nobody_who_came_before() -> None:
    """`small` ends before `large` starts by the limits, so it passes; `long` would delay it, so it does not."""
    pieces = [
        piece("first", 0, 100, 100),
        piece("large", 1, 50, 50, ranks=2),
        piece("long", 2, 500, 500),
        piece("small", 3, 60, 90),
    ]
    assert conservative(pieces, 2, GPUS) == {"first": 0, "large": 100, "long": 150, "small": 3}


def test_reservations_move_up_when_work_ends_early() -> None:
    """When work ends early all reservations move up, in the order of arrival."""
    pieces = [piece("first", 0, 10, 100), piece("second", 1, 50, 50, ranks=2), piece("third", 2, 50, 150)]
    assert conservative(pieces, 2, GPUS) == {"first": 0, "second": 10, "third": 60}


def test_each_has_a_reservation() -> None:
    """Each waiting piece has a reservation: `third` may not delay `second`, although `second` is not the head. EASY
    would let `third` pass."""
    pieces = [
        piece("runs", 0, 100, 100),
        piece("head", 1, 100, 100, ranks=2),
        piece("second", 2, 100, 100, ranks=2),
        piece("third", 3, 150, 250),
    ]
    assert conservative(pieces, 2, GPUS) == {"runs": 0, "head": 100, "second": 200, "third": 300}


@pytest.mark.parametrize("seed", [1, 2])
def test_conservative_backfill_never_uses_more_than_there_is(seed: int) -> None:
    """Conservative backfill never uses more than the pool has, and starts nothing before its arrival."""
    pieces = work(seed)[:150]
    starts = conservative(pieces, NODES, GPUS)
    assert starts.keys() == {each.name for each in pieces}
    assert all(starts[each.name] >= each.submit for each in pieces)
    assert max(in_use(pieces, starts, at) for at in starts.values()) <= NODES * GPUS


def test_a_policy_plays_all_work() -> None:
    """A policy runs the whole work to its end, in a scenario of the product."""
    figures = one_queue("Backfill")(work(5)[:40])
    assert (figures["ended"], figures["pending"]) == (40, 0)
    assert set(POLICIES) >= {"fifo", "easy", "conservative"}


def test_the_interval_of_a_mean() -> None:
    """Student's t with n - 1 degrees of freedom: of 1..10 the mean is 5.5 and t is 2.262."""
    mean, half = interval([float(number) for number in range(1, 11)])
    assert mean == 5.5
    assert half == pytest.approx(2.262 * 3.02765 / math.sqrt(10), rel=1e-4)
    assert interval([2.0, 2.0])[1] == 0
    assert interval([2.0])[1] == math.inf
