"""How tests wait: they poll often at first and less often later, and are never late by much."""

from tests.support.wait import POLL_MAX_S, POLL_S, POLL_SHARE, pause_s


def test_a_long_wait_asks_less_often_and_is_late_by_a_share_of_it_at_most() -> None:
    """A wait of sixty seconds polls less than an eighth as often as one with equal pauses."""
    now, asked = 0.0, 0
    while now < 60.0:
        pause = pause_s(now)
        assert POLL_S <= pause <= max(POLL_S, now * POLL_SHARE)
        now, asked = now + pause, asked + 1
    assert pause_s(now) == POLL_MAX_S
    assert asked < 60.0 / POLL_S / 8
