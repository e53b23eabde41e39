"""One process of a service, started and ended by hand, as the container of a pod would be.

Owns the process and its log. Restarts are the test's to ask for; nothing here supervises.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

READY_S = 60.0
STOP_S = 15.0
TAIL_LINES = 20
_SPAWNER = ThreadPoolExecutor(1, "spawner")
"""What a process is told when its parent dies, it is told when the thread that started it ends: this one does not."""


class ServiceProcess:
    """`health` is the address of its probes, host and port."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], health: str, log: Path) -> None:
        self.name = name
        self.argv = list(argv)
        self.env = dict(env)
        self.log = log
        self._health = f"http://{health}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.pid

    @property
    def pid_if_any(self) -> int | None:
        """Of the running process; None while there is none, as between an end and the start after it."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def is_running(self) -> bool:
        return self.pid_if_any is not None

    @property
    def has_crashed(self) -> bool:
        """Whether it ended without being asked to."""
        process = self._process
        return process is not None and process.poll() is not None

    def how_it_ended(self) -> str:
        """Its exit code, or minus the signal that ended it, and the end of its log."""
        code = self._process.poll() if self._process is not None else None
        return f"{self.name} ended by itself with {code}; the end of its log:\n{self.tail()}"

    def start(self) -> None:
        """Start it; see `await_ready`."""
        guard = shutil.which("setpriv")
        argv = [guard, "--pdeathsig", "TERM", *self.argv] if guard else self.argv
        with self.log.open("ab") as out:
            self._process = _SPAWNER.submit(
                subprocess.Popen[bytes],
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.env,
                start_new_session=True,
            ).result()

    def await_ready(self) -> None:
        """Wait until it says that it can do its work."""
        try:
            wait_until(lambda: self.is_ready() or not self.is_running, f"{self.name} is ready", timeout_s=READY_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; the end of its log:\n{self.tail()}") from None
        assert self.is_running, self.how_it_ended()

    def is_ready(self) -> bool:
        """What its probe says now."""
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"{self._health}/readyz", verify=NO_TLS, trust_env=False, timeout=2.0).status_code == 200
        return False

    def metrics(self) -> str:
        """Its page of metrics."""
        return httpx2.get(f"{self._health}/metrics", verify=NO_TLS, trust_env=False, timeout=5.0).text

    def kill(self) -> None:
        """SIGKILL; it has ended when this returns."""
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(how)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return process.wait(STOP_S)

    def pause(self) -> None:
        """SIGSTOP: it stands still, and knows nothing of it."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def tail(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])
