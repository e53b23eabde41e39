"""The commands and programs of every page, run as written, by a reader who has what the page assumes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import documented, documented_commands
from tests.support.documented import Step, Walkthrough
from tests.support.documented_blocks import ROOT, DocumentedBlock
from tests.support.documented_commands import (
    ELSEWHERE,
    IN_A_RANK,
    NEEDS,
    PICTURE,
    PYTHON_ELSEWHERE,
    SCRIPTS,
    Script,
    holds,
    steps_of,
)
from tests.support.kubectl_program import find_kubectl

BLOCKS = documented_commands.documented_blocks("console", "sh", "")
HERE = [block for block in BLOCKS if not holds(block, ELSEWHERE)]
PYTHON = documented_commands.documented_blocks("python")
START = "slipway up --detach --port 0 --gpus 32 --cpus 64 --memory 256Gi"
BLOCK_S = 120.0


class Reader(NamedTuple):
    """A reader with a running Slipway and a home: its folder, and {text of a page: its replacement}."""

    folder: Path
    env: Mapping[str, str]
    instead: Mapping[str, str]

    def does(self, steps: tuple[Step, ...]) -> list[str]:
        """Run the commands in one shell, in the folder; return the output of each."""
        walk = Walkthrough({}, steps)
        return documented.follow(walk, self.folder, self.env, instead=self.instead, timeout_s=BLOCK_S)

    def expects(self, step: Step) -> Step:
        """The expected text with its replacements."""
        return step._replace(command=self.here(step.command), shown=tuple(map(self.here, step.shown)))

    def here(self, text: str) -> str:
        """The replacement for a text of a page."""
        for said, done in self.instead.items():
            text = text.replace(said, done)
        return text


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Generator[Reader]:
    """A reader with kubectl, the files and the allocations of `documented_commands`."""
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("no kubectl: `make conformance` builds one")
    home = tmp_path_factory.mktemp("reader")
    tools, folder = home / "tools", home / "folder"
    tools.mkdir()
    folder.mkdir()
    (tools / "kubectl").symlink_to(kubectl)
    for name, text in documented_commands.PROGRAMS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    documented_commands.furnish(folder)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLIPWAY_", "XDG_", "KUBE"))}
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**kept, "HOME": str(home), "NO_COLOR": "1", "PATH": path}
    started = ran(START, folder, env)
    address = re.search(r"http://127\.0\.0\.1:\d+", started)
    assert address, started
    env["KUBECONFIG"] = str(home / ".local/state/slipway/kubeconfig")
    ran(f"set -e\n{documented_commands.SET_UP}", folder, env)
    yield Reader(folder, env, documented_commands.here(folder, address[0]))
    ran("slipway down", folder, env)


def ran(script: str, folder: Path, env: Mapping[str, str]) -> str:
    """The output of a script, which must end with 0."""
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BLOCK_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.place) for block in HERE if not holds(block, IN_A_RANK)]
)
def test_a_block_works_as_written(block: DocumentedBlock, reader: Reader) -> None:
    """Each command ends with 0, and prints what the page shows below it."""
    steps = steps_of(block)
    for step, said in zip(steps, reader.does(steps), strict=True):
        lacking = lacks(reader.expects(step), said)
        assert not lacking, f"{step.line}: {step.command}\nprinted\n{said}\nwithout\n" + "\n".join(lacking)


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in HERE if holds(block, IN_A_RANK)])
def test_a_block_for_a_rank_works_in_one(block: DocumentedBlock, reader: Reader, tmp_path: Path) -> None:
    """The block is the command of a launch; a program of the page is one of its files."""
    script = [f"{reader.here(step.command)}\n" for step in steps_of(block)]
    (tmp_path / "block.sh").write_text("".join(["set -e\n", *script]))
    shutil.copy2(Path(reader.env["HOME"]) / "tools/server", tmp_path / "server")
    ran(f"slipway run -c '{tmp_path}' -- bash block.sh", reader.folder, reader.env)


@pytest.mark.parametrize(
    ("block", "script"),
    [
        pytest.param(block, script, id=block.place)
        for block in PYTHON
        for mark, script in SCRIPTS.items()
        if mark in block.text and not holds(block, PYTHON_ELSEWHERE)
    ],
)
def test_a_program_works_as_written(block: DocumentedBlock, script: Script, reader: Reader, tmp_path: Path) -> None:
    """What the page assumes runs before the program; what the page promises is checked after it."""
    (tmp_path / "block.py").write_text("\n".join([script.before, reader.here(block.text), script.after]))
    ran(f"set -e\n{script.command}", tmp_path, reader.env)


def lacks(step: Step, said: str) -> list[str]:
    """The shown lines that were not printed; lines of ranks, which begin with `[`, may be in any order."""
    of_ranks = [line for line in step.shown if line.startswith("[")]
    others = step._replace(shown=tuple(line for line in step.shown if line not in of_ranks))
    each = [documented.missing(step._replace(shown=(line,)), said) for line in of_ranks]
    return [*documented.missing(others, said), *(line for found in each for line in found)]


def test_every_block_is_run_or_says_where_it_is() -> None:
    """Each mark is in a block, each named test exists, and a block that is run has a command."""
    assert [mark for mark in (*ELSEWHERE, *IN_A_RANK) if not any(mark in block.text for block in BLOCKS)] == []
    assert [mark for mark in (*PYTHON_ELSEWHERE, *SCRIPTS) if not any(mark in block.text for block in PYTHON)] == []
    assert [block.place for block in PYTHON if not holds(block, (*PYTHON_ELSEWHERE, *SCRIPTS))] == []
    wheres = (*ELSEWHERE.values(), *PYTHON_ELSEWHERE.values())
    tests = [where for where in wheres if where != PICTURE and not where.startswith(NEEDS)]
    assert [where for where in tests if not (ROOT / where).exists()] == []
    assert [block.place for block in HERE if not steps_of(block)] == []
    assert len(HERE) > len(BLOCKS) / 2


def test_each_placeholder_of_a_page_occurs_on_a_page(tmp_path: Path) -> None:
    """A substitution that no page needs is removed."""
    text = "\n".join(block.text for block in HERE)
    instead = documented_commands.here(tmp_path, "http://127.0.0.1:1")
    assert [said for said in instead if said not in text] == []


@pytest.mark.parametrize(
    ("language", "text", "commands"),
    [
        ("console", "$ cat <<EOF\na\nEOF\n$ true\nshown\n", [("cat <<EOF\na\nEOF", ()), ("true", ("shown",))]),
        (
            "",
            "slipway ps      what runs\nslipway run \\\n  -- x\n",
            [("slipway ps", ()), ("slipway run \\\n  -- x", ())],
        ),
    ],
)
def test_a_command_is_read_with_its_input_and_its_next_lines(
    language: str, text: str, commands: list[tuple[str, tuple[str, ...]]]
) -> None:
    """A here-document belongs to its command; an explanation after two spaces does not."""
    steps = steps_of(DocumentedBlock("page.md", 1, language, text))
    assert [(step.command, step.shown) for step in steps] == commands
