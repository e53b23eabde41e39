"""What only the collector of cyclic garbage would free, of a piece of work."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def cyclic_garbage() -> Generator[list[object]]:
    """Filled, at the end, with what the work inside left in cycles; the collector does not look meanwhile."""
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
