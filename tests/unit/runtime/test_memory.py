"""The collector of cyclic garbage while much is read."""

import gc

import pytest

from slipway.runtime import memory


def test_nothing_is_collected_while_anybody_loads() -> None:
    """Two LISTs side by side: the collector is back when the last of them has ended, also by an error."""
    with memory.loading():
        with pytest.raises(ValueError, match="a LIST"), memory.loading():
            raise ValueError("a LIST that failed")
        assert not gc.isenabled()
    assert gc.isenabled()


def test_who_does_without_a_collector_goes_on_without() -> None:
    """A simulation collects nothing, because when it does depends on all that ran before."""
    gc.disable()
    try:
        with memory.loading(), memory.loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
