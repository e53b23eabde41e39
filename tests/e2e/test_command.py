"""The command as a process: up and down, Ctrl-C, logs followed while the api is killed."""

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from slipway.local.layout import Layout
from tests.support.local_stack import RunningStack, cli_words, processes_of
from tests.support.names import fresh
from tests.support.wait import DEADLINE_S, wait_until

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"


@contextmanager
def a_process(stack: RunningStack, *words: str) -> Generator["subprocess.Popen[str]"]:
    """A running `slipway ...`; killed at the end if it still runs."""
    argv, env = cli_words(*words), stack.cli_environment()
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_line(process: "subprocess.Popen[str]", wanted: str) -> None:
    """Read its output until a line matches."""
    assert process.stdout is not None
    for line in process.stdout:
        if wanted in line:
            return
    said = process.stderr.read() if process.stderr is not None else ""
    raise AssertionError(f"it ended without saying {wanted!r}: {said}")


def rest_of(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """The rest of its output. `communicate` would miss the part that was read ahead."""
    assert process.stdout is not None
    assert process.stderr is not None
    said = process.stdout.read(), process.stderr.read()
    process.wait(DEADLINE_S)
    return said


def test_the_first_ctrl_c_detaches(stack: RunningStack) -> None:
    """The command says how to reattach, and the run goes on."""
    name = fresh("detached")
    with a_process(stack, "run", "--name", name, "--", "python", "-u", "-c", SLEEPER) as process:
        until_line(process, "up")
        process.send_signal(signal.SIGINT)
        _, err = rest_of(process)
    assert process.returncode == 130
    assert f"slipway follow {name}-" in err
    assert stack.view(name)["phase"] == "Running"
    assert stack.command("kill", name, "--wait").code == 0


def test_the_second_ctrl_c_kills(stack: RunningStack) -> None:
    """The run ends as Canceled, and the command with 1."""
    name = fresh("killed")
    with a_process(stack, "run", "--name", name, "--", "python", "-u", "-c", SLEEPER) as process:
        until_line(process, "up")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        for line in process.stderr:
            if "Ctrl-C again" in line:
                break
        process.send_signal(signal.SIGINT)
        rest_of(process)
    assert process.returncode == 1
    assert stack.view(name)["result"] == "Canceled"


def test_a_run_ends_with_the_exit_code_of_the_rank_that_failed(stack: RunningStack) -> None:
    """The exit code is the failed rank's also when the other ranks were stopped for it, and when the run is followed
    later."""
    name = fresh("seven")
    script = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)"
    ran = stack.command("run", "--name", name, "--ranks", "2", "--", "python", "-c", script)
    assert (ran.code, stack.view(name)["result"]) == (7, "Failed")
    assert stack.command("follow", name).code == 7


def test_following_survives_a_kill_of_the_api(stack: RunningStack) -> None:
    """Every line is shown once, in order, and then the result."""
    program = "import time\nfor n in range(60): print('line', n, flush=True); time.sleep(0.05)"
    with a_process(stack, "run", "--", "python", "-c", program) as process:
        until_line(process, "line 5")
        killed = stack.kill("api")
        out, err = rest_of(process)
    wait_until(lambda: stack.pid("api") not in (0, killed), "the api is started again")
    assert process.returncode == 0, err
    assert out.splitlines() == [f"line {n}" for n in range(6, 60)]


def test_up_and_down(tmp_path: Path) -> None:
    """The folder identifies the stack of `up --detach`, a second `up` is refused, and `down` leaves nothing."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    env.pop("SLIPWAY_SERVER", None)

    def slipway(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(cli_words(*words), env=env, capture_output=True, text=True, timeout=90, check=False)

    up = slipway("up", "--detach", "--port", "0", "--nodes", "1")
    try:
        assert up.returncode == 0, up.stderr
        folder = tmp_path / "home" / "slipway"
        assert Layout(folder).read_state() is not None
        assert f"kubeconfig  {folder}/kubeconfig" in up.stderr
        assert slipway("doctor").returncode == 0
        ran = slipway("run", "--", "python", "-c", "print('hello')")
        assert (ran.returncode, ran.stdout) == (0, "hello\n"), ran.stderr
        again = slipway("up", "--detach")
        assert again.returncode == 2
        assert "already runs" in again.stderr
    finally:
        down = slipway("down")
    assert (down.returncode, "nothing is left running" in down.stderr) == (0, True)
    assert processes_of(str(folder)) == []
    assert not folder.exists()
    assert slipway("down").returncode == 0
