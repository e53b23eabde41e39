"""What the image is made of, step by step: the Dockerfile's RUN lines call these, and so do the tests, without Docker.

Owns which files the image has. Must not know what the services do; needs only the standard library of the Python that
becomes the image's own, and the package index.

    python3 image/build.py libraries|program|system|seal [--root root]
    python3 image/build.py archive [--root root] [--output FILE] [--name NAME:TAG]

The last one writes the image as one file (an OCI archive) where there is no Docker. It is for the kind of machine that
it was made on: amd64 on amd64, arm64 on arm64.

Promises: every package is of the lock, by its hash; there is no shell, no package tool and no file that runs as
somebody else; the same sources on the same base give the same files, wherever and whenever they are built.
"""

import argparse
import configparser
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import oci

HERE = Path(__file__).resolve().parent.parent
TOOLS = Path("build-tools")
SITE = Path("usr/local/lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
BIN = Path("usr/local/bin")
PYTHON = "/usr/local/bin/python3"
USER = "65532"
EPOCH_S = 1_700_000_000
"""what every file says of its age; any fixed moment will do"""

LAUNCHER = """#!{python}
import sys

from {module} import {function}

sys.exit({function}())
"""
NO_PART_OF_IT = (
    "site-packages", "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3",
    "ensurepip", "pydoc_data", "config-*", "_tkinter.*", "_test*", "_ctypes_test.*", "_xxtestfuzz.*", "xxlimited*",
    "nis.*", "readline.*", "_curses*.so", "curses",
)  # fmt: skip
"""of Python's own library: what installs, tests, draws, or talks to a terminal"""
LOADED_LATE = re.compile(
    r"/kubernetes/(?:client|dynamic|watch|stream|leaderelection|informer|aio/client/(?:api|models))/"
)
"""nothing of ours loads these, and they are most of the modules there are: they stay sources"""
FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nslipway:x:{USER}:{USER}:slipway:/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nslipway:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/ld.so.conf": "/usr/local/lib\n",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""{what a kernel calls a machine: what images call it}"""
VERSION = str(tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
CONFIG: dict[str, Any] = {
    "Env": [
        "PATH=/usr/local/bin",
        "LANG=C.UTF-8",
        "HOME=/tmp",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONSAFEPATH=1",
        "PYTHONUNBUFFERED=1",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    ],
    "WorkingDir": "/",
    "User": f"{USER}:{USER}",
    "Cmd": ["slipway", "--help"],
    "Labels": {
        "org.opencontainers.image.title": "slipway",
        "org.opencontainers.image.description": "A stateless control plane that launches AI workloads on Kubernetes",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": VERSION,
    },
}
"""how a container of it starts: as the Dockerfile says"""
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
LICENSES = "usr/share/doc/slipway"
EXTRAS = ("server", "otlp-grpc")
"""of the project: what its services need"""


def libraries(root: Path) -> None:
    """What the project depends on and no more: of the lock, each by its hash, as wheels."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    _install(root / SITE, ["--require-hashes", "-r", "pyproject.toml", *extras, "-c", "requirements/runtime.txt"])


def program(root: Path) -> None:
    """The project as a wheel, and its commands."""
    with tempfile.TemporaryDirectory() as made:
        wanted = Path(made) / "build.in"
        wanted.write_text("\n".join(_project()["build-system"]["requires"]), encoding="utf-8")
        backend = Path(made) / "backend"
        _install(backend, ["--require-hashes", "-r", str(wanted), "-c", "requirements/runtime.txt"])
        dist = Path(made) / "dist"
        env = {**os.environ, "PYTHONPATH": str(backend), "SOURCE_DATE_EPOCH": str(EPOCH_S)}
        _run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(dist)], env)
        (wheel,) = dist.glob("*.whl")
        _install(root / SITE, ["--no-deps", str(wheel)])
    _forget_the_wheel(root / SITE)
    _commands(root)
    kept = root / LICENSES
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "LICENSE", kept / "LICENSE")


def system(root: Path) -> None:
    """Python itself, the libraries of the system that anything here is linked with, and the few files of /etc."""
    _python(root)
    for name, text in FILES.items():
        _write(root / name, text)
    for folder in ("tmp", "proc", "sys", "dev", "run", "var"):
        (root / folder).mkdir(exist_ok=True)
    if not (root / "var/run").is_symlink():
        (root / "var/run").symlink_to("../run")
    (root / AUTHORITIES).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(f"/{AUTHORITIES}", root / AUTHORITIES)
    _linked(root)


def seal(root: Path) -> None:
    """Bytecode of what runs, and nothing that anybody but its owner may write, or that runs as somebody else."""
    _compile(root)
    for path in (root, *root.rglob("*")):
        if path.is_symlink():
            os.utime(path, (EPOCH_S, EPOCH_S), follow_symlinks=False)
            continue
        mode = 0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644
        path.chmod(mode)
        os.utime(path, (EPOCH_S, EPOCH_S))
    (root / "tmp").chmod(0o1777)


def archive(root: Path, file: Path, name: str) -> None:
    """The image as one file, which starts as a container of the Dockerfile's last stage does."""
    machine = platform.machine()
    digest = oci.write_archive(file, [root], name=name, config=CONFIG, architecture=ARCHITECTURES.get(machine, machine))
    sys.stdout.write(f"{file}: {name} {digest}\n")


STEPS = {step.__name__: step for step in (libraries, program, system, seal)}


def main() -> int:
    """0, or an exception of what failed."""
    parser = argparse.ArgumentParser(prog="python3 image/build.py", description=__doc__)
    parser.add_argument("step", choices=[*STEPS, "archive"])
    parser.add_argument("--root", type=Path, default=Path("root"), help="the folder that becomes the image's root")
    parser.add_argument("--output", type=Path, default=Path("slipway.tar"), help="of `archive`: the file")
    parser.add_argument("--name", default=f"slipway:{VERSION}", help="of `archive`: what the image is called")
    words = parser.parse_args()
    words.root.mkdir(parents=True, exist_ok=True)
    if words.step == "archive":
        archive(words.root.resolve(), words.output, words.name)
    else:
        STEPS[words.step](words.root.resolve())
    return 0


# --- packages ---------------------------------------------------------------------------------------------------------


def _install(target: Path, words: Iterable[str]) -> None:
    argv = [_uv(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(target)]
    _run([*argv, "--link-mode", "copy", "--only-binary", ":all:", *words])
    shutil.rmtree(target / "bin", ignore_errors=True)  # commands come from `_commands`, for the image's own Python
    (target / ".lock").unlink(missing_ok=True)


def _forget_the_wheel(site: Path) -> None:
    """Where it lay and when tells nothing afterwards, and differs from build to build."""
    (about,) = site.glob("slipway_ai-*.dist-info")
    gone = ("direct_url.json", "uv_cache.json", "REQUESTED")
    for name in gone:
        (about / name).unlink(missing_ok=True)
    record = about / "RECORD"
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
    record.write_text("".join(line for line in lines if not line.startswith(tuple(f"{about.name}/{n}" for n in gone))))


def _uv() -> str:
    """The installer of the lock, in an environment of its own that is no part of the image."""
    tools = TOOLS.resolve()
    if not (tools / "bin" / "uv").exists():
        _run([sys.executable, "-m", "venv", str(tools)])
        pip = [str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--require-hashes", "-r", "requirements/bootstrap.txt"])
    return str(tools / "bin" / "uv")


def _commands(root: Path) -> None:
    """Of our own distribution only: those of libraries are nobody's business here."""
    (about,) = (root / SITE).glob("slipway_ai-*.dist-info/entry_points.txt")
    declared = configparser.ConfigParser()
    declared.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    declared.read_string(about.read_text(encoding="utf-8"))
    for name, target in declared["console_scripts"].items():
        module, _, function = target.partition(":")
        file = root / BIN / name
        _write(file, LAUNCHER.format(python=PYTHON, module=module, function=function))
        file.chmod(0o755)


# --- the system -------------------------------------------------------------------------------------------------------


def _python(root: Path) -> None:
    """The Python that runs this, without what installs packages and without its tests."""
    name = SITE.parent.name
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        root / "usr/local/lib" / name,
        ignore=shutil.ignore_patterns(*NO_PART_OF_IT),
        dirs_exist_ok=True,
        symlinks=True,
    )
    place = root / BIN
    place.mkdir(parents=True, exist_ok=True)
    program = Path(sys.base_prefix) / "bin" / name
    shutil.copy(program.resolve(), place / name)
    for alias in ("python3", "python"):
        (place / alias).unlink(missing_ok=True)
        (place / alias).symlink_to(name)
    for library in Path(sys.base_prefix, "lib").glob(f"lib{name}.so.*"):
        shutil.copy(library, root / "usr/local/lib" / library.name)


def _linked(root: Path) -> None:
    """Copies every shared library that a program or a module of the image is linked with, and lets the loader know."""
    for place in ("lib", "lib64"):
        if Path("/", place).is_symlink() and not (root / place).is_symlink():
            (root / place).symlink_to(os.readlink(f"/{place}").lstrip("/"))
    for found in sorted(_needed(root)):
        target = root / os.path.realpath(found.parent).lstrip("/") / found.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, target)
    _run(["ldconfig", "-r", str(root)])
    shutil.rmtree(root / "var/cache", ignore_errors=True)


def _needed(root: Path) -> set[Path]:
    """Libraries outside of the image; those that a wheel brings are found beside it, Python's own under its prefix."""
    linked = [root / BIN / SITE.parent.name, *(root / "usr/local/lib").rglob("*.so"), *_programs(root / SITE)]
    found: set[Path] = set()
    for file in linked:
        said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout
        for word in re.findall(r"(?:=>\s+|^\s+)(/\S+)", said, re.MULTILINE):
            path = Path(word)
            if not path.is_relative_to(root) and not path.is_relative_to(sys.base_prefix):
                found.add(path)
        if "not found" in said:
            raise SystemExit(f"{file} needs a library that is not here:\n{said}")
    return found


def _programs(site: Path) -> list[Path]:
    """Programs that a wheel brings, by their first bytes."""
    return [path for path in site.rglob("*") if path.is_file() and os.access(path, os.X_OK) and _is_elf(path)]


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _compile(root: Path) -> None:
    """By the content of the source and never looked at again: nobody can write there, and times mean nothing."""
    words = ["-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-x", LOADED_LATE.pattern]
    _run([sys.executable, *words, "-s", str(root), "-p", "/", str(root / "usr/local/lib")])


# --- small things -----------------------------------------------------------------------------------------------------


def _run(argv: list[str], env: dict[str, str] | None = None) -> None:
    subprocess.run(argv, check=True, cwd=HERE, env=env)


def _project() -> dict[str, Any]:
    return tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
