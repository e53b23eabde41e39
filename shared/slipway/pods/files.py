"""The small files of an allocation: how they stand in the ConfigMap and appear in a container.

Owns the keys of the ConfigMap, the projected volume and the mounts. Pure; knows no ranks and no calls.

Invariants: each file is at `/run/slipway/files/<path>` in every container of ours and, for the main container, at
`<working directory>/<path>` too; the keys are a pure function of the paths, so that every attempt has the same.
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
BUNDLE_BYTES_MAX = 1024 * 1024
"""What Kubernetes takes in one ConfigMap (data and binaryData together)."""

_KEY = re.compile(r"^(?!\d\d__)[-._a-zA-Z0-9]{1,253}$")
_NOT_KEY = re.compile(r"[^-._a-zA-Z0-9]")


class ContextBundle(msgspec.Struct, frozen=True):
    """The contents of a ConfigMap, and which key is which file."""

    data: dict[str, str]
    binary: dict[str, str]
    items: list[dict[str, Any]]


def bundle_of(files: Sequence[FileSpec]) -> ContextBundle:
    """The ConfigMap contents of `files`.

    Raises:
        InvalidError: a path that leaves the directory, a path given twice, or content that is not base64.
        TooLargeError: more than a ConfigMap holds.
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
    """The volumes of a pod that has files; none without."""
    if not bundle.items:
        return []
    made: list[dict[str, Any]] = [{"name": FILES_VOLUME, "configMap": {"name": configmap, "items": bundle.items}}]
    if needs_work:
        made.append({"name": WORK_VOLUME, "emptyDir": {}})
    return made


def mounts(bundle: ContextBundle, *, working_dir: str, needs_work: bool) -> list[dict[str, Any]]:
    """The mounts of the main container: all files in one place, and each at its path below the working directory."""
    if not bundle.items:
        return []
    made: list[dict[str, Any]] = []
    if needs_work:
        made.append({"name": WORK_VOLUME, "mountPath": WORK_PATH})
    made.append({"name": FILES_VOLUME, "mountPath": FILES_PATH, "readOnly": True})
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
    """The path itself where it can be a key, else its last part made fit, with the index to keep it apart."""
    if _KEY.match(path) and not path.startswith(".."):
        return path
    name = _NOT_KEY.sub("_", posixpath.basename(path))[:200]
    return f"{index:02d}__{name}"


def _put(file: FileSpec, index: int, key: str, data: dict[str, str], binary: dict[str, str]) -> int:
    """Stores one file and answers its size in bytes."""
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
