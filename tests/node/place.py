"""A folder for one cluster with real nodes, and what must be gone when it ends.

Owns where that folder is, and the search for what was left. What runs in it is the caller's, in the namespaces that
`tests.node.programs.spaces` makes.
"""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.conformance.cluster import binaries
from tests.node.nodes import clean, end_groups, leftovers, machine_files


class Place(msgspec.Struct):
    """The folder, and after the end what was left on the machine."""

    folder: Path
    left: list[str] = []


@contextmanager
def a_place() -> Generator[Place]:
    """At the end what still runs there is ended, and the folder is removed."""
    # Images are linked from the cache, not copied: both have to be on one file system.
    parent = binaries.cache() / "nodes"
    parent.mkdir(parents=True, exist_ok=True)
    place = Place(Path(tempfile.mkdtemp(dir=parent)))
    before = machine_files()
    try:
        yield place
    finally:
        end_groups(place.folder)
        clean(place.folder)
        place.left = [*leftovers(place.folder), *sorted(machine_files() - before)]
