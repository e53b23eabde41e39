"""The files of a release, each installed or read from its file alone, in an environment without this checkout."""

import json
import os
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.distribution.conftest import EPOCH_S
from tests.support import chart
from tests.support.ports import free_port
from tools.release.__main__ import ReleasePlan, make, version
from tools.release.chart import CONFIG_TYPE, CONTENT_TYPE

UV = Path(sys.executable).with_name("uv")
LOCK = Path(__file__).parents[3] / "requirements/runtime.txt"
BELONGS = {"shared", "local", "services", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO"} | {
    ".gitignore"
}


def run(*argv: str | Path, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, with nothing in its environment that leads to this checkout or its virtual
    environment."""
    here = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLIPWAY", "VIRTUAL"))}
    words = [str(each) for each in argv]
    env = {**here, "NO_COLOR": "1", **env}
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300.0, check=False)


def a_venv(folder: Path, wanted: str) -> Path:
    """A Python environment with the `wanted` packages, in the versions of the lock; the folder of its commands."""
    made = run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    assert made.returncode == 0, made.stderr
    words = ("pip", "install", "--quiet", "--python", folder / "venv/bin/python", "--constraint", LOCK)
    done = run(UV, *words, wanted, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "venv/bin"


def layout(archive: Path) -> dict[str, bytes]:
    """`{name: content}` of an OCI layout in a tar; the name of each blob is its digest."""
    with tarfile.open(archive) as opened:
        found = {member.name: file.read() for member in opened if (file := opened.extractfile(member)) is not None}
    for name, content in found.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{sha256(content).hexdigest()}"
    return found


def blob(found: dict[str, bytes], described: dict[str, Any]) -> bytes:
    """The blob that a descriptor names."""
    content = found["blobs/sha256/" + str(described["digest"]).removeprefix("sha256:")]
    assert len(content) == described["size"]
    return content


def test_the_sums_are_those_of_the_files(released: Path) -> None:
    """`sha256sum --check` succeeds, and every file is listed."""
    done = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=released)
    assert done.returncode == 0, done.stdout
    named = {line.split()[1] for line in (released / "SHA256SUMS").read_text("utf-8").splitlines()}
    assert named == {path.name for path in released.iterdir()} - {"SHA256SUMS"}


def test_a_second_release_has_the_same_bytes(released: Path, tmp_path: Path) -> None:
    """A second release in another folder, at another time, has the same bytes."""
    make(ReleasePlan(version=version(), epoch_s=EPOCH_S, output=tmp_path, architecture="amd64"), None)
    assert (tmp_path / "SHA256SUMS").read_text("utf-8") == (released / "SHA256SUMS").read_text("utf-8")


def test_the_manifest_of_the_plugin_names_its_archive(released: Path) -> None:
    """krew compares the sum before it unpacks."""
    [manifest], [archive] = released.glob("kubectl-slipway-*.yaml"), released.glob("kubectl-slipway-*.tar.gz")
    [platform] = yaml.safe_load(manifest.read_text("utf-8"))["spec"]["platforms"]
    assert platform["sha256"] == sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"].endswith(archive.name)


def test_the_sdist_has_what_builds_the_wheel_and_no_more(released: Path, tmp_path: Path) -> None:
    """The sdist has no tests and no caches; a wheel built from it has the same bytes as ours."""
    (archive,) = released.glob("slipway_ai-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [name.split("/", 1)[1] for name in opened.getnames()]
        opened.extractall(tmp_path, filter="data")
    assert {name.split("/")[0] for name in names} <= BELONGS
    assert [name for name in names if "__pycache__" in name or name.endswith(".pyc")] == []
    (source,) = tmp_path.iterdir()
    words = ("-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path / "made")
    done = run(sys.executable, *words, cwd=source, SOURCE_DATE_EPOCH=str(EPOCH_S))
    assert done.returncode == 0, done.stderr
    (ours,), (again,) = released.glob("*.whl"), (tmp_path / "made").glob("*.whl")
    assert ours.read_bytes() == again.read_bytes()


def test_the_local_stack_launches_from_the_wheel(released: Path, tmp_path: Path) -> None:
    """With the extra `local` the stack starts, runs one command to its end and one notebook until it is ready, and
    stops. Nothing of a checkout is used."""
    (wheel,) = released.glob("*.whl")
    bin_ = a_venv(tmp_path, f"{wheel}[local]")
    home = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    where = run(bin_ / "python", "-c", "import slipway.api.main as m; print(m.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(bin_.parent)), where.stderr
    up = run(bin_ / "slipway", "up", "--detach", "--port", str(free_port()), "--nodes", "1", cwd=tmp_path, **home)
    try:
        assert up.returncode == 0, up.stderr
        ran = run(bin_ / "slipway", "run", "--", "python", "-c", "print('hello')", cwd=tmp_path, **home)
        assert (ran.returncode, ran.stdout) == (0, "hello\n"), ran.stderr
        notebook = run(bin_ / "slipway", "notebook", "start", "--detach", "--name", "pad", cwd=tmp_path, **home)
        assert notebook.returncode == 0, notebook.stderr
        ready = run(bin_ / "slipway", "wait", "pad", "--for", "ready", "--timeout", "60s", cwd=tmp_path, **home)
        assert ready.returncode == 0, ready.stderr
    finally:
        down = run(bin_ / "slipway", "down", cwd=tmp_path, **home)
    assert down.returncode == 0, down.stderr


def test_the_chart_installs_from_its_file(released: Path) -> None:
    """Helm reads the .tgz, its linter has no findings, and the result equals that of the folder."""
    packed = released / f"slipway-{version()}.tgz"
    # Without the Valkey nothing in the result is random; its passwords are.
    values = {"image": {"registry": "registry.example"}, "valkey": {"enabled": False}}
    assert chart.render(values, chart=packed) == chart.render(values)
    assert chart.lint(values, chart=packed) == []


def test_the_artifact_holds_the_same_chart(released: Path) -> None:
    """The artifact is as Helm pushes it: its media types, Chart.yaml as the configuration, the .tgz as the only
    layer."""
    found = layout(released / f"slipway-chart-{version()}.oci.tar")
    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (described,) = json.loads(found["index.json"])["manifests"]
    assert described["annotations"] == {"org.opencontainers.image.ref.name": version()}
    manifest = json.loads(blob(found, described))
    (layer,) = manifest["layers"]
    assert (manifest["config"]["mediaType"], layer["mediaType"]) == (CONFIG_TYPE, CONTENT_TYPE)
    about = json.loads(blob(found, manifest["config"]))
    assert (about["name"], about["version"]) == ("slipway", version())
    assert blob(found, layer) == (released / f"slipway-{version()}.tgz").read_bytes()


@pytest.mark.parametrize("name", ["slipway-wheel-{}.cdx.json", "slipway-{}.vex.cdx.json"])
def test_sboms_are_valid(released: Path, name: str) -> None:
    """Bills are valid by the schema of CycloneDX."""
    text = (released / name.format(version())).read_text("utf-8")
    # Imported here because it compiles grammars for three seconds, which each worker would pay while collecting this
    # file.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_notes_say_what_was_not_made(released: Path) -> None:
    """The notes name the missing image, and list the changes."""
    text = (released / "RELEASE-NOTES.md").read_text("utf-8")
    assert text.startswith(f"# Slipway {version()}\n")
    assert "without an image" in text
    assert "## What changed" in text
