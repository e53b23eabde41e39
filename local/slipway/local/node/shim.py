"""One container as a process group that outlives the node's process: started at most once, its exit is never lost.

Owns the process, its marker files and its end. Knows nothing of pods.

A shell script of a few lines runs the program, like a container runtime's shim. The script writes its pid before the
program starts and the exit code after its end, so that a restarted node process finds both. Output goes through named
pipes that the program has open at both ends: without a reader the program waits, and is not killed.

Invariants: the marker and the program are on disk before the process exists, so that a later node process finds them; a
folder with a marker is never used for another start; when the program ends, its whole process group is killed.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from slipway.errors import InvariantError
from slipway.runtime import private_files
from slipway.runtime.clock import Clock

SHELL = "/bin/sh"
STREAMS = ("stdout", "stderr")
KILLED_CODE = 128 + signal.SIGKILL
_POLL_S = 0.2
_SCRIPT = (
    'exec 3>&2 2>/dev/null; echo $$ >"$0/pid"; trap : HUP INT QUIT TERM USR1 USR2; '
    '(exec "$@" 2>&3 3>&-); echo $? >"$0/exit"'
)
"""Before the traps are set, a signal ends the shell, and the program never starts. The shell itself prints nothing:
otherwise its message about a signal ("Terminated") would appear between the lines of the program."""
_AGAIN_S = 0.005
_READ_BYTES = 64 * 1024
_PRIVATE = 0o600
_PROGRAM = "program"

Sink = Callable[[str, bytes], object]
"""Called with (stream, data) for each piece of output."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run; the first word of `argv` is the path of a file."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str


