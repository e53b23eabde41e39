"""The content of the image and the rights of its user, without any running service."""

import json
import re
import stat
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from slipway.runtime.settings import all_settings
from tests.support import chart
from tests.support.chart import ROOT
from tests.support.container import Container, made_image
from tests.support.dockerfile import Image

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SITE = "usr/local/lib/python3.*/site-packages"
SIZE_MAX = 400_000_000
"""bytes; image/README.md names the size: large growth has to be explained"""
LOADED = """
import importlib, importlib.util, json, os, sys
for service in ("api", "scheduler", "podworker", "watcher", "ops.setup"):
    importlib.import_module(f"slipway.{service}.main")
ops = ("slipway.ops.setup.remove", "slipway.ops.setup.trial", "slipway.ops.audit.live.command")
for late in (*ops, "uvloop", "httpx2"):
    importlib.import_module(late)
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
sources = [file for file in files if file.endswith(".py")]
assert len(sources) > 500
print(json.dumps(sorted(x for x in sources if not os.path.exists(importlib.util.cache_from_source(x)))))
"""
WRITES = """
import json, os
may = []
for folder, _, _ in os.walk("/"):
    if folder.startswith(("/proc", "/tmp", "/dev")):
        continue
    try:
        open(os.path.join(folder, "probe"), "w").close()
        may.append(folder)
    except OSError:
        pass
open("/tmp/probe", "w").close()
print(json.dumps(may))
"""


def files(image: Image) -> list[Path]:
    return [path for path in image.root.rglob("*") if not path.is_symlink()]


def test_every_command_that_the_chart_starts_is_there(image: Image, container: Container) -> None:
    """Every command of the chart is a program in the image, started without a shell; so is every command that the
    project declares."""
    documents = [
        *chart.render({"audit": {"enabled": True}, "uninstall": {"removeAllocations": True}}),
        *chart.render({"scheduler": {"once": {"enabled": True}}}),
    ]
    pods = [pod for pod in map(chart.pod_of, documents) if pod is not None]
    ours = [each for pod in pods for each in pod["containers"] if each["image"].startswith("slipway:")]
    started = {each["command"][0] for each in ours}
    assert started >= {"slipway-api", "slipway-watcher", "slipway", "python3"}
    for name in started | set(PROJECT["scripts"]):
        assert (image.root / "usr/local/bin" / name).stat().st_mode & stat.S_IXOTH, name
    for name in PROJECT["scripts"]:
        assert container.run(name, "--help").code == 0, name


