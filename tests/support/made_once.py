"""Files that take long to make and depend on other files only: made once, and cached by their sources."""

import hashlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.conformance.cluster import binaries


def made_once(name: str, sources: Sequence[Path], make: Callable[[Path, Path], None]) -> Path:
    """The file from the cache, or a new one, written by `make(an empty folder, file)`; one process at a time on a
    machine.

    `sources` are files and folders. A change of them or of the Python version makes a new file. Older files of that
    name are deleted.
    """
    digest = hashlib.sha256(sys.version.encode())
    for source in sources:
        files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(source)).encode() + file.read_bytes())
    made = binaries.cache() / "images" / f"{name}-{digest.hexdigest()[:16]}.tar"
    with binaries.locked(made.parent / f"{name}.lock"):
        if made.exists():
            return made
        for older in made.parent.glob(f"{name}-*.tar"):
            older.unlink()
        with tempfile.TemporaryDirectory() as folder:
            part = made.with_suffix(".part")
            make(Path(folder), part)
            part.rename(made)
    return made
