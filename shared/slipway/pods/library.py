"""What a pod gets of ours to run beside or instead of the user's program: a folder of plain Python files.

Owns which kinds get which files, their keys in the ConfigMap, the volume and the mount. Pure: the files are read from
the installed package, never imported. Their folder is started as `python -I <folder> <name>`, see `crd/kinds.py`.

Invariant: every replica of one version makes the same bytes, so that the hash of an attempt's objects is the same.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from slipway.crd.kinds import LIBRARY_PATH
from slipway.model.lifecycle import Kind

VOLUME = "slipway-lib"
_KEY_PREFIX = "99__"
"""No file of a user has a key that begins like this."""
_MAIN = "__main__.py"
_BY_KIND: Mapping[Kind, tuple[str, ...]] = {
    Kind.SHELL: (_MAIN, "client.py", "home.py", "terminal.py", "sessions.py", "sockets.py"),
    Kind.NOTEBOOK: (_MAIN, "client.py", "home.py", "beside.py", "signals.py"),
    Kind.TENSORBOARD: (_MAIN, "client.py", "home.py", "beside.py", "signals.py"),
}


def entries_of(kind: Kind) -> dict[str, str]:
    """{key: text} for the ConfigMap; empty for a kind that needs nothing of ours."""
    return {_KEY_PREFIX + name: _text(name) for name in _BY_KIND.get(kind, ())}


def volume_of(kind: Kind, configmap: str) -> list[dict[str, Any]]:
    """The volume of a pod, if it has one."""
    if kind not in _BY_KIND:
        return []
    items = [{"key": _KEY_PREFIX + name, "path": _path(name)} for name in _BY_KIND[kind]]
    return [{"name": VOLUME, "configMap": {"name": configmap, "items": items}}]


def mount_of(kind: Kind) -> list[dict[str, Any]]:
    """The mount of the main container, if it has one."""
    return [{"name": VOLUME, "mountPath": LIBRARY_PATH, "readOnly": True}] if kind in _BY_KIND else []


def _path(name: str) -> str:
    """Where a file is in the folder: a package, but for what starts it."""
    return name if name == _MAIN else f"slipway/inside/{name}"


@cache
def _text(name: str) -> str:
    return resources.files("slipway.inside").joinpath(name).read_text("utf-8")
