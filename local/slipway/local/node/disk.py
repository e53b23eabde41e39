"""The folder of a pod, which contains the files that its containers see.

Owns the places of a pod's volumes, roots, logs and marker files, and the filling and mounting of volumes. Also owns the
translation of a container's absolute paths into paths below its root. A local node uses no mount namespaces: a mounted
path, and the working directory, exist below the container's root. The container's command and environment are rewritten
to name them there. Any other absolute path is the machine's own path.

Invariant: all files of a pod are below one folder named by its uid, except its sockets. The path of a socket must be
short (about 100 bytes), so sockets have a separate folder below /tmp, which no other account may enter.
"""

import os
import posixpath
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from slipway.crd.roleresources import JsonMap, object_of, objects_of
from slipway.local.node.environment import AUDIENCE, ConfigSources, NotConfiguredError, PodPlace, field_of, resource_of
from slipway.local.node.podview import NodePod

FAILED_MOUNT = "FailedMount"
TERMINATION_LOG = "/dev/termination-log"
_FILE_MODE = 0o644
_SECRET_MODE = 0o600
_BEFORE = r"(?<![A-Za-z0-9_./~-])"
_AFTER = r"(?![A-Za-z0-9_.-])"


_SOCKETS = "sockets"
"""Name of the link in the nodes' state folder that points to the sockets' folder below /tmp."""
_SOCKETS_CHARS = 8


class ContainerPaths(msgspec.Struct, frozen=True, kw_only=True):
    """A container's view of files: its working directory, and {path in the container: path on the machine}."""

    cwd: Path
    paths: Mapping[str, str]

    def rewrite(self, text: str) -> str:
        """Return `text` with every path of the container replaced by the path on the machine."""
        if "/" not in text or not self.paths:
            return text
        longest_first = sorted(self.paths, key=len, reverse=True)
        pattern = _BEFORE + "(" + "|".join(re.escape(path) for path in longest_first) + ")" + _AFTER
        return re.sub(pattern, lambda match: self.paths[match[1]], text)


