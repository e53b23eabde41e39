"""The collector of cyclic garbage, kept away from data that forms no cycles.

Owns when it does not look. What a service reads of a cluster is values in tables: millions of objects and not one
cycle, all of which every look at the old generation would go through.
"""

import contextlib
import gc
from collections.abc import Generator

_loading: list[None] = []


@contextlib.contextmanager
def loading() -> Generator[None]:
    """While much is read that will stay: no collection, which would look at all of it again and again."""
    _loading.append(None)
    gc.disable()
    try:
        yield
    finally:
        _loading.pop()
        if not _loading:
            gc.enable()


def settle() -> None:
    """What is there now stays for long: no collection looks at it any more. It is still freed when nobody has it."""
    gc.freeze()
