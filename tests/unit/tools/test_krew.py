"""The plugin of kubectl in a release: a reproducible archive, its manifest, a working launcher."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import yaml

from tools.release import krew

VERSION = "1.2.3"


def packed() -> bytes:
    return krew.archive(VERSION, "the licence", epoch_s=1_700_000_000)


def launcher(folder: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(packed())) as tar:
        tar.extractall(folder, filter="data")
    return folder / krew.PROGRAM


def run(program: Path, path: str) -> subprocess.CompletedProcess[str]:
    argv = [str(program), "ps", "-o", "json"]
    return subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, timeout=20, check=False)


def test_the_archive_is_the_same_again_and_the_manifest_names_what_it_holds() -> None:
    """The archive is reproducible, and the manifest has what krew checks: the sum, the files with the program, and a
    valid version."""
    assert packed() == packed()
    sha256 = hashlib.sha256(packed()).hexdigest()
    said = yaml.safe_load(krew.manifest(VERSION, sha256))
    [platform] = said["spec"]["platforms"]
    with tarfile.open(fileobj=io.BytesIO(packed())) as tar:
        names = tar.getnames()
    assert names == [each["from"] for each in platform["files"]]
    assert platform["bin"] in names
    assert platform["sha256"] == sha256
    assert platform["uri"].endswith(krew.archive_name(VERSION))
    assert (said["kind"], said["metadata"]["name"], said["spec"]["version"]) == ("Plugin", "slipway", "v1.2.3")


def test_the_launcher_runs_the_command_with_its_arguments(tmp_path: Path) -> None:
    """The launcher runs the command with its arguments, and has its exit code."""
    program, tools = launcher(tmp_path), tmp_path / "tools"
    tools.mkdir()
    command = tools / "slipway"
    command.write_text('#!/bin/sh\necho "ran $*"\nexit 3\n')
    command.chmod(0o755)
    done = run(program, f"{tools}:/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (3, "ran ps -o json\n")


def test_without_the_command_it_says_how_to_install_it(tmp_path: Path) -> None:
    """Without the command the launcher names the file of the same version to install."""
    done = run(launcher(tmp_path), "/usr/bin:/bin")
    assert done.returncode == 127
    assert "pipx install slipway_ai-1.2.3-py3-none-any.whl" in done.stderr
