"""The programs that conformance runs on: built from Go modules once, kept outside the tree, or found on the PATH.

Owns the build and its cache. The name of a cache entry is made of all its inputs (module files, Go's version, flags),
so a stale entry is never used. An interrupted build leaves no entry.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

MODULE = Path(__file__).parent.parent / "kubernetes"
ETCD = Path(__file__).parent.parent / "etcd"
BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
DEBIAN = {
    "chromium-headless-shell": "chromium-headless-shell",
    "faketime": "faketime",
    "busybox": "busybox-static",
    "iptables": "iptables",
    "redis-cli": "redis-tools",
    "redis-server": "redis-server",
    "runc": "runc",
}
FLAGS = ("-trimpath", "-mod=readonly")
INSTALL_S = 600


class MissingProgramError(Exception):
    """A program that conformance needs is missing on this machine; the message says how to install it."""


class InstallError(MissingProgramError):
    """This machine can install the program, but the installation failed: a fault to fix."""


class Binaries(msgspec.Struct, frozen=True, kw_only=True):
    """The path of each program."""

    etcd: str
    apiserver: str
    controller_manager: str
    scheduler: str
    kubectl: str
    version: str
    """of Kubernetes, like v1.37.2"""


def ensure_binaries() -> Binaries:
    """Build the programs that are not cached yet (minutes, once; with the programs of real nodes about eight on two
    cores).

    Raises:
        MissingProgramError: there is no Go toolchain.
        subprocess.CalledProcessError: the build failed; its output was printed.
    """
    version = kubernetes_version()
    folder = cache() / _key()
    if not all((folder / name).exists() for name in BUILT):
        _build(folder, version)
    return Binaries(
        etcd=build_program(ETCD),
        apiserver=str(folder / "kube-apiserver"),
        controller_manager=str(folder / "kube-controller-manager"),
        scheduler=str(folder / "kube-scheduler"),
        kubectl=str(folder / "kubectl"),
        version=version,
    )


def kubernetes_version() -> str:
    """The version that the module file requires."""
    for line in (MODULE / "go.mod").read_text(encoding="utf-8").splitlines():
        words = line.removeprefix("require").split()
        if words[:1] == ["k8s.io/kubernetes"]:
            return words[1]
    raise MissingProgramError(f"{MODULE / 'go.mod'} requires no k8s.io/kubernetes")


def ensure_debian(program: str) -> str:
    """Return the path of a server that Debian packages; install the package when we may.

    Raises:
        MissingProgramError: it is missing and we may not install it.
    """
    found = shutil.which(program)
    if found:
        return found
    package = DEBIAN[program]
    install_debian(package)
    found = shutil.which(program)
    if not found:
        raise MissingProgramError(f"{package} was installed, but {program} is not on the PATH")
    return found


def install_debian(package: str) -> None:
    """Install a Debian package.

    Raises:
        MissingProgramError: we may not install it.
        InstallError: the installation failed.
    """
    apt = shutil.which("apt-get")
    if not apt or os.geteuid() != 0:
        raise MissingProgramError(f"{package} is not installed; install it (Debian: apt-get install {package})")
    _say(f"installing {package}")
    # The package must not start its server; this environment says "no run level".
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
        done = subprocess.run([apt, *words], env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode:
            raise InstallError(f"apt-get {' '.join(words)} failed:\n{done.stdout}{done.stderr}")


def go_toolchain() -> str:
    """The path of `go`.

    Raises:
        MissingProgramError: there is no Go toolchain.
    """
    found = find_go()
    if not found:
        raise MissingProgramError(
            "conformance builds kube-apiserver from its Go module, and there is no Go toolchain on the PATH; "
            "install Go 1.26 or newer, or name a cluster to run on: KUBECONFIG=/path/to/kubeconfig make conformance"
        )
    return found


def find_go() -> str:
    """The path of `go`; empty when there is none."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin") or ""


def build_environment() -> dict[str, str]:
    """The environment of Go builds: no C, and compilers that seldom collect garbage, which saves a fifth of their
    time."""
    return {"GOGC": "800", **os.environ, "CGO_ENABLED": "0"}


def build_program(module: Path) -> str:
    """Build the program of a small Go module of ours into the cache and return its path.

    Raises:
        MissingProgramError: there is no Go toolchain.
        subprocess.CalledProcessError: the build failed; its output was printed.
    """
    digest = hashlib.sha256()
    for source in sorted(path for path in module.iterdir() if path.is_file()):
        digest.update(source.name.encode() + source.read_bytes())
    folder = cache() / f"{module.name}-{digest.hexdigest()[:16]}"
    program = folder / module.name
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _say(f"building {module.name}")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            argv = [go_toolchain(), "build", *FLAGS, "-o", f"{scratch}/{module.name}", "."]
            subprocess.run(argv, cwd=module, env=build_environment(), check=True)
            (Path(scratch) / module.name).rename(program)
    return str(program)


def build_tools(module: Path, packages: Sequence[str]) -> Path:
    """Build the programs of these packages of a Go module (`tool`: all that it names) into the cache and return their
    folder.

    Raises:
        MissingProgramError: there is no Go toolchain.
        subprocess.CalledProcessError: the build failed; its output was printed.
    """
    digest = hashlib.sha256(repr((packages, FLAGS)).encode())
    for part in ("go.mod", "go.sum"):
        digest.update((module / part).read_bytes())
    digest.update(subprocess.run([go_toolchain(), "version"], capture_output=True, check=True).stdout)
    folder = cache() / f"{module.name}-{digest.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f"{module.name}.lock"):
        if not folder.exists():
            _say(f"building {' '.join(name.rpartition('/')[2] for name in packages)} of {module.name} (once)")
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                argv = [go_toolchain(), "build", *FLAGS, "-ldflags", "-s -w", "-o", f"{scratch}/made/", *packages]
                subprocess.run(argv, cwd=module, env=build_environment(), check=True)
                Path(scratch, "made").rename(folder)
    return folder


def cache() -> Path:
    """The folder of the built programs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("SLIPWAY_CONFORMANCE_CACHE") or Path(base) / "slipway" / "conformance")


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold an exclusive lock on this machine; other processes that use the same file wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key() -> str:
    digest = hashlib.sha256()
    for part in ("go.mod", "go.sum"):
        digest.update((MODULE / part).read_bytes())
    digest.update(subprocess.run([go_toolchain(), "version"], capture_output=True, check=True).stdout)
    digest.update(repr(FLAGS).encode())
    return digest.hexdigest()[:16]


def _build(folder: Path, version: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / "lock"):
        if all((folder / name).exists() for name in BUILT):
            return
        _say(f"building Kubernetes {version} into {folder} (once; it takes some minutes)")
        began = time.monotonic()
        major, minor = version.removeprefix("v").split(".")[:2]
        stamp = "k8s.io/component-base/version"
        told = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        linked = " ".join(["-s -w", *(f"-X {stamp}.{name}={value}" for name, value in told.items())])
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            packages = [f"k8s.io/kubernetes/cmd/{name}" for name in BUILT]
            argv = [go_toolchain(), "build", *FLAGS, "-ldflags", linked, "-o", f"{scratch}/", *packages]
            subprocess.run(argv, cwd=MODULE, env=build_environment(), check=True)
            folder.mkdir(exist_ok=True)
            for name in BUILT:
                (Path(scratch) / name).rename(folder / name)
        _say(f"built in {time.monotonic() - began:.0f} s")


def _say(line: str) -> None:
    sys.stderr.write(f"conformance: {line}\n")
    sys.stderr.flush()
