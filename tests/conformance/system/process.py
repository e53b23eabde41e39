"""One process of a service, started and ended by hand, as the container of a pod would be.

Owns the process and its log. Only the test restarts a process; nothing here supervises it.
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
"""The kernel signals a process when the thread that started it ends, not only when its parent dies. This thread
lives as long as the parent."""


class ServiceProcess:
    """A process; `health` is the address of its probes, host and port."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], health: str, log: Path) -> None:
        self.name = name
        self.argv = list(argv)
        self.env = dict(env)
        self.log = log
        self._health = f"http://{health}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid of the process, which was started."""
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.pid

    @property
    def pid_if_any(self) -> int | None:
        """The pid of the running process; None while none runs, as between an end and the next start."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def is_running(self) -> bool:
        return self.pid_if_any is not None

    @property
    def has_crashed(self) -> bool:
        """Whether the process ended by itself."""
        process = self._process
        return process is not None and process.poll() is not None

    def how_it_ended(self) -> str:
        """Its exit code, or minus the signal that ended it, and the end of its log."""
        code = self._process.poll() if self._process is not None else None
        return f"{self.name} ended by itself with {code}; the end of its log:\n{self.tail()}"

    def start(self) -> None:
        """Start the process without waiting; see `await_ready`."""
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
        """Wait until its probe reports that it is ready."""
        try:
            wait_until(lambda: self.is_ready() or not self.is_running, f"{self.name} is ready", timeout_s=READY_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; the end of its log:\n{self.tail()}") from None
        assert self.is_running, self.how_it_ended()

    def is_ready(self) -> bool:
        """Whether its probe reports ready now."""
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"{self._health}/readyz", verify=NO_TLS, trust_env=False, timeout=2.0).status_code == 200
        return False

    def metrics(self) -> str:
        """Its page of metrics."""
        return httpx2.get(f"{self._health}/metrics", verify=NO_TLS, trust_env=False, timeout=5.0).text

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and return the exit code."""
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
        """Send SIGSTOP: the process stops without noticing."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def tail(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])