def test_image_files_are_read_only_and_nothing_runs_as_another_user(image: Image) -> None:
    """There is no setuid, no setgid, nothing but /tmp that group or others may write; root owns everything."""
    odd = [path for path in files(image) if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    loose = [path for path in files(image) if path.stat().st_mode & 0o022]
    assert odd == []
    assert loose == [image.root / "tmp"]
    assert {path.stat().st_uid for path in files(image)} == {0}


def test_the_image_runs_as_an_unprivileged_user(image: Image, container: Container) -> None:
    """It runs as a number that is not root, the chart's; with no group, no capability, and no way to more rights."""
    user, _, group = image.user.partition(":")
    security = chart.pod_spec(chart.render(), "api")["securityContext"]
    assert (int(user), int(group)) == (security["runAsUser"], security["runAsGroup"])
    done = container.run("python3", "-c", "print(open('/proc/self/status').read())")
    status = dict(line.split(":\t", 1) for line in done.out.splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {user}
    assert set(status["Gid"].split()) == {group}
    assert (status["Groups"].split(), int(status["CapEff"], 16), status["NoNewPrivs"]) == ([], 0, "1")


def test_a_container_can_write_to_its_mounts_alone(container: Container) -> None:
    """The test tries to write in every folder."""
    done = container.run("python3", "-c", WRITES)
    assert done.code == 0, done.err
    assert json.loads(done.out) == []
    assert container.written() == [str(container.tmp / "probe")]


def test_there_is_no_shell_and_nothing_that_installs_or_builds(image: Image) -> None:
    """There are no tests, benchmarks, or tools of the build stage either."""
    names = {path.name for path in files(image)}
    assert (
        names & {"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "pip", "pip3", "uv", "gcc", "ld"} == set()
    )
    (site,) = image.root.glob(SITE)
    there = {path.name.lower().partition("-")[0] for path in site.iterdir()}
    tools = {"pip", "setuptools", "wheel", "uv", "hatchling", "editables", "pytest", "hypothesis", "helm_python"}
    assert there & (tools | {"tests", "test", "bench"}) == set()
    ours = {path.relative_to(site).as_posix() for path in (site / "slipway").rglob("*.py")}
    sources = [
        *(ROOT / "shared").rglob("*.py"),
        *(ROOT / "local").rglob("*.py"),
        *(ROOT / "services").glob("*/slipway/**/*.py"),
    ]
    assert ours == {"slipway/" + path.as_posix().rpartition("/slipway/")[2] for path in sources}


def closure(there: Mapping[NormalizedName, Distribution], first: str) -> set[NormalizedName]:
    """Every distribution that a distribution needs on this platform, including itself."""
    wanted, queue = set[NormalizedName](), [Requirement(first)]
    while queue:
        one = queue.pop()
        name = canonicalize_name(one.name)
        wanted.add(name)
        for line in there[name].requires or ():
            needed = Requirement(line)
            extras = one.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                found = there[canonicalize_name(needed.name)]
                assert needed.specifier.contains(found.version, prereleases=True), f"{name} needs {needed}"
                if canonicalize_name(needed.name) not in wanted:
                    queue.append(needed)
    return wanted


def test_the_packages_are_the_closure_of_ours_and_of_the_lock(image: Image) -> None:
    """No dependency of ours is missing, no other package is there, and each has its locked version."""
    (site,) = image.root.glob(SITE)
    there = {canonicalize_name(each.name): each for each in distributions(path=[str(site)])}
    assert closure(there, "slipway-ai[server,otlp-grpc]") == set(there)
    text = (ROOT / "requirements" / "runtime.txt").read_text("utf-8")
    lock = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)(?:\[\w+\])?==([^\s;\\]+)", text, re.M)
    }
    versions = {name: each.version for name, each in there.items()}
    assert versions.pop(canonicalize_name("slipway-ai")) == PROJECT["version"]
    assert {name: version for name, version in versions.items() if lock[name] != version} == {}


def test_all_loaded_modules_are_precompiled(container: Container) -> None:
    """The image is read-only, so a module without bytecode would be compiled at every start."""
    done = container.run("python3", "-c", LOADED)
    assert done.code == 0, done.err
    assert json.loads(done.out) == []


def test_the_image_has_its_labels(image: Image) -> None:
    """The version is that of the project and the chart; the base is a full version and names no registry."""
    label = "org.opencontainers.image."
    assert image.labels[f"{label}version"] == PROJECT["version"]
    assert image.labels[f"{label}licenses"] == PROJECT["license"]
    base, last = image.bases
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert (last, image.labels[f"{label}base.name"]) == ("scratch", base)
    assert (image.root / "usr/share/doc/slipway/LICENSE").is_file()


def test_the_image_sets_no_setting(image: Image) -> None:
    """Only the chart sets the settings of a service."""
    assert all_settings()
    assert [name for name in image.env if name.startswith("SLIPWAY_")] == []


def test_it_is_the_same_when_it_is_made_again(image: Image, tmp_path: Path) -> None:
    """A second build in another folder, at another time, has the same names, contents, modes and times."""

    def content(root: Path) -> dict[str, tuple[int, float, bytes]]:
        found: dict[str, tuple[int, float, bytes]] = {}
        for path in root.rglob("*"):
            about = path.lstat()
            data = (
                b""
                if path.is_dir()
                else path.readlink().as_posix().encode()
                if path.is_symlink()
                else path.read_bytes()
            )
            found[str(path.relative_to(root))] = (about.st_mode, about.st_mtime, sha256(data).digest())
        return found

    with made_image(tmp_path / "again", is_kept=False) as again:
        first, second = content(image.root), content(again.root)
    assert {name for name in first | second if first.get(name) != second.get(name)} == set()


def test_its_size_is_bounded(image: Image) -> None:
    """Packages may change; a pull of the image must take seconds only."""
    size = sum(path.stat().st_size for path in files(image) if path.is_file())
    assert size < SIZE_MAX, f"{size / 1e6:.0f} MB"
