"""The collector of cyclic garbage during large reads."""

import gc

import pytest

from slipway.runtime import memory


def test_garbage_collection_is_off_while_a_load_runs() -> None:
    """The collector is off during a load; with two parallel LISTs it is on again when the last has ended, also by an
    error."""
    with memory.loading():
        with pytest.raises(ValueError, match="a LIST"), memory.loading():
            raise ValueError("a LIST that failed")
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_loaded_is_not_collected() -> None:
    """The first collection after a load does not scan it; that would take as long as part of the load."""
    gc.unfreeze()
    with memory.loading():
        loaded = [[number] for number in range(1000)]
    assert not any(each is loaded for each in gc.get_objects())
    gc.unfreeze()
    assert any(each is loaded for each in gc.get_objects())


def test_a_disabled_garbage_collector_stays_disabled() -> None:
    """A process that runs without a collector continues without one. A simulation does not collect, because the moment
    would depend on everything that ran before."""
    gc.disable()
    try:
        with memory.loading(), memory.loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
