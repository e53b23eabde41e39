"""Readiness probes that run commands: their failures, and that they leave no process behind."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipway.local.node.runs import Probe, watch_readiness
from slipway.local.node.shim import Program
from slipway.runtime.clock import SystemClock
from tests.support.clock import wait_until

WITHIN_S = 5.0
PROBE = Probe(host="127.0.0.1", command=["sleep"], timeout_s=60.0)


class Command:
    """A probe command that writes its pid, and then sleeps."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "pid"
        script = f"echo $$ >{folder}/new; mv {folder}/new {self._file}; exec sleep 600"
        self.program = Program(argv=["/bin/sh", "-c", script], env={"PATH": os.environ["PATH"]}, cwd=str(folder))

    def beside(self, _words: Sequence[str]) -> Program:
        return self.program

    async def pid(self) -> int:
        await wait_until(self._file.exists, "the command runs")
        return int(self._file.read_text())


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def exists(pid: int) -> bool:
    """Whether the process exists, also when it has ended and was not waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def kill_and_reap(pid: int) -> None:
    """Kill the process and reap it before the event loop does."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # a thread of asyncio waits for the process too, and may be first
        os.waitpid(pid, 0)


async def test_a_cancelled_probe_leaves_no_process(command: Command) -> None:
    """The probe's command is killed and waited for."""
    asking = asyncio.ensure_future(watch_readiness(PROBE, command.beside, SystemClock(), print))
    pid = await command.pid()
    asking.cancel()
    await asyncio.wait({asking}, timeout=WITHIN_S)
    assert asking.cancelled()
    assert not exists(pid)


async def test_a_probe_is_cancelled_while_its_command_ends(command: Command) -> None:
    """A command that ends by itself at that moment does not keep the probe running."""
    asking = asyncio.ensure_future(watch_readiness(PROBE, command.beside, SystemClock(), print))
    pid = await command.pid()
    kill_and_reap(pid)
    asking.cancel()
    await asyncio.wait({asking}, timeout=WITHIN_S)
    assert asking.cancelled()


async def test_a_port_that_does_not_exist_is_not_ready() -> None:
    """The probe fails."""
    told = list[bool]()
    probe = Probe(host="127.0.0.1", port=99_999, period_s=0.001)
    asking = asyncio.ensure_future(watch_readiness(probe, lambda _: None, SystemClock(), told.append))
    await asyncio.wait({asking}, timeout=0.05)
    asking.cancel()
    await asyncio.wait({asking}, timeout=WITHIN_S)
    assert asking.cancelled()
    assert told == []
