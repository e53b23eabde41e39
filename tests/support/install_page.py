"""Runs the console blocks of docs/install.md as they are written.

Owns which blocks exist, which are not run and why, and the terminals. The caller gives the values of the page's
placeholders.
"""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.conformance.system.helm_words import PLACE
from tests.support import chart
from tests.support.cli import CommandResult
from tests.support.wait import wait_until

PAGE = chart.ROOT / "docs" / "install.md"
STAYS = "port-forward"
"""A block that contains this word runs in a terminal of its own."""
ELSEWHERE = {
    "--kubeconfig ~/.local/state": "of a laptop: tests/integration/helm/test_local_cluster.py",
    "python -m slipway.ops.setup.remove": "when no service is left: tests/conformance/system/test_nothing_stuck.py",
    "slipway-api & slipway-scheduler": "without Helm: tests/e2e run the four programs so",
}
"""{text of a block that is not run here: why}"""
BLOCK_S = 240.0
TURN_S = 240.0


class Block(NamedTuple):
    """One console block: its heading, and its commands as a script."""

    section: str
    script: str


def blocks(text: str | None = None) -> list[Block]:
    """The console blocks of the page, in order. A line without `$` continues the command before it."""
    text = PAGE.read_text("utf-8") if text is None else text
    found: list[Block] = []
    section, lines = "", list[str]()
    is_inside = False
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        if line == "```console":
            is_inside, lines = True, []
        elif line == "```" and is_inside:
            is_inside = False
            found.append(Block(section, "\n".join(lines) + "\n"))
        elif is_inside:
            lines.append(line.removeprefix("$ "))
    return found


def reason_of(block: Block) -> str:
    """Why a block is not run here; empty when it is run."""
    return next((why for mark, why in ELSEWHERE.items() if mark in block.script), "")


class Reader:
    """Runs blocks in the source folder, with `helm`, `kubectl` and `slipway` on the PATH.

    `values` is a file of additional values that this place needs; `placeholders` are {word of the page: its value};
    `forward` is a program that replaces `kubectl port-forward` where nodes forward no ports.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kubectl: str,
        kubeconfig: Path,
        values: Path,
        placeholders: Mapping[str, str],
        forward: Path | None = None,
    ) -> None:
        self._placeholders = placeholders
        tools = folder / "tools"
        tools.mkdir()
        _program(tools / "helm", f'exec {sys.executable} -m tests.conformance.system.helm_words "$@"')
        pipe = f'case "$*" in *{STAYS}*) exec {sys.executable} {forward} "$@" ;; esac; ' if forward else ""
        _program(tools / "kubectl", f'{pipe}exec {kubectl} "$@"')
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")},
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(chart.ROOT),
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "KUBECONFIG": str(kubeconfig),
            "REAL_KUBECTL": kubectl,
            "NO_COLOR": "1",
            PLACE: str(values),
        }
        self._open: list[subprocess.Popen[bytes]] = []
        self._ports = ExitStack()

    def here(self, script: str) -> str:
        """Return the script with the placeholders replaced."""
        for name, value in self._placeholders.items():
            script = script.replace(name, value)
        return script

    def follow(self, block: Block) -> CommandResult:
        """Run a block; a block that does not end is left running in a terminal of its own.

        Raises:
            AssertionError: the block failed; the message contains its output.
        """
        script = self.here(block.script)
        if STAYS in script:
            self._leave_running(script.strip())
            return CommandResult(0, "", "")
        done = self._run(script)
        assert done.code == 0, f"{block.section}: {script}\n{done.out}\n{done.err}"
        return done

    def _run(self, script: str) -> CommandResult:
        """Run a block; it stops at the first command that fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=self._env,
            cwd=chart.ROOT,
            capture_output=True,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def _leave_running(self, script: str) -> None:
        """Run a block in a terminal of its own, until `close`; its port answers when this returns."""
        port = int(re.findall(r"(\d+):\d+", script)[-1])
        self._ports.enter_context(_alone_at(port))
        self._open.append(
            subprocess.Popen(["bash", "-c", f"exec {script}"], env=self._env, cwd=chart.ROOT, start_new_session=True)
        )
        wait_until(lambda: _answers(port), f"port {port} is forwarded")

    def close(self) -> None:
        """Close the terminals."""
        for process in self._open:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)
        self._ports.close()


@contextmanager
def _alone_at(port: int) -> Generator[None]:
    """Lock the port: the page fixes its ports, and tests of two clusters may follow the page on one machine at the same
    time."""
    with (Path(tempfile.gettempdir()) / f"slipway-port-{port}.lock").open("w") as file:

        def is_mine() -> bool:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        wait_until(is_mine, f"another reader of the page leaves port {port}", timeout_s=TURN_S)
        yield


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/bash\n{line}\n", "utf-8")
    path.chmod(0o755)


def _answers(port: int) -> bool:
    with closing(socket.socket()) as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
