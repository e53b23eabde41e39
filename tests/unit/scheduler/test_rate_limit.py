"""A rate limit of writes."""

from slipway.scheduler.rate_limit import RateLimit


def test_it_fills_up_again_to_the_burst_and_no_further() -> None:
    """The allowance never exceeds the burst, however long nothing was written."""
    pace = RateLimit(per_s=2.0, burst=3)
    assert pace.left(100.0) == 3
    pace.spend(3)
    assert pace.left(100.0) == 0
    assert pace.wait_s() == 0.5
    assert pace.left(101.0) == 2
    assert pace.left(1_000.0) == 3
