"""The wheel in a clean environment: the command and the SDK with few packages, and errors for verbs that need an
extra."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")
PACKAGES_MAX, MIB_MAX = 12, 25
SCENARIO = "nodes: [{name: n, cpu: 1}]\nallocations: [{name: a, ranks: [{cpu: 1}]}]\nuntil: 1\n"


def run(*argv: str | Path, code: int = 0) -> str:
    """Run a command and return its output, with its errors."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLIPWAY"))}
    done = subprocess.run(
        [str(each) for each in argv],
        cwd=ROOT,
        env={**env, "SLIPWAY_SERVER": "http://127.0.0.1:1", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300.0,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def place(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python environment with the plain install and no other packages."""
    folder = tmp_path_factory.mktemp("plain")
    (wheel,) = released.glob("*.whl")
    assert wheel.name.startswith("slipway_ai-")
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv")
    constraints = ("--constraint", "requirements/runtime.txt")
    run(UV, "pip", "install", "--quiet", "--python", folder / "venv/bin/python", *constraints, wheel)
    return folder / "venv"


def test_it_is_small(place: Path) -> None:
    """A user of a cluster needs no scheduler and no Redis, so the install has few packages and few bytes."""
    names = run(UV, "pip", "list", "--quiet", "--format", "freeze", "--python", place / "bin/python").split()
    assert len(names) <= PACKAGES_MAX, names
    (site,) = place.glob("lib/python3*/site-packages")
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    assert size <= MIB_MAX * 2**20


def test_the_sbom_lists_what_is_installed(place: Path, released: Path) -> None:
    """The bill lists each package with its version, and the hashes of the lock."""
    listed = run(UV, "pip", "list", "--quiet", "--format", "freeze", "--python", place / "bin/python").split()
    (file,) = released.glob("slipway-wheel-*.cdx.json")
    bill = json.loads(file.read_text("utf-8"))
    found = [each for each in bill["components"] if each["purl"].startswith("pkg:pypi/")]
    ours = bill["metadata"]["component"]
    assert {f"{each['name']}=={each['version']}" for each in [ours, *found]} == {
        word for word in listed if not word.startswith("slipway-ai")
    } | {f"slipway-ai=={ours['version']}"}
    assert [each["name"] for each in found if not each.get("hashes")] == []
    assert [each["name"] for each in bill["components"] if not each.get("licenses")] == []


def test_the_command_and_the_sdk_work(place: Path, tmp_path: Path) -> None:
    """They work up to the missing server; the launch is read and the context is packed before that error."""
    command = place / "bin/slipway"
    assert run(command, "version").startswith("slipway 0.")
    assert "slipway VERB" in run(command, "--help")
    (tmp_path / "train.py").write_text("print(1)\n")
    shipped = run(command, "run", "--context", tmp_path, "--image", "i", "--detach", "--", "true", code=1)
    assert "no Slipway answers at http://127.0.0.1:1" in shipped
    asked = "from slipway.sdk import AsyncClient, Client; print(Client('http://127.0.0.1:1'))"
    assert "127.0.0.1:1" in run(place / "bin/python", "-c", asked)


@pytest.mark.parametrize(("verb", "extra"), [("simulate", "server"), ("up", "local")])
def test_a_verb_of_an_extra_names_the_extra_to_install(place: Path, tmp_path: Path, verb: str, extra: str) -> None:
    """The error names the extra and how to install it."""
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    words = (str(tmp_path / "scenario.yaml"),) if verb == "simulate" else ("--data", str(tmp_path / "data"))
    said = run(place / "bin/slipway", verb, *words, code=1)
    assert said.startswith(f"error: slipway {verb}: it needs ")
    assert f"pip install 'slipway-ai[{extra}]'" in said
    assert "Traceback" not in said
