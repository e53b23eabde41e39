"""The folder of our Python files that a pod gets, to run beside or instead of the user's program.

Owns which kind gets which files, their keys in the ConfigMap, the volume and the mount. Pure, except that the files are
read from the installed package; they are never imported. The pod runs the folder as `python -I <folder> <name>`, see
`crd/kinds.py`.

Invariant: every replica of one version produces the same bytes, so that the hash of an attempt's objects is the same.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from slipway.crd.kinds import LIBRARY_PATH
from slipway.model.lifecycle import Kind

VOLUME = "slipway-lib"
_KEY_PREFIX = "99__"
"""No file of a user has a key with this prefix."""
_MAIN = "__main__.py"
_BY_KIND: Mapping[Kind, tuple[str, ...]] = {
    Kind.SHELL: (_MAIN, "client.py", "home.py", "terminal.py", "sessions.py", "sockets.py"),
    Kind.NOTEBOOK: (_MAIN, "client.py", "home.py", "service_reporter.py", "signals.py"),
    Kind.TENSORBOARD: (_MAIN, "client.py", "home.py", "service_reporter.py", "signals.py"),
}


def entries_of(kind: Kind) -> dict[str, str]:
    """Return {key: text} for the ConfigMap; empty for a kind that needs no files of ours."""
    return {_KEY_PREFIX + name: _text(name) for name in _BY_KIND.get(kind, ())}


def volume_of(kind: Kind, configmap: str) -> list[dict[str, Any]]:
    """Return the volume for the pod; an empty list when the kind needs no files of ours."""
    if kind not in _BY_KIND:
        return []
    items = [{"key": _KEY_PREFIX + name, "path": _path(name)} for name in _BY_KIND[kind]]
    return [{"name": VOLUME, "configMap": {"name": configmap, "items": items}}]


def mount_of(kind: Kind) -> list[dict[str, Any]]:
    """Return the mount for the main container; an empty list when the kind needs no files of ours."""
    return [{"name": VOLUME, "mountPath": LIBRARY_PATH, "readOnly": True}] if kind in _BY_KIND else []


def _path(name: str) -> str:
    """Return the path of a file in the folder: in a package, except the file that starts it."""
    return name if name == _MAIN else f"slipway/inside/{name}"


@cache
def _text(name: str) -> str:
    return resources.files("slipway.inside").joinpath(name).read_text("utf-8")
