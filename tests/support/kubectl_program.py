"""Finds a real kubectl: on PATH, else the one that was built with the conformance cluster."""

import os
import shutil
from pathlib import Path


def find_kubectl() -> str | None:
    """Return the path of kubectl; None when this machine has none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway/conformance"
    built = sorted(cache.glob("*/kubectl"), key=lambda path: path.stat().st_mtime)[-1:]
    return shutil.which("kubectl") or next(map(str, built), None)
