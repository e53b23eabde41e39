"""Settings of the cyclic garbage collector, so that it does not scan data without cycles.

This module decides when the collector does not run. A service reads a cluster into tables of values: millions of
objects without a single cycle. Every collection of the old generation would scan all of them.
"""

import contextlib
import gc
from collections.abc import Generator

_THRESHOLDS = (20_000, 20, 20)
_loading: list[bool] = []
"""One entry per active `loading`: whether the collector was enabled when it began."""


@contextlib.contextmanager
def loading() -> Generator[None]:
    """Disable collections while the caller loads much long-lived data, because each collection would scan all of it
    again. What was loaded is excluded from later collections too: the first of them would begin at once.

    Where the collector was disabled before, as in the simulation, it stays disabled afterwards.
    """
    _loading.append(gc.isenabled() or any(_loading))
    gc.disable()
    try:
        yield
    finally:
        was_enabled = _loading.pop()
        if was_enabled and not _loading:
            gc.freeze()
            gc.enable()


def settle() -> None:
    """Exclude all existing objects from later collections, because they live for long. Reference counting still frees
    them.
    """
    gc.freeze()


def settle_process() -> None:
    """Exclude the objects made at start-up from collections, and make collections rarer.

    Our objects form few cycles. The default threshold, one collection per 700 new objects, costs a tenth of a busy
    process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
