"""The objects that a piece of work leaves to the collector of cyclic garbage."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def cyclic_garbage() -> Generator[list[object]]:
    """A list that is filled at the end with the objects that the work inside left in cycles; the collector is off until
    then."""
    found: list[object] = []
    was_enabled, flags = gc.isenabled(), gc.get_debug()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()
