"""The small files of an allocation: their entries in the ConfigMap and their mounts in a container.

Owns the keys of the ConfigMap, the projected volume and the mounts. Pure; knows no ranks and makes no calls.

Invariants: each file is at `/run/slipway/files/<path>` in every container, and at `<working directory>/<path>` in the
main container. The keys are a pure function of the paths, so that every attempt has the same keys.
"""

import base64
import posixpath
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from slipway.crd.v1alpha1 import FileSpec
from slipway.errors import FieldError, InvalidError, TooLargeError

FILES_PATH = "/run/slipway/files"
WORK_PATH = "/run/slipway/work"
FILES_VOLUME = "slipway-files"
WORK_VOLUME = "slipway-work"
FOLDER: dict[str, Any] = {"name": FILES_VOLUME, "mountPath": FILES_PATH, "readOnly": True}
"""The mount of the folder with all files."""
BUNDLE_BYTES_MAX = 1024 * 1024
"""The most that Kubernetes accepts in one ConfigMap (data and binaryData together)."""

_KEY = re.compile(r"^(?!\d\d__)[-._a-zA-Z0-9]{1,253}$")
_NOT_KEY = re.compile(r"[^-._a-zA-Z0-9]")


class ContextBundle(msgspec.Struct, frozen=True):
    """The contents of a ConfigMap, and the path of the file of each key."""

    data: dict[str, str]
    binary: dict[str, str]
    items: list[dict[str, Any]]


def bundle_of(files: Sequence[FileSpec]) -> ContextBundle:
    """Return the ConfigMap contents for `files`.

    Raises:
        InvalidError: a path that leaves the directory, a path given twice, or content that is not base64.
        TooLargeError: larger than a ConfigMap may be.
    """
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    items: list[dict[str, Any]] = []
    size = 0
    seen: set[str] = set()
    for index, file in enumerate(files):
        path = _checked(file.path, index)
        if path in seen:
            raise _invalid(index, "path", f"{path!r} is given twice")
        seen.add(path)
        key = _key(path, index)
        size += len(key) + _put(file, index, key, data, binary)
        items.append({"key": key, "path": path, "mode": file.mode})
    if size > BUNDLE_BYTES_MAX:
        raise TooLargeError(f"the files have {size} bytes; a ConfigMap holds at most {BUNDLE_BYTES_MAX}")
    return ContextBundle(data, binary, items)


def volumes(configmap: str, bundle: ContextBundle, *, needs_work: bool) -> list[dict[str, Any]]:
    """Return the volumes of a pod for its files; an empty list when it has no files."""
    if not bundle.items:
        return []
    made: list[dict[str, Any]] = [{"name": FILES_VOLUME, "configMap": {"name": configmap, "items": bundle.items}}]
    if needs_work:
        made.append({"name": WORK_VOLUME, "emptyDir": {}})
    return made


def mounts(bundle: ContextBundle, *, working_dir: str, needs_work: bool) -> list[dict[str, Any]]:
    """Return the mounts of the main container: one folder with all files, and each file at its path below the working
    directory."""
    if not bundle.items:
        return []
    made: list[dict[str, Any]] = []
    if needs_work:
        made.append({"name": WORK_VOLUME, "mountPath": WORK_PATH})
    made.append(FOLDER)
    for item in bundle.items:
        path = str(item["path"])
        target = posixpath.join(working_dir, path)
        made.append({"name": FILES_VOLUME, "mountPath": target, "subPath": path, "readOnly": True})
    return made


def _checked(path: str, index: int) -> str:
    normal = posixpath.normpath(path)
    if path.startswith("/") or normal in ("", ".") or ".." in path.split("/") or ":" in path:
        raise _invalid(index, "path", f"{path!r} must be a plain path below the working directory")
    return normal


def _key(path: str, index: int) -> str:
    """Return the path when it is a valid key; else its last part with invalid characters replaced, and the index for
    uniqueness."""
    if _KEY.match(path) and not path.startswith(".."):
        return path
    name = _NOT_KEY.sub("_", posixpath.basename(path))[:200]
    return f"{index:02d}__{name}"


def _put(file: FileSpec, index: int, key: str, data: dict[str, str], binary: dict[str, str]) -> int:
    """Store one file and return its size in bytes."""
    if file.encoding == "utf8":
        data[key] = file.content
        return len(file.content.encode())
    try:
        size = len(base64.b64decode(file.content, validate=True))
    except ValueError as error:
        raise _invalid(index, "content", "is not base64") from error
    binary[key] = file.content
    return size


def _invalid(index: int, field: str, detail: str) -> InvalidError:
    return InvalidError(
        f"files[{index}].{field}: {detail}", fields=(FieldError(f"/spec/files/{index}/{field}", detail),)
    )
