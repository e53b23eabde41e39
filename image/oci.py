"""An image as one file: an OCI layout in a tar, which `ctr images import`, `podman load` and `skopeo copy` read.

Owns the format (the OCI image specification 1.1: layer, configuration, manifest, index, `oci-layout`), also of what is
no image, such as a chart. Knows nothing of what is in a layer. Needs only the standard library.

Promises: the same folder and configuration give the same bytes.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EPOCH = "2023-11-14T22:13:20Z"
"""when every image says that it was made; any fixed moment will do"""
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_TAG = "org.opencontainers.image.ref.name"


def write_archive(
    file: Path, roots: Sequence[Path], *, name: str, config: Mapping[str, Any], architecture: str = "amd64"
) -> str:
    """Write the image `name` whose layers are the folders `roots`, lowest first; the digest of its manifest.

    `config` is the `config` object of the specification: Env, User, Cmd, Entrypoint, WorkingDir, Labels.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        layers: list[dict[str, Any]] = []
        unpacked: list[str] = []
        for root in roots:
            packed, digest = _layer(root)
            layers.append(_blob(archive, _LAYER, packed))
            unpacked.append(digest)
        image = {
            "created": EPOCH,
            "architecture": architecture,
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": unpacked},
            "history": [{"created": EPOCH, "created_by": "image/build.py"} for _ in roots],
        }
        described = _blob(archive, _CONFIG, _encoded(image))
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": layers}
        found = _blob(archive, _MANIFEST, _encoded(manifest))
        # containerd names an image by the first annotation, other tools by the tag in the second.
        names = {"io.containerd.image.name": name, _TAG: name.rpartition(":")[2]}
        platform = {"architecture": architecture, "os": "linux"}
        _close(archive, {**found, "platform": platform, "annotations": names})
    return str(found["digest"])


def write_artifact(
    file: Path, *, tag: str, config: tuple[str, bytes], layer: tuple[str, bytes], annotations: Mapping[str, str]
) -> str:
    """Write one blob that is no image under `tag`; the digest of its manifest.

    `config` and `layer` are (media type, content); `annotations` are those of the manifest.
    """
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _blob(archive, *config),
            "layers": [_blob(archive, *layer)],
            "annotations": dict(annotations),
        }
        found = _blob(archive, _MANIFEST, _encoded(manifest))
        _close(archive, {**found, "annotations": {_TAG: tag}})
    return str(found["digest"])


def _close(archive: tarfile.TarFile, manifest: Mapping[str, Any]) -> None:
    """What makes a layout of the blobs: the one manifest that it is about, and the version of the format."""
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [dict(manifest)]}
    _add(archive, "index.json", _encoded(index))
    _add(archive, "oci-layout", _encoded({"imageLayoutVersion": "1.0.0"}))


def _layer(root: Path) -> tuple[bytes, str]:
    """The folder as a compressed tar, and the digest of the tar itself."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for path in sorted(root.rglob("*")):
            layer.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=_settled)
    raw = plain.getvalue()
    return gzip.compress(raw, compresslevel=1, mtime=0), f"sha256:{hashlib.sha256(raw).hexdigest()}"


def _settled(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who made it and when is no part of it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


def _blob(archive: tarfile.TarFile, media_type: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    _add(archive, f"blobs/sha256/{digest}", data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


def _encoded(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()
