"""What a result file says of how it came to be, and what memory over time is compared with."""

import pytest
from bench.runner import command_of
from bench.soak import SAMPLE_S, halves


def test_a_shorter_run_says_so_in_its_command() -> None:
    """Whoever runs the command again gets the same work; other variables are none of its business."""
    env = {"SLIPWAY_BENCH_PODS": "64", "SLIPWAY_BENCH_NODES": "10", "HOME": "/root", "SLIPWAY_LISTEN": "x"}
    assert command_of("growth", env) == "SLIPWAY_BENCH_NODES=10 SLIPWAY_BENCH_PODS=64 python -m bench --only growth"
    assert command_of("growth", {}) == "python -m bench --only growth"


def test_the_warm_up_is_in_neither_half() -> None:
    """A fifth is left out, or so many seconds where that is more; the rest is cut in the middle."""
    samples = [90.0, 90.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert halves(samples, warm_up_s=0.0) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert halves(samples, warm_up_s=4 * SAMPLE_S) == ([3, 4, 5], [6, 7, 8])


def test_too_short_a_run_is_no_answer() -> None:
    """Nothing is said of memory over time from one sample."""
    with pytest.raises(ValueError, match="too few"):
        halves([1.0])
