"""The collector of cyclic garbage, kept away from data that forms no cycles.

Owns when it does not look. What a service reads of a cluster is values in tables: millions of objects and not one
cycle, all of which every look at the old generation would go through.
"""

import contextlib
import gc
from collections.abc import Generator

_THRESHOLDS = (20_000, 20, 20)
_loading: list[bool] = []
"""One for each that loads: whether there were collections when it began."""


@contextlib.contextmanager
def loading() -> Generator[None]:
    """While much is read that will stay: no collection, which would look at all of it again and again.

    Where nobody collects anyway, as in the simulation, nobody does so afterwards.
    """
    _loading.append(gc.isenabled() or any(_loading))
    gc.disable()
    try:
        yield
    finally:
        was_enabled = _loading.pop()
        if was_enabled and not _loading:
            gc.enable()


def settle() -> None:
    """What is there now stays for long: no collection looks at it any more. It is still freed when nobody has it."""
    gc.freeze()


def settle_process() -> None:
    """Take what start-up made, and most of what comes and goes with each message, out of the collector's way.

    Our objects form few cycles: the default of a look at every 700 new ones costs a tenth of a busy process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
