"""A forked service behaves for its starter like any other process."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.preloaded import preloaded
from tests.support.preloaded_parent import CLONE_CALL
from tests.support.wait import wait_until

pytestmark = pytest.mark.skipif(CLONE_CALL is None, reason="every start is a real one on this processor")
SCHEDULER = [sys.executable, "-m", "slipway.scheduler.main"]


@pytest.fixture(autouse=True)
def _preloaded() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    with preloaded():
        yield


def was_forked(pid: int) -> bool:
    """Whether the process was forked: a fork has mapped what its parent had, also modules that only other services
    import."""
    return "numpy" in Path(f"/proc/{pid}/maps").read_text()


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def test_it_is_a_child_with_a_session_words_and_an_environment_of_its_own(tmp_path: Path) -> None:
    """It can be found by its command line; a signal ends it, and its end is reported."""
    listen = f"127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "slipway.local.apiserver", "--listen", listen]
    argv += ["--token-file", str(tmp_path / "token")]
    env = {**os.environ, "SLIPWAY_MARK": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_until((tmp_path / "token").exists, "it runs")
        assert words_of(process.pid) == argv
        assert was_forked(process.pid)
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) == os.getpid()
        assert os.getsid(process.pid) == process.pid
        assert f"SLIPWAY_MARK={tmp_path}" in Path(f"/proc/{process.pid}/environ").read_text().split("\0")
        opened = {
            os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir() if each.name in ("0", "1", "2")
        }
        assert opened == {os.devnull, str(log)}
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("word", ["--help", "--version", "--no-such-word"])
def test_what_it_prints_and_how_it_ends_are_its_own(word: str) -> None:
    """The same command line prints the same and ends with the same code, forked and started."""
    # A variable that only a new interpreter can apply makes the start a real one.
    real, forked = (_ended(word, more) for more in ({"PYTHON_OF_ITS_OWN": "1"}, {}))
    assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)


def _ended(word: str, more: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **more}
    return subprocess.run([*SCHEDULER, word], env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_start_that_asks_for_other_modules_is_a_real_one(tmp_path: Path) -> None:
    """The modules of the other folder run."""
    main = tmp_path / "sitecustomize.py"
    main.write_text("print('from elsewhere')\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*SCHEDULER, "--version"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("from elsewhere\n")
