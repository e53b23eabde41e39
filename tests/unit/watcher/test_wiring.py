"""Settings and small parts of the watcher."""

import pytest

from slipway.errors import InvalidError
from slipway.runtime import settings
from slipway.watcher.ends import LifecyclePolicy
from slipway.watcher.settings import Settings


def test_settings_carry_the_policys_defaults() -> None:
    """The settings have the same defaults as the policies."""
    assert Settings().policy() == LifecyclePolicy()


def test_bad_settings_are_refused() -> None:
    """Bad settings are refused with the name of the variable."""
    with pytest.raises(InvalidError, match="SLIPWAY_SWEEP_INTERVAL_S"):
        settings.load(Settings, {"SLIPWAY_SWEEP_INTERVAL_S": "600"})
