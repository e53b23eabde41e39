"""Completion scripts: complete, and free of syntax errors when the shell is installed to check it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slipway.cli import main
from tests.support.cli import run_here
from tests.support.terminals import at_terminal


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_is_in_the_script(shell: str) -> None:
    """The script contains every verb and its options."""
    script = run_here("completion", shell).out
    assert all(name in script for name in main.VERBS)
    assert "max-restarts" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes() -> None:
    """The real bash offers the words."""
    script = run_here("completion", "bash").out
    ask = 'COMP_WORDS=(slipway exp); COMP_CWORD=1; _slipway; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["explain"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_an_id_is_no_code(tmp_path: Path) -> None:
    """An id from the server is not executed while it is completed, and is offered only when the shell reads it as one
    plain word that is no option."""
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


def a_server_that_says(folder: Path, *ids: str) -> dict[str, str]:
    """An environment in which `slipway ps -q` prints these ids, and whose home is empty."""
    program = folder / "slipway"
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(ids) + "\nEND\n", encoding="utf-8")
    program.chmod(0o700)
    path = f"{folder}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder), "TERM": "xterm", "ZDOTDIR": str(folder), "LANG": "C.UTF-8"}


HOSTILE = ("x$(touch taken)", "x`touch taken`", "x;touch taken", "--server=http://evil", "x-good")
TYPED = [
    ("slipway exp", "slipway explain"),
    ("slipway completion z", "slipway completion zsh"),
    ("slipway run --max-res", "slipway run --max-restarts"),
    ("slipway get x", "slipway get x-good"),
]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
@pytest.mark.parametrize(("typed", "wanted"), TYPED)
def test_fish_completes(tmp_path: Path, typed: str, wanted: str) -> None:
    """The real fish offers verbs, options, choices and ids, and executes no part of an id."""
    env = a_server_that_says(tmp_path, *HOSTILE)
    script = tmp_path / "slipway.fish"
    script.write_text(run_here("completion", "fish").out, encoding="utf-8")
    ask = ["fish", "--no-config", "-c", f"source {script}; complete -C '{typed}'"]
    done = subprocess.run(ask, capture_output=True, text=True, check=True, env=env, cwd=tmp_path)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [wanted.split()[-1]]
    assert done.stderr == ""
    assert not (tmp_path / "taken").exists()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
@pytest.mark.parametrize("has_compinit", [True, False])
def test_zsh_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_compinit: bool) -> None:
    """The real zsh, at a terminal: the Tab key completes verbs, options, choices and ids, also without a .zshrc."""
    env = a_server_that_says(tmp_path, *HOSTILE)
    script = tmp_path / "slipway.zsh"
    script.write_text(run_here("completion", "zsh").out, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with at_terminal([shutil.which("zsh") or "zsh", "-f", "-i"], env) as person:
        if has_compinit:
            person.type("autoload -Uz compinit; compinit -u\n")
        # Ctrl-T prints the edited line and empties it, so that no completed line is run.
        show = "show() { print -r -- \"<$BUFFER>\"; BUFFER= }; zle -N show; bindkey '^T' show"
        person.type(f"{show}; source {script}; echo load''ed\n")
        person.until("loaded")
        for typed, wanted in TYPED:
            person.type(f"{typed}\t\x14")
            person.until(f"<{wanted} >")
    assert not (tmp_path / "taken").exists()


def test_another_shell() -> None:
    """Another shell is a usage error."""
    assert run_here("completion", "tcsh").code == main.USAGE