class Marker(msgspec.Struct, frozen=True):
    """The content of the marker file, which is written before a start. `started_at` is epoch seconds."""

    started_at: float


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a process. `code` is None when it is unknown. `at` is epoch seconds."""

    code: int | None
    at: float


class Shim:
    """A process that was started or found again. Create it with `start` or `find`."""

    def __init__(
        self, folder: Path, pid: int, clock: Clock, sink: Sink, child: "subprocess.Popen[bytes] | None"
    ) -> None:
        self.pid = pid
        self.started_at = _marker(folder).started_at
        self._folder = folder
        self._clock = clock
        self._sink = sink
        self._child = child
        self._killed = False
        self.exit: ProcessExit | None = None
        self._over = asyncio.Event()
        self._readers: dict[str, int] = {}

    @property
    def is_running(self) -> bool:
        return self.exit is None

    def signal(self, how: signal.Signals) -> None:
        """Send a signal to the whole process group."""
        if self.exit is not None:
            return
        self._killed = self._killed or how is signal.SIGKILL
        signal_group(self.pid, how)
        if how is not signal.SIGKILL and not _has_program(self.pid):
            # The signal arrived after the traps were set and before the program was executed, so it had no effect.
            # It is sent again; a signal after the program's end does no harm.
            asyncio.get_running_loop().call_later(_AGAIN_S, self.signal, how)

    async def ended(self) -> ProcessExit:
        """Wait for the end; all output has been passed on by then."""
        await self._over.wait()
        if self.exit is None:
            raise InvariantError("a process has ended without an exit")
        return self.exit

    def follow(self) -> None:
        """Begin to read the output and to wait for the end, on the running loop."""
        loop = asyncio.get_running_loop()
        for stream in STREAMS:
            fd = os.open(self._folder / stream, os.O_RDONLY | os.O_NONBLOCK)
            self._readers[stream] = fd
            loop.add_reader(fd, self._read, stream, fd)
        call_at_end(self.pid, self._child, self._end)

    def _read(self, stream: str, fd: int) -> bool:
        """Pass available output on. Return False when no output is available, now or at the end."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._sink(stream, data)
            return True
        self._close(stream)
        return False

    def _close(self, stream: str) -> None:
        fd = self._readers.pop(stream, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _end(self) -> None:
        # The program's children end with it, as in a container. Their output is already in the pipes.
        signal_group(self.pid, signal.SIGKILL)
        code = self._child.wait() if self._child is not None else None
        for stream, fd in list(self._readers.items()):
            while self._read(stream, fd):
                pass
            self._close(stream)
        self.exit = _exit_of(self._folder, self._clock.now(), code, killed=self._killed)
        self._over.set()


def start(folder: Path, program: Program, clock: Clock, sink: Sink) -> Shim:
    """Start `program`; `folder` does not exist yet and is used for this start only.

    Raises:
        OSError: the program could not be started; the folder cannot be used again.
        FileExistsError: the folder was already used for a start.
    """
    folder.mkdir(parents=True)
    _mark(folder, clock.now())
    private_files.write(folder / _PROGRAM, msgspec.json.encode(program))
    ends: dict[str, int] = {}
    try:
        for stream in STREAMS:
            os.mkfifo(folder / stream, _PRIVATE)
            ends[stream] = os.open(folder / stream, os.O_RDWR)
        child = subprocess.Popen(  # noqa: S603 - a node runs the programs of pods
            [SHELL, "-c", _SCRIPT, str(folder), *program.argv],
            stdin=subprocess.DEVNULL,
            stdout=ends["stdout"],
            stderr=ends["stderr"],
            env=dict(program.env),
            cwd=program.cwd,
            start_new_session=True,
        )
        shim = Shim(folder, child.pid, clock, sink, child)
        shim.follow()
    finally:
        for fd in ends.values():
            os.close(fd)
    return shim


def kept_program(folder: Path) -> Program | None:
    """Return the program that was started in the folder, for commands next to it; None when it was not stored."""
    try:
        return msgspec.json.decode((folder / _PROGRAM).read_bytes(), type=Program)
    except (OSError, msgspec.DecodeError):
        return None


def find(folder: Path, clock: Clock, sink: Sink) -> Shim | ProcessExit:
    """Return the process that an earlier node process started in `folder`, or its end."""
    pid = _number(folder / "pid")
    if pid is not None and _is_ours(pid, folder):
        shim = Shim(folder, pid, clock, sink, None)
        shim.follow()
        return shim
    return _exit_of(folder, clock.now(), None, killed=False)


def started_at(folder: Path) -> float:
    """Return the start time of the folder's process (epoch seconds); 0 when it is unknown."""
    return _marker(folder).started_at


def _exit_of(folder: Path, now: float, status: int | None, *, killed: bool) -> ProcessExit:
    """Return the end that the shim's script recorded, else the end derived from the script's own exit status."""
    code = _number(folder / "exit")
    if code is not None:
        return ProcessExit(code=code, at=now if status is not None else (folder / "exit").stat().st_mtime)
    if status is not None and status < 0:
        return ProcessExit(code=128 - status, at=now)
    return ProcessExit(code=KILLED_CODE if killed else None, at=now)


def _mark(folder: Path, now: float) -> None:
    (folder / "marker").write_bytes(msgspec.json.encode(Marker(now)))


def _marker(folder: Path) -> Marker:
    try:
        return msgspec.json.decode((folder / "marker").read_bytes(), type=Marker)
    except (OSError, msgspec.DecodeError):
        return Marker(0.0)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether a process is the shim of the folder: its command line contains the folder."""
    proc = Path(f"/proc/{pid}/cmdline")
    if not Path("/proc/self").exists():
        listed = subprocess.run(  # noqa: S603
            ["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
        )
        return os.fsencode(folder) in listed.stdout
    try:
        return os.fsencode(folder) in proc.read_bytes().split(b"\0")
    except OSError:
        return False


def _has_program(pid: int) -> bool:
    """Whether the shell has executed the program; True on systems where this cannot be determined.

    A child that has not yet executed the program has the shell's command line, and its traps.
    """
    proc = Path("/proc")
    listing = proc / f"{pid}/task/{pid}/children"
    if not listing.exists():
        return True
    try:
        own = (proc / str(pid) / "cmdline").read_bytes()
        return any((proc / child / "cmdline").read_bytes() != own for child in listing.read_text().split())
    except OSError:  # one of the processes has just ended
        return False


def signal_group(pid: int, how: signal.Signals) -> None:
    """Send a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, how)


def call_at_end(pid: int, child: "subprocess.Popen[bytes] | None", then: Callable[[], None]) -> None:
    """Call `then` on the event loop once the process has ended."""
    loop = asyncio.get_running_loop()
    if hasattr(os, "pidfd_open"):
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            loop.call_soon(then)
            return

        def on_end() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            then()

        loop.add_reader(fd, on_end)
        return

    def wait() -> None:
        if child is not None:
            child.wait()
        else:
            pause = threading.Event()
            while _exists(pid):
                pause.wait(_POLL_S)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits for the end any more
            loop.call_soon_threadsafe(then)

    threading.Thread(target=wait, daemon=True, name=f"wait-{pid}").start()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
