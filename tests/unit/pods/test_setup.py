"""The setup of a rank: in the same container and the same log, before the program."""

import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipway.crd.kinds import HOME_PATH
from slipway.local.node.environment import expand
from slipway.pods.podspec import SETUP_FAILED, command_of, with_setup

PROGRAM = ["echo", "never"]


class Ended(NamedTuple):
    """A container that has ended."""

    code: int
    lines: list[str]
    said: str


def words_of(container: dict[str, Any], variables: dict[str, str]) -> list[str]:
    """The program of the container as a kubelet starts it."""
    return [expand(word, variables) for word in (*container["command"], *container.get("args", ()))]


def ran(setup: str, command: list[str], folder: Path, env: dict[str, str] | None = None) -> Ended:
    """Run the container with that setup and command, as its node would."""
    variables = env or {}
    message = folder / "message"
    container = with_setup({"command": command, "terminationMessagePath": str(message)}, setup)
    done = subprocess.run(
        words_of(container, variables),
        env={"PATH": "/usr/bin:/bin", **variables},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    return Ended(done.returncode, done.stdout.splitlines(), message.read_text() if message.exists() else "")


def test_the_setup_runs_first_and_the_program_in_its_place(tmp_path: Path) -> None:
    """The setup runs first, and the program then replaces it; both write to one log. The program has its arguments
    unchanged, and sees the files of the setup, not its variables."""
    setup = "echo setup; echo kept > file; export LEFT=behind; cd /"
    ended = ran(setup, ["sh", "-c", 'echo "$@" $(cat file) [$LEFT]', "sh", "a  b", "*"], tmp_path)
    assert ended == Ended(0, ["setup", "a  b * kept []"], "")


def test_the_home_of_a_setup_can_be_written(tmp_path: Path) -> None:
    """The setup has a writable home: that of its container, else the rank's, which our own programs use too. The
    program's HOME is unchanged."""
    ours, rank, nowhere = tmp_path / "home", tmp_path / "rank", tmp_path / "none"
    ours.mkdir()
    rank.mkdir()
    for home, found in ((ours, ours), (nowhere, rank)):
        container = with_setup({"command": ["sh", "-c", "echo $HOME"]}, "echo $HOME")
        words = [word.replace(HOME_PATH, str(rank)) for word in words_of(container, {})]
        env = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.splitlines() == [str(found), str(home)]


def test_the_exit_code_of_the_program_is_its_own(tmp_path: Path) -> None:
    """A program that fails after a setup has not failed in its setup."""
    assert ran("true", ["sh", "-c", "exit 3"], tmp_path) == Ended(3, [], "")


@pytest.mark.parametrize("setup", ["echo begun; exit 7", "echo begun\n(exit 7)\necho never", "echo begun && (exit 7)"])
def test_a_setup_that_fails_ends_the_rank_and_says_so(tmp_path: Path, setup: str) -> None:
    """A setup ends the rank at its first failed command, with that exit code and a message; the program never runs."""
    ended = ran(setup, PROGRAM, tmp_path)
    assert ended == Ended(7, ["begun", f"slipway: {SETUP_FAILED} with exit code 7"], f"{SETUP_FAILED}\n")


def test_a_setup_that_cannot_say_why_it_ends_still_ends(tmp_path: Path) -> None:
    """A setup that cannot write its message, because the image has no file for it, ends with the same exit code and
    log."""
    container = with_setup({"command": PROGRAM, "terminationMessagePath": str(tmp_path / "no" / "folder")}, "exit 4")
    done = subprocess.run(words_of(container, {}), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", f"slipway: {SETUP_FAILED} with exit code 4\n")


def test_what_was_typed_is_what_the_shell_gets(tmp_path: Path) -> None:
    """Dollars, quotes and names of variables in a setup mean what they mean in a shell; the words of a pod template
    keep the meaning that Kubernetes gives them."""
    setup = """echo "$(echo sub) $HOME" '$(HOME) $$HOME' "it's"; echo $((1+2))"""
    ended = ran(setup, ["echo", "$(HOME)", "$$(HOME)"], tmp_path, {"HOME": "/h"})
    assert ended.lines == ["sub /h $(HOME) $$HOME it's", "3", "/h $(HOME)"]


def test_variables_of_the_user_reach_the_program_as_they_were(tmp_path: Path) -> None:
    """The user's variables reach the program unchanged, with any name: the script of the setup uses no variable names
    that a user would use."""
    names = {"setup": "1", "code": "2", "child": "3", "said": "4", "shell": "5"}
    ended = ran("true", ["sh", "-c", "echo $setup $code $child $said $shell"], tmp_path, names)
    assert ended.lines == ["1 2 3 4 5"]


def test_a_rank_that_is_asked_to_end_ends_within_its_setup(tmp_path: Path) -> None:
    """The signal reaches the setup, which is waited for; the program never runs."""
    setup = "trap 'echo saved; exit 0' TERM; echo begun; sleep 60 & wait"
    container = with_setup({"command": PROGRAM, "terminationMessagePath": str(tmp_path / "m")}, setup)
    words = words_of(container, {})
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "saved\n"
        assert process.wait(timeout=30) == 128 + signal.SIGTERM


def test_a_run_script_ends_at_what_fails(tmp_path: Path) -> None:
    """A run script ends at its first failed command. It is one process with its shell, so that signals reach it, and
    gets no arguments."""
    done = subprocess.run(
        command_of("echo one $#\nfalse\necho two"),
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "one 0\n")
