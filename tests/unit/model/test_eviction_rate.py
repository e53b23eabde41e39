"""Eviction limits as token buckets: how many evictions are left, when the next is allowed, and what is stored."""

from slipway.model.eviction_rate import EvictionLevel, EvictionLimit, charged

TWO_AN_HOUR = EvictionLimit(count=2, per_s=3600.0, burst=3)


def after(*times: float, limit: EvictionLimit = TWO_AN_HOUR) -> tuple[EvictionLevel, ...]:
    """The stored levels after an eviction from queue `q` at each of these times."""
    levels: tuple[EvictionLevel, ...] = ()
    for at in times:
        levels = charged(levels, {"q": limit}, {"q": 1}, at)
    return levels


def test_a_bucket_holds_its_burst_and_fills_over_time() -> None:
    """A bucket holds its burst and fills over time: here three at once, then one more every half hour, never above
    three."""
    (level,) = after(0.0, 0.0, 0.0)
    assert [TWO_AN_HOUR.left(level, at) for at in (0.0, 1799.0, 1800.0, 3600.0, 5400.0, 99999.0)] == [0, 0, 1, 2, 3, 3]


def test_the_time_of_the_next_is_the_first_at_which_one_more_is_left() -> None:
    """The time of the next eviction is the first at which one more is left, to the millisecond; a full bucket has no
    such time."""
    (level,) = after(100.0, 100.0, 100.0)
    at = TWO_AN_HOUR.next_at(level, 200.0)
    assert at == 1900.0
    assert (TWO_AN_HOUR.left(level, at - 0.001), TWO_AN_HOUR.left(level, at)) == (0, 1)
    assert TWO_AN_HOUR.next_at(level, 99999.0) == 0.0
    assert TWO_AN_HOUR.next_at(None, 0.0) == 0.0


def test_full_buckets_and_those_without_a_limit_are_not_kept() -> None:
    """Full buckets, and queues without a limit, are not stored, so that the ledger contains only relevant levels."""
    levels = after(0.0)
    assert charged(levels, {"q": TWO_AN_HOUR}, {}, 10.0) == levels
    assert charged(levels, {"q": TWO_AN_HOUR}, {}, 3600.0) == ()
    assert charged(levels, {}, {}, 10.0) == ()


def test_a_clock_that_is_behind_refills_nothing_twice() -> None:
    """A clock that is behind, such as that of another scheduler, refills nothing twice: the stored time stays."""
    (level,) = after(1000.0, 990.0)
    assert level.at_ms == 1_000_000
    assert TWO_AN_HOUR.left(level, 1000.0) == 1


def test_a_changed_limit_takes_over_what_was_used() -> None:
    """A changed limit keeps what was used, in its own period, but at most its bucket, so that a smaller bucket does not
    wait for the larger one."""
    (level,) = after(0.0, 0.0, 0.0)
    faster = EvictionLimit(count=2, per_s=60.0, burst=3)
    assert [faster.left(level, at) for at in (0.0, 30.0, 60.0)] == [0, 1, 2]
    smaller = EvictionLimit(count=2, per_s=3600.0, burst=1)
    assert [smaller.left(level, at) for at in (0.0, 1800.0)] == [0, 1]
