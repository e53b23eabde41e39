"""A folder for one cluster with real nodes, and what must be gone when it ends.

Owns the path of that folder, and the search for leftovers. The caller runs its programs there, in the namespaces that
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
    """The folder, and after the end the leftovers on the machine."""

    folder: Path
    left: list[str] = []


@contextmanager
def a_place() -> Generator[Place]:
    """Make a folder; at the end stop what still runs there, and remove the folder."""
    # Images are hard links into the cache, not copies, so both must be on one file system.
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
