"""A process in a container made by hand: an image's files as a read-only root, an unprivileged user, named mounts only.

Owns what a container runtime does for a pod with `readOnlyRootFilesystem`, `runAsUser`, no capabilities and no new
privileges: a mount namespace, a layer for mount points over the image's files, and nothing of this machine but /proc
and five devices. The network is this machine's. Needs root, to become another user.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.support.chart import ROOT
from tests.support.cli import CommandResult
from tests.support.dockerfile import Image, follow
from tests.support.made_once import made_once

DEVICES = ("null", "zero", "full", "random", "urandom")
HOST_FILES = ("/etc/hosts", "/etc/resolv.conf")
"""the files that a kubelet mounts into every container"""
TOOLS = ("/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
IMAGE_SOURCES = [
    ROOT / name
    for name in (
        "image",
        "requirements",
        "shared",
        "local",
        "services",
        "pyproject.toml",
        "tests/support/dockerfile.py",
    )
]
"""The files that our image is made of, and the code that follows its Dockerfile here."""
ABOUT = "image.json"
RUN_S = 120.0


def require_root() -> None:
    """Skips a test where a container cannot be made."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare: a root file system of its own, and another user")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount: this machine gives root no mount namespace of its own")


@contextmanager
def made_image(folder: Path, *, is_kept: bool = True) -> Generator[Image]:
    """Our image, in a new folder that other users may read; removed at the end, because it is large."""
    try:
        yield image_in(folder, is_kept=is_kept)
    finally:
        shutil.rmtree(folder)


def image_in(folder: Path, *, is_kept: bool = True) -> Image:
    """Build the image by the Dockerfile's lines, with this Python instead of the base image's. Skips the test for the
    Python of a distribution: its files cannot be told apart from the rest of the system.

    With `is_kept` the image comes from the cache, when an earlier test has built it from the same files.
    """
    if sys.base_prefix == "/usr":
        pytest.skip("needs a Python with a prefix of its own, as the base image has: make PYTHON=/path/to/python3")
    made = kept_image(folder) if is_kept else _followed(folder)
    let_in(folder)
    return made


def _followed(folder: Path) -> Image:
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), *TOOLS])
    return follow(ROOT / "image" / "Dockerfile", ROOT, folder, path=path)


def kept_image(folder: Path) -> Image:
    """Our image in this folder, from the cache: its files as an archive, with modes and times, and its
    configuration."""

    def make(empty: Path, file: Path) -> None:
        image = _followed(empty)
        name = image.root.relative_to(empty)
        about = msgspec.json.encode(msgspec.structs.replace(image, root=name), enc_hook=str)
        (empty / ABOUT).write_bytes(about)
        subprocess.run(["tar", "-C", str(empty), "-cf", str(file), ABOUT, str(name)], check=True, timeout=RUN_S)

    folder.mkdir(parents=True, exist_ok=True)
    kept = made_once("image-files", IMAGE_SOURCES, make)
    # Python's own module would set the time of links to now.
    subprocess.run(["tar", "-C", str(folder), "-xpf", str(kept)], check=True, timeout=RUN_S)
    image = msgspec.json.decode((folder / ABOUT).read_bytes(), type=Image, dec_hook=lambda type_, value: type_(value))
    return msgspec.structs.replace(image, root=folder / image.root)


def let_in(folder: Path) -> None:
    """Let other users read a temporary folder of a test."""
    for each in (folder, *folder.parents[:2]):
        each.chmod(each.stat().st_mode | 0o055)


class Container:
    """A container of one image. `tmp` is its emptyDir; `mounts` are {path inside: folder or file of this machine},
    read-only."""

    def __init__(self, image: Image, folder: Path, mounts: Mapping[str, Path] | None = None) -> None:
        self.image = image
        self.tmp = folder / "tmp"
        self.layer = folder / "layer"
        self._folder = folder
        self._mounts = dict(mounts or {}) | {path: Path(path) for path in HOST_FILES}
        for path in (self.tmp, self.layer, folder / "work", folder / "root"):
            path.mkdir(parents=True)
        self.tmp.chmod(0o1777)

    def argv(self, command: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """The command line that runs `command` inside, with the image's environment and `env`, as a child of this
        process."""
        told = [f"{name}={value}" for name, value in {**self.image.env, **env}.items()]
        entry = ["/usr/sbin/chroot", f"--userspec={self.image.user}", "--groups=", str(self._folder / "root")]
        inside = ["/usr/bin/env", "-i", *told, *entry, *command]
        script = "\n".join(["set -eu", *self._steps(), f"exec /usr/bin/setpriv --no-new-privs {shlex.join(inside)}"])
        return ["unshare", "--mount", "sh", "-c", script]

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> CommandResult:
        """Run the command and wait for its end."""
        argv = self.argv(command, env or {})
        done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_S, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def written(self) -> list[str]:
        """Return the files that the container has created, outside of the mounts and in its emptyDir."""
        points = {path.lstrip("/") for path in self._mounts} | {f"dev/{name}" for name in DEVICES}
        made = [path.relative_to(self.layer) for path in self.layer.rglob("*") if not path.is_dir()]
        return [str(path) for path in made if str(path) not in points] + [str(path) for path in self.tmp.rglob("*")]

    def _steps(self) -> list[str]:
        root = self._folder / "root"
        layers = f"lowerdir={self.image.root},upperdir={self.layer},workdir={self._folder / 'work'}"
        steps = [f"mount -t overlay overlay -o {layers} {root}", f"mount -t proc proc {root}/proc"]
        steps += [f"mount --bind {self.tmp} {root}/tmp"]
        steps += ["umask 022"]
        for name in DEVICES:
            steps += [f"touch {root}/dev/{name}", f"mount --bind /dev/{name} {root}/dev/{name}"]
        for path, source in self._mounts.items():
            point = f"{root}{path}"
            steps += [f"mkdir -p {point}" if source.is_dir() else f"mkdir -p {Path(point).parent} && touch {point}"]
            steps += [f"mount --bind {source} {point}", f"mount -o remount,bind,ro {point}"]
        return [*steps, f"mount -o remount,ro {root}"]
