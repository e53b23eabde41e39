"""The images of a real node, made here from files of this machine, because there is no registry.

Owns the content of each: `pause`, which every pod has; `slipway`, made by the lines of our Dockerfile; `valkey`; and
`workload`, with Python, JupyterLab, TensorBoard, numpy and a shell. Archives are cached by their inputs.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conformance.cluster import binaries
from tests.node.nodes import PAUSE
from tests.node.programs import NodePrograms
from tests.support.chart import ROOT
from tests.support.container import IMAGE_SOURCES, kept_image
from tests.support.made_once import made_once
from tools.release.version import version

SLIPWAY = f"slipway.local/slipway:{version()}"
VALKEY = "slipway.local/valkey:9.1"
WORKLOAD = "slipway.local/workload:1"
BUILD = ROOT / "image" / "build.py"
PACKAGES = ("jupyterlab", "tensorboard", "setuptools", "numpy")


def ensure_images(programs: NodePrograms) -> list[Path]:
    """Return the archives of all images, ours last.

    Raises:
        MissingProgramError: a package of Debian is missing and cannot be installed by us.
    """
    shell = binaries.ensure_debian("busybox")
    cli, server = (Path(binaries.ensure_debian(name)).resolve() for name in ("redis-cli", "redis-server"))
    return [
        made_once("pause", [Path(programs.pause)], lambda root, file: _pause(programs, root, file)),
        made_once("valkey", [Path(__file__), cli, server], lambda root, file: _valkey(shell, cli, server, root, file)),
        made_once(
            "workload",
            [Path(__file__), BUILD, ROOT / "requirements/dev.txt"],
            lambda root, file: _workload(shell, root, file),
        ),
        made_once("slipway", [Path(__file__), *IMAGE_SOURCES], _slipway),
    ]


def _pause(programs: NodePrograms, root: Path, file: Path) -> None:
    shutil.copy(programs.pause, root / "pause")
    write_image(root, file, PAUSE, Entrypoint=["/pause"], User="65535:65535")


def _slipway(folder: Path, file: Path) -> None:
    """Our image: made by the Dockerfile's own lines, with the build step for users without Docker."""
    made = kept_image(folder)
    _build("archive", "--root", str(made.root), "--output", str(file), "--name", SLIPWAY)


def _valkey(shell: str, cli: Path, server: Path, root: Path, file: Path) -> None:
    """Debian's Redis with Valkey's names: the Valkey of the wheel has no TLS, which the chart needs."""
    _program(server, root, "valkey-server")
    _program(cli, root, "valkey-cli")
    _shell(shell, root)
    (root / "tmp").mkdir(mode=0o1777)
    write_image(root, file, VALKEY, User="999:1000")


def _workload(shell: str, root: Path, file: Path) -> None:
    """Python as in our own image, with the programs of workloads, from the lock and from wheels only."""
    site = root / "usr/local/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    words = ["pip", "install", "--quiet", "--python", sys.executable, "--target", str(site), "--only-binary", ":all:"]
    uv = Path(sys.prefix) / "bin" / "uv"
    pins = ["--constraint", str(ROOT / "requirements/dev.txt")]
    subprocess.run([str(uv), *words, "--link-mode", "copy", *pins, *PACKAGES], check=True, timeout=600)
    _build("system", "--root", str(root))
    for program in sorted((site / "bin").glob("*")):
        text = program.read_bytes()
        if text.startswith(b"#!"):
            target = root / "usr/local/bin" / program.name
            target.write_bytes(b"#!/usr/local/bin/python3\n" + text.partition(b"\n")[2])
            target.chmod(0o755)
    for data in ("share", "etc"):
        # Data files of wheels, such as JupyterLab's pages, are searched for below the prefix.
        if (site / data).exists():
            shutil.copytree(site / data, root / "usr/local" / data, dirs_exist_ok=True)
            shutil.rmtree(site / data)
    _shell(shell, root)
    _build("seal", "--root", str(root))
    env = ["PATH=/usr/local/bin:/bin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "HOME=/tmp"]
    write_image(root, file, WORKLOAD, Env=env, Cmd=["python3"], WorkingDir="/tmp")


def _program(source: Path, root: Path, name: str) -> None:
    """Copy a program and its shared libraries to the paths where its loader searches."""
    target = root / "usr/local/bin" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(0o755)
    listed = subprocess.run(["ldd", str(source)], capture_output=True, text=True, check=False).stdout
    for word in listed.split():
        if word.startswith("/"):
            place = root / word.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(word).resolve(), place)


def _shell(shell: str, root: Path) -> None:
    place = root / "bin"
    place.mkdir(exist_ok=True)
    shutil.copy(shell, place / "busybox")
    for name in subprocess.run([shell, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if not (place / name).exists():
            (place / name).symlink_to("busybox")


def _build(*words: str) -> None:
    """Run a step of image/build.py, with the Python that becomes the image's own."""
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([str(python), str(BUILD), *words], cwd=ROOT, check=True, timeout=600)


def write_image(root: Path, file: Path, name: str, **config: object) -> None:
    """Write an archive with one image: the files under `root`, and this configuration."""
    spec = importlib.util.spec_from_file_location("oci", BUILD.parent / "oci.py")
    assert spec is not None
    assert spec.loader is not None
    oci = importlib.util.module_from_spec(spec)  # build.py is a file, not a module of a package
    spec.loader.exec_module(oci)
    oci.write_archive(file, [root], name=name, config=config)
