"""One child process of the local stack: started in its own session, watched, ended by its pid.

Owns the process and its log file. Knows nothing about the program that it runs.

The watchdog ends a service that is no longer alive, as a kubelet does, and the stack starts it again. The period, the
timeout and the number of failures are those of the chart's livenessProbe. Promises: a service whose `/livez` fails or
does not answer three times in a row is ended. Before that, it is asked to write the stack of every task to its log. A
starting service has a minute to answer.
"""

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slipway.errors import UnavailableError
from slipway.local.layout import StackProcess, start_ticks
from slipway.runtime import private_files
from slipway.runtime.clock import Clock

POLL_S = 0.03
TAIL_LINES = 15
ANSWER_BYTES = 4096


class Child:
    """A program with its own log file and its own session, so that Ctrl-C reaches only the parent process."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        clock: Clock,
        url: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: verifies the certificate of `url` if it is https."""
        self._tls = tls
        self.name = name
        self.url = url
        self.log = log
        self._argv = list(argv)
        self._env = dict(env)
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process id of the last start; 0 before the first."""
        return self._process.pid if self._process is not None else 0

    def member(self) -> StackProcess:
        """Return the process's entry in the state file."""
        return StackProcess(
            name=self.name, pid=self.pid, started=start_ticks(self.pid), url=self.url, log=str(self.log)
        )

    async def start(self) -> None:
        """Start the process, unless it runs; its output is appended to its log."""
        if self.is_running:
            return
        with open(self.log, "ab", opener=private_files.opener) as out:  # noqa: ASYNC230 - a local file, not read
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env,
                start_new_session=True,
            )

    async def ended(self) -> int:
        """Wait for the process's end and return its exit code; 0 if it was never started."""
        if self._process is None:
            return 0
        return await self._process.wait()

    def signal(self, how: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(how)

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM and wait for the end; after `grace_s` send SIGKILL to the whole process group."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def tail(self) -> str:
        """Return the last lines of the process's log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-TAIL_LINES:])

    async def answers(self, path: str, deadline_s: float) -> None:
        """Wait until `path` of the process's address answers 200.

        Raises:
            UnavailableError: the process ended, or did not answer in time; the message contains the end of its log.
        """
        until = self._clock.monotonic() + deadline_s
        while await self.why_not(path, 1.0) is not None:
            if not self.is_running:
                raise UnavailableError(f"{self.name} ended while it started; the end of {self.log}:\n{self.tail()}")
            if self._clock.monotonic() > until:
                raise UnavailableError(
                    f"{self.name} was not ready after {deadline_s:.0f} s; the end of {self.log}:\n{self.tail()}"
                )
            await self._clock.sleep(POLL_S)

    async def why_not(self, path: str, timeout_s: float) -> str | None:
        """Return None when `path` of the process's address answers 200 in time, else the answer or the error."""
        host, _, port = self.url.partition("://")[2].rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=self._tls)
                try:
                    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                    writer.write(request.encode())
                    await writer.drain()
                    status = await reader.readline()
                    if b" 200 " in status:
                        return None
                    _, _, body = (await reader.read(ANSWER_BYTES)).partition(b"\r\n\r\n")
                    return body.decode(errors="replace").strip() or status.decode(errors="replace").strip()
                finally:
                    writer.close()
        except TimeoutError:
            return f"no answer in {timeout_s:g} s"
        except OSError as error:
            return f"cannot be reached: {error.strerror or error}"


PERIOD_S = 10.0
TIMEOUT_S = 5.0
FAILURES_MAX = 3
START_FAILURES_MAX = 6
"""Maximum failures in a row of a process that has not answered yet."""
DUMP_S = 1.0
"""Seconds that the process has to write its stacks."""
GRACE_S = 5.0
"""Seconds that the process has to end after SIGTERM. A hanging process often cannot."""


class Watchdog:
    """Probes one child; the stack calls `look` every `PERIOD_S`. `say` is called with one line for each event."""

    def __init__(self, child: Child, clock: Clock, say: Callable[[str], None], *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child = child
        self._clock = clock
        self._say = say
        self._pid = 0
        self._was_alive = False
        self._failures = 0

    async def look(self) -> None:
        """Probe the child once, and end it after too many failures."""
        child = self._child
        if not child.is_running:
            return
        if child.pid != self._pid:
            self._pid, self._was_alive, self._failures = child.pid, False, 0
        why = await child.why_not("/livez", self._timeout_s)
        if why is None:
            self._was_alive, self._failures = True, 0
            return
        self._failures += 1
        is_over = self._failures >= (FAILURES_MAX if self._was_alive else START_FAILURES_MAX)
        if not is_over or child.pid != self._pid or not child.is_running:
            return
        self._failures = 0
        self._say(f"{child.name} is not alive ({why}); restarting it. Its stacks are in {child.log}")
        child.signal(signal.SIGUSR1)
        await self._clock.sleep(DUMP_S)
        if child.pid == self._pid:
            await child.stop(GRACE_S)
