"""docs/tutorials, followed to the letter on one local cluster: each command works, and prints what the page shows."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from tests.support import documented
from tests.support.documented import Step
from tests.support.kubectl_program import find_kubectl
from tests.support.ports import free_port

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
START = "slipway up --detach"
PAGES = sorted(page.name for page in FOLDER.glob("*.md") if page.name != "README.md")
PAGE_S = 240.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Mapping[str, str]]:
    """The environment of a reader with the running Slipway of the first tutorial and a home."""
    home = tmp_path_factory.mktemp("reader")
    tools = home / "tools"
    tools.mkdir()
    kubectl = find_kubectl()
    if kubectl:
        (tools / "kubectl").symlink_to(kubectl)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLIPWAY_", "XDG_", "KUBE"))}
    env = {
        **kept,
        "HOME": str(home),
        "NO_COLOR": "1",
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run([*START.split(), "--port", "0"], env=env, check=True, timeout=120, capture_output=True)
    yield env
    subprocess.run(["slipway", "down"], env=env, check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_works_as_written(name: str, place: Mapping[str, str], tmp_path: Path) -> None:
    """The commands run in one shell, from top to bottom."""
    walk = documented.read(FOLDER / name)
    if any("kubectl " in step.command for step in walk.steps) and find_kubectl() is None:
        pytest.skip("no kubectl: `make conformance` builds one")
    here = {START: "echo 'Slipway is up (here)'", "8899": str(free_port())}
    printed = documented.follow(walk, tmp_path, place, instead=here, timeout_s=PAGE_S)
    for step, said in zip(walk.steps, printed, strict=True):
        lacking = documented.missing(step, said)
        assert not lacking, f"{name}:{step.line}: {step.command}\nprinted\n{said}\nwithout\n" + "\n".join(lacking)


def test_every_tutorial_is_found_and_shows_what_it_prints() -> None:
    """The index names each page, the README names the index, and every page shows output."""
    index = (FOLDER / "README.md").read_text("utf-8")
    assert [name for name in PAGES if f"({name})" not in index] == []
    assert "docs/tutorials/README.md" in (FOLDER.parents[1] / "README.md").read_text("utf-8")
    for name in PAGES:
        walk = documented.read(FOLDER / name)
        assert sum(bool(step.shown) for step in walk.steps) >= 3, name


@pytest.mark.parametrize(
    ("shown", "printed", "is_held"),
    [
        ("first-e7242a7a Ready", "first-00000000   Ready", True),
        ("first-e7242a7a Ready", "second-00000000 Ready", False),
        ("... running ... nodes=node-...", "13:20  5 running  Running nodes=node-0", True),
        ("[0] done", "[0] done again", False),
        ("x-e7242a7a: on", "x-e7242a7b: on", True),
    ],
)
def test_shown_output_is_compared_loosely(shown: str, printed: str, is_held: bool) -> None:
    """Ids, and the parts that `...` replaces, may differ; words may not."""
    assert (documented.missing(Step(1, "x", (shown,)), printed) == []) is is_held
