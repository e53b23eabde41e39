"""Durations as users read and type them."""

import pytest

from slipway.model.times import format_at_most


@pytest.mark.parametrize(
    ("seconds", "text"), [(3594.47, "59m"), (600, "10m"), (12000, "3h20m"), (95.9, "1m35s"), (59.2, "59s")]
)
def test_a_limit_for_people_is_never_longer_than_what_helps(seconds: float, text: str) -> None:
    """A suggested limit is rounded down to minutes, so that a user who sets it a moment later still gets the promised
    effect."""
    assert format_at_most(seconds) == text
