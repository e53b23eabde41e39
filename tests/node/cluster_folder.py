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


class ClusterFolder(msgspec.Struct):
    """The folder, and after the end the leftovers on the machine."""

    folder: Path
    left: list[str] = []


@contextmanager
def a_cluster_folder() -> Generator[ClusterFolder]:
    """Make a folder; at the end stop what still runs there, and remove the folder."""
    # Images are hard links into the cache, not copies, so both must be on one file system.
    parent = binaries.cache() / "nodes"
    parent.mkdir(parents=True, exist_ok=True)
    cluster_folder = ClusterFolder(Path(tempfile.mkdtemp(dir=parent)))
    before = machine_files()
    try:
        yield cluster_folder
    finally:
        end_groups(cluster_folder.folder)
        clean(cluster_folder.folder)
        cluster_folder.left = [*leftovers(cluster_folder.folder), *sorted(machine_files() - before)]
