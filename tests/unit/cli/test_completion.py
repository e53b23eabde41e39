"""Completion scripts: complete, and free of syntax errors where the shell is there to ask."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slipway.cli import main
from tests.support.cli import run_here


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_is_in_the_script(shell: str) -> None:
    """Verbs and their options."""
    script = run_here("completion", shell).out
    assert all(name in script for name in main.VERBS)
    assert "max-restarts" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes() -> None:
    """bash itself offers the words."""
    script = run_here("completion", "bash").out
    ask = 'COMP_WORDS=(slipway exp); COMP_CWORD=1; _slipway; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["explain"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_an_id_is_no_code(tmp_path: Path) -> None:
    """What a server calls an id runs nothing while it is completed, and is offered only if the shell would read it as
    one plain word that is no option."""
    said = [
        "x$(touch taken)",
        "x`touch taken`",
        "x;touch taken",
        "x y",
        "--server=http://evil",
        "x*",
        "x\u00e9",
        "x-good",
    ]
    program = tmp_path / "slipway"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(said) + "\nEND\n", encoding="utf-8")
    program.chmod(0o700)
    for typed in ("x", "''"):
        ask = f"COMP_WORDS=(slipway get {typed}); COMP_CWORD=2; _slipway; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        script = f"{run_here('completion', 'bash').out}\n{ask}"
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env, cwd=tmp_path)
        assert [word for word in done.stdout.split("\n") if word and not word.startswith("-")] == ["x-good"]
        assert "evil" not in done.stdout
    assert not (tmp_path / "taken").exists()


def test_another_shell() -> None:
    """A usage error."""
    assert run_here("completion", "tcsh").code == main.USAGE
