"""The plugin `kubectl slipway` for krew: an archive with a launcher, and the manifest that refers to it.

Owns both files. The launcher runs the command of the wheel, which is installed separately. The wheel itself also
contains a `kubectl-slipway` for users without krew. Pure: the same version produces the same bytes.

Source: krew's developer guide, "Writing a plugin manifest" (v1alpha2).
"""

import gzip
import io
import tarfile

import yaml

NAME = "slipway"
PROGRAM = "kubectl-slipway"
LAUNCHER = """#!/bin/sh
# kubectl slipway ARGS: runs the slipway command.
if ! command -v slipway > /dev/null 2>&1; then
  echo "kubectl slipway: the slipway command is not on PATH" >&2
  echo "install it: pipx install slipway_ai-VERSION-py3-none-any.whl" >&2
  exit 127
fi
exec slipway "$@"
"""
_URI = "https://DOWNLOADS/{archive}"
"""The publisher replaces DOWNLOADS: Slipway has no download site. `kubectl krew install --archive` does not read it."""


def archive_name(version: str) -> str:
    """Return the name of the archive."""
    return f"{PROGRAM}-{version}.tar.gz"


def archive(version: str, licence: str, *, epoch_s: int) -> bytes:
    """Return the archive, with the launcher and the licence."""
    files = {PROGRAM: (LAUNCHER.replace("VERSION", version), 0o755), "LICENSE": (licence, 0o644)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (text, mode) in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), mode, epoch_s
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def manifest(version: str, sha256: str) -> str:
    """Return the input of `kubectl krew install --manifest`; `sha256` is that of the archive, in hexadecimal."""
    systems = [{"key": "os", "operator": "In", "values": ["darwin", "linux"]}]
    platform = {
        "selector": {"matchExpressions": systems},
        "uri": _URI.format(archive=archive_name(version)),
        "sha256": sha256,
        "files": [{"from": PROGRAM, "to": "."}, {"from": "LICENSE", "to": "."}],
        "bin": PROGRAM,
    }
    found = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Launch and follow AI workloads",
            "description": "Runs the slipway command, which launches AI workloads and follows them.\n",
            "caveats": f"Needs the slipway command: pipx install slipway_ai-{version}-py3-none-any.whl\n",
            "platforms": [platform],
        },
    }
    return yaml.safe_dump(found, sort_keys=False)
