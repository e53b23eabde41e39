"""The chart as files: `slipway-VERSION.tgz` in the format of `helm package`, and as an OCI artifact.

Owns the two formats. Does not know the content of the templates.

Promises: the same folder and time produce the same bytes.

Source: Helm's "Use OCI-based registries": media types of the configuration and of the content.
"""

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from image import oci

CONFIG_TYPE = "application/vnd.cncf.helm.config.v1+json"
CONTENT_TYPE = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
PINS = "files/pins.yaml"


def about(folder: Path) -> dict[str, Any]:
    """Return the content of the folder's Chart.yaml."""
    found: dict[str, Any] = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    return found


def packed(folder: Path, *, epoch_s: int, pins: Mapping[str, Mapping[str, str]] | None = None) -> bytes:
    """Return the chart in `folder` as a .tgz, in a folder with the chart's name, Chart.yaml first.

    `pins` are {part: {repository, tag, digest}} of images, in addition to those that the chart contains.
    """
    name = str(about(folder)["name"])
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    files.sort(key=lambda path: path != folder / "Chart.yaml")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in files:
            content = path.read_bytes()
            if pins and path == folder / PINS:
                content += yaml.safe_dump({part: dict(pin) for part, pin in pins.items()}, sort_keys=False).encode()
            member = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            member.size, member.mode, member.mtime = len(content), 0o644, epoch_s
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=epoch_s)


def write_artifact(file: Path, folder: Path, content: bytes, *, epoch_s: int) -> str:
    """Write the packed chart as an OCI layout in a tar, with its version as the tag; return the digest."""
    found = about(folder)
    version = str(found["version"])
    annotations = {
        "org.opencontainers.image.created": datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "org.opencontainers.image.description": str(found["description"]),
        "org.opencontainers.image.title": str(found["name"]),
        "org.opencontainers.image.version": version,
    }
    return oci.write_artifact(
        file,
        # A tag of a registry cannot contain a plus; Helm also replaces it by an underscore.
        tag=version.replace("+", "_"),
        config=(CONFIG_TYPE, json.dumps(found, sort_keys=True).encode()),
        layer=(CONTENT_TYPE, content),
        annotations=annotations,
    )
