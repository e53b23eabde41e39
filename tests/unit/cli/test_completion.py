"""Completion scripts: complete, and free of syntax errors where the shell is there to ask."""

import shutil
import subprocess

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


def test_another_shell() -> None:
    """A usage error."""
    assert run_here("completion", "tcsh").code == main.USAGE