def remove_sockets(state: Path) -> None:
    """Remove the sockets of all pods. Call it only when no pod runs any more."""
    folder = _linked(state / _SOCKETS)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _sockets_of(state: Path) -> Path:
    link = state / _SOCKETS
    folder = _linked(link)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="slipway-", dir="/tmp"))
        fresh = link.with_name(f".{_SOCKETS}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder)
        fresh.replace(link)
    return folder


def _linked(link: Path) -> Path | None:
    """Return the folder that a link names, or None unless only this account can use it.

    Folders below /tmp may be removed, and another account may create one with the same name.
    """
    try:
        folder = Path(os.readlink(link))
        about = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return folder if is_ours else None


class PodDisk:
    """The folder of one pod below the node's state."""

    def __init__(self, pods: Path, uid: str) -> None:
        self.folder = pods / uid
        self._claims = pods.parent / "claims"
        self._state = pods.parent
        self._name = uid[:_SOCKETS_CHARS]

    @property
    def is_new(self) -> bool:
        """Whether the pod's folder does not exist, so that the pod was never prepared on this node."""
        return not self.folder.exists()

    def sockets(self) -> Path:
        """Return the folder for sockets of the pod's programs; other accounts cannot connect to these sockets."""
        folder = _sockets_of(self._state) / self._name
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder

    def container(self, name: str) -> Path:
        return self.folder / "containers" / name

    def instance(self, name: str, number: int) -> Path:
        """Return the folder with the marker files of the container's start number `number`."""
        return self.container(name) / str(number)

    def logs(self, name: str, number: int) -> Path:
        return self.container(name) / f"{number}-log"

    def message(self, name: str) -> Path:
        """Return the container's termination log, to which it may write the reason of its end."""
        return self.container(name) / "termination-log"

    def starts(self, name: str) -> int:
        """Return how many times the container was started."""
        number = 0
        while self.instance(name, number).exists():
            number += 1
        return number

    def make(self) -> None:
        """Create the folder, with subfolders for the home, temporary files and volumes."""
        for name in ("home", "tmp", "volumes"):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)

    def remove(self) -> None:
        """Remove the folder and the pod's sockets; files that cannot be removed stay."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._state / _SOCKETS / self._name, ignore_errors=True)

    # --- volumes and mounts -------------------------------------------------------------------------------------

    def fill(self, pod: NodePod, place: PodPlace, bundles: ConfigSources) -> None:
        """Write the pod's volumes.

        Raises:
            NotConfiguredError: a volume's source does not exist (yet), or a local node does not support its kind.
        """
        for volume in objects_of(pod.spec.get("volumes")):
            target = self.folder / "volumes" / str(volume.get("name"))
            if target.exists() or target.is_symlink():
                continue
            fresh = target.with_name(f".{target.name}")
            shutil.rmtree(fresh, ignore_errors=True)
            self._fill(volume, fresh, pod, place, bundles)
            fresh.rename(target)

    def replace(self, volume: str, path: str, content: bytes) -> None:
        """Replace a secret file of a volume atomically."""
        target = (self.folder / "volumes" / volume).joinpath(*_parts(path))
        fresh = target.with_name(f".{target.name}.new")
        fresh.touch(mode=_SECRET_MODE)
        fresh.write_bytes(content)
        fresh.replace(target)

    def mount(self, container: JsonMap) -> ContainerPaths:
        """Create the container's root: links to volumes, hard links to single files."""
        root = self.container(str(container.get("name"))) / "root"
        root.mkdir(parents=True, exist_ok=True)
        paths: dict[str, str] = {}
        mounts = objects_of(container.get("volumeMounts"))
        for mount in sorted(mounts, key=lambda item: len(_parts(str(item.get("mountPath"))))):
            path = _normal(str(mount.get("mountPath")))
            paths[path] = str(self._mount(root, path, mount))
        wanted = str(container.get("workingDir") or "")
        cwd = root
        if wanted:
            cwd = root.joinpath(*_parts(wanted))
            cwd.mkdir(parents=True, exist_ok=True)
            paths.setdefault(_normal(wanted), str(cwd))
        paths.pop("/", None)
        message = _normal(str(container.get("terminationMessagePath") or TERMINATION_LOG))
        paths.setdefault(message, str(self.message(str(container.get("name")))))
        return ContainerPaths(cwd=cwd, paths=paths)

    def _mount(self, root: Path, path: str, mount: JsonMap) -> Path:
        source = self.folder / "volumes" / str(mount.get("name"))
        sub = str(mount.get("subPath") or "")
        if sub:
            source = source.joinpath(*_parts(sub))
            if not source.exists():
                source.mkdir(parents=True)
        target = root.joinpath(*_parts(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        if sub and source.is_file() and target.is_file() and not target.samefile(source):
            target.unlink()  # a file of the parent volume, which this mount hides
        if target.exists() or target.is_symlink():
            return target
        if source.is_dir():
            target.symlink_to(source, target_is_directory=True)
        else:
            _link(source, target)
        return target

    def _fill(self, volume: JsonMap, target: Path, pod: NodePod, place: PodPlace, bundles: ConfigSources) -> None:
        kinds = [kind for kind in volume if kind != "name"]
        kind = kinds[0] if kinds else "emptyDir"
        source = object_of(volume.get(kind))
        match kind:
            case "emptyDir":
                target.mkdir()
            case "hostPath":
                target.symlink_to(str(source.get("path")))
            case "persistentVolumeClaim":
                claim = self._claims / pod.metadata.namespace / str(source.get("claimName"))
                claim.mkdir(parents=True, exist_ok=True)
                target.symlink_to(claim)
            case "configMap" | "secret" | "downwardAPI" | "projected":
                target.mkdir()
                parts = objects_of(source.get("sources")) if kind == "projected" else [{kind: source}]
                mode = int(source.get("defaultMode") or _FILE_MODE)
                for part in parts:
                    _write(target, _files(part, pod, place, bundles), mode)
            case _:
                raise NotConfiguredError(f"a local node has no volumes of the kind {kind}", reason=FAILED_MOUNT)


Content = tuple[str, bytes, int | None]


def _files(part: JsonMap, pod: NodePod, place: PodPlace, bundles: ConfigSources) -> Sequence[Content]:
    """Return (path, content, mode) of each file of one source; mode is None for the volume's default."""
    for field, kind, label in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
        source = object_of(part.get(field))
        if field in part:
            name = str(source.get(label) or source.get("name") or "")
            values = bundles.values(kind, name)
            if values is None:
                if source.get("optional"):
                    return ()
                raise NotConfiguredError(f'{kind.lower()} "{name}" not found', reason=FAILED_MOUNT)
            return _chosen(values, objects_of(source.get("items")), f"{kind} {name}", bool(source.get("optional")))
    token = object_of(part.get("serviceAccountToken"))
    if token:
        values = bundles.values(AUDIENCE, str(token.get("audience") or "")) or {}
        return [(str(token.get("path") or "token"), value, _SECRET_MODE) for value in values.values()]
    made: list[Content] = []
    for item in objects_of(object_of(part.get("downwardAPI")).get("items")):
        field = object_of(item.get("fieldRef"))
        resource = object_of(item.get("resourceFieldRef"))
        if field:
            text = field_of(str(field.get("fieldPath")), pod, place)
        else:
            named = str(resource.get("containerName") or "")
            owner = next((each for each in pod.containers if each.get("name") == named), object_of(None))
            text = resource_of(resource, owner, place)
        made.append((str(item.get("path")), text.encode(), item.get("mode")))
    return made


def _chosen(values: Mapping[str, bytes], items: Sequence[JsonMap], what: str, optional: bool) -> Sequence[Content]:
    if not items:
        return [(key, value, None) for key, value in values.items()]
    made: list[Content] = []
    for item in items:
        key = str(item.get("key"))
        if key in values:
            made.append((str(item.get("path") or key), values[key], item.get("mode")))
        elif not optional:
            raise NotConfiguredError(f"{what} references non-existent config key: {key}", reason=FAILED_MOUNT)
    return made


def _write(folder: Path, files: Sequence[Content], default_mode: int) -> None:
    for path, content, mode in files:
        target = folder.joinpath(*_parts(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode if mode is not None else default_mode)


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it where hard links are not possible.

    With a hard link, as with a bind mount, a program sees the mounted path as its own path.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _normal(path: str) -> str:
    return "/" + "/".join(_parts(path))


def _parts(path: str) -> list[str]:
    """Return the parts of a path without `..`, so that they cannot lead out of a folder."""
    return [part for part in posixpath.normpath(path).split("/") if part not in ("", ".", "..")]
