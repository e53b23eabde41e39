"""Moves the memory of a process that forks often into huge pages, because each fork copies its page table and each exit
clears it.

Owns one call to the kernel (`madvise`, MADV_COLLAPSE: Linux 6.1 and later). It has no effect that a program can see.
Where the kernel lacks it, nothing is done. Source: man 2 madvise.
"""

import ctypes
from contextlib import suppress
from pathlib import Path

HUGE_BYTES = 1 << 21
_MADV_COLLAPSE = 25
_MAPS = Path("/proc/self/maps")


def collapse() -> int:
    """Collapse this process's written memory into huge pages; return their number."""
    count = 0
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for first, end in _written():
            for at in range(-(-first // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES):
                count += madvise(at, HUGE_BYTES, _MADV_COLLAPSE) == 0
    return count


def _written() -> list[tuple[int, int]]:
    """(first address, end) of each writable range that belongs to no file."""
    found: list[tuple[int, int]] = []
    for line in _MAPS.read_text().splitlines():
        span, mode, _offset, _device, inode, *_ = line.split()
        if mode.startswith("rw") and inode == "0":
            first, _, end = span.partition("-")
            found.append((int(first, 16), int(end, 16)))
    return found
