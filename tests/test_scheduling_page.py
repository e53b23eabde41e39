"""docs/scheduling.md, "Add a filter in ten minutes", followed to the letter with no other knowledge than that page.

The test takes the files, the lines of the registry, the test and the scenario from the page and tries them in a copy.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "scheduling.md"
SECTION = "## Add a filter in ten minutes"
_BLOCK = re.compile(r"(?:^\*\*(?P<path>[^*\n]+)\*\*\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL | re.MULTILINE)
COPIED = ("services/scheduler", "tests/support")


class Block(msgspec.Struct, frozen=True):
    """One block of the section, and the path named in the line above it (or above the block before)."""

    path: str
    kind: str
    text: str


class Followed(msgspec.Struct, frozen=True):
    """The copy in which every step of the page was done."""

    folder: Path
    blocks: tuple[Block, ...]

    def text(self, kind: str) -> str:
        return next(block.text for block in self.blocks if block.kind == kind)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python there: modules of the copy come before installed ones."""
        return run_python(self.folder, *words)


def run_python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`, with the scheduler of that folder."""
    env = {**os.environ, "PYTHONPATH": f"{folder / 'services/scheduler'}{os.pathsep}{folder}"}
    env.pop("PYTHONSAFEPATH", None)
    argv = [sys.executable, *words]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def blocks_of_the_page() -> tuple[Block, ...]:
    """The blocks of the section, in order."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index(SECTION) :]
    section = section[: section.index("\n## ", len(SECTION))]
    found: list[Block] = []
    for match in _BLOCK.finditer(section):
        path = match["path"] or (found[-1].path if found else "")
        found.append(Block(path, match["kind"], match["text"]))
    return tuple(found)


def apply(difference: str, path: Path) -> None:
    """Insert the lines with `+` after the line that precedes them, which must occur exactly once."""
    before = "".join(f"{line[1:]}\n" for line in difference.splitlines() if line.startswith(" "))
    added = "".join(f"{line[1:]}\n" for line in difference.splitlines() if line.startswith("+"))
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{path.name} has not exactly one {before!r}"
    path.write_text(text.replace(before, before + added), encoding="utf-8")


def copy_to(folder: Path) -> None:
    """Copy the files that the page builds on."""
    for part in COPIED:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """Do every step of the page in a copy."""
    folder = tmp_path_factory.mktemp("newcomer")
    copy_to(folder)
    blocks = blocks_of_the_page()
    for block in blocks:
        path = folder / block.path
        if block.kind == "diff":
            apply(block.text, path)
        elif block.kind in ("python", "yaml"):
            assert not path.exists(), f"{block.path} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    return Followed(folder, blocks)


def simulate(folder: Path, name: str) -> str:
    """Run the page's command in the copy."""
    code = "import sys; from slipway.scheduler.simulate.command import main; sys.exit(main(sys.argv[1:]))"
    done = run_python(folder, "-c", code, name)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_has_every_step() -> None:
    """The page shows a module, two lines of the registry, a test, a scenario and its answer."""
    kinds = [block.kind for block in blocks_of_the_page()]
    assert kinds == ["python", "diff", "diff", "python", "yaml", "console"]


def test_its_test_passes(followed: Followed) -> None:
    """The test of the page passes with the filter of the page."""
    path = next(block.path for block in followed.blocks if block.path.startswith("tests/"))
    done = followed.run("-m", "pytest", path, "-q", "--import-mode=importlib", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_scenario_answers_what_it_says(followed: Followed) -> None:
    """The scenario answers with the lines and the reason that the page shows."""
    name = next(block.path for block in followed.blocks if block.kind == "yaml")
    shown = followed.text("console").splitlines()
    assert shown[0] == f"$ slipway simulate {name}"
    answered = simulate(followed.folder, name)
    assert answered.splitlines()[: len(shown) - 1] == shown[1:]
    assert "1 is retiring" in " ".join(answered.split())


def test_without_it_the_scenario_answers_otherwise(followed: Followed, tmp_path: Path) -> None:
    """Without the new filter the answer differs, so the filter makes the difference."""
    copy_to(tmp_path)
    name = next(block.path for block in followed.blocks if block.kind == "yaml")
    (tmp_path / name).write_text(followed.text("yaml"), encoding="utf-8")
    answered = simulate(tmp_path, name)
    assert re.search(r"^train +Running .* old$", answered, re.MULTILINE)


def test_the_new_files_are_in_the_style_of_the_house(followed: Followed) -> None:
    """New files are formatted, and the linter has no finding."""
    paths = [block.path for block in followed.blocks if block.kind == "python"]
    for words in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = followed.run("-m", "ruff", *words, "--config", str(ROOT / "pyproject.toml"), *paths)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_filter_and_score_is_on_the_page() -> None:
    """The tables of filters and scores are complete."""
    from slipway.scheduler.plan.placement.filters import FILTERS
    from slipway.scheduler.plan.placement.scores import SCORES

    text = PAGE.read_text(encoding="utf-8")
    cells = {
        cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.split("|")[1].split(",")
    }
    assert {entry.name for entry in FILTERS} - cells == set()
    assert set(SCORES) - cells == set()
