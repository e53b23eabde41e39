"""Commands in containers that do not exist: a fake of the port `Execs`, for tests of the code that uses it.

Each command is answered by a script: a coroutine that reads its input and writes its output. Owns the framing, so that
scripts see bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from slipway.errors import UnavailableError
from slipway.model import exec_channels
from slipway.model.exec_channels import STATUS, STDERR, STDIN, STDIN_END, STDOUT

QUEUE_MAX = 16


class ContainerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a caller requested, and its container."""

    pod: str
    container: str
    command: tuple[str, ...]
    stdin: bool
    tty: bool


class CommandIo:
    """The side of the command: `read` returns the next input (empty at the end), `write` prints."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MAX)
        self.printed: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MAX)
        self.sizes: list[tuple[int, int]] = []

    async def read(self) -> bytes:
        while True:
            message = await self.sent.get()
            size = exec_channels.size_of(message[1:])
            if message == STDIN_END:
                return b""
            if message[0] == STDIN:
                return message[1:]
            if size is not None:
                self.sizes.append(size)

    async def write(self, data: bytes, *, stream: int = STDOUT) -> None:
        await self.printed.put(bytes((stream,)) + data)


Script = Callable[[ContainerCommand, CommandIo], Awaitable[int]]


async def echo(asked: ContainerCommand, io: CommandIo) -> int:
    """Print its arguments, then its input, when it has one, until that ends."""
    await io.write(" ".join(asked.command[1:]).encode())
    while asked.stdin and (data := await io.read()):
        await io.write(data)
    return 0


async def fail(asked: ContainerCommand, io: CommandIo) -> int:
    """Print an error, and exit with the code in its first argument."""
    await io.write(b"it failed\n", stream=STDERR)
    return int(asked.command[1])


async def wait(_asked: ContainerCommand, io: CommandIo) -> int:
    """Print `here`, then wait until its input ends."""
    await io.write(b"here")
    while await io.read():
        pass
    return 0


async def sleep(_asked: ContainerCommand, _io: CommandIo) -> int:
    """Never end."""
    await asyncio.Event().wait()
    return 0


class ScriptedCommands:
    """{name of a program: its script}; any other program does not exist in the container."""

    def __init__(self) -> None:
        self.programs: dict[str, Script] = {"echo": echo, "fail": fail, "wait": wait, "sleep": sleep}
        self.started: list[ContainerCommand] = []
        self.open: list[ScriptedChannels] = []

    def start(self, asked: ContainerCommand) -> "ScriptedChannels":
        self.started.append(asked)
        channels = ScriptedChannels(asked, self.programs.get(asked.command[0]))
        self.open.append(channels)
        return channels

    async def left(self, channels: "ScriptedChannels") -> None:
        self.open.remove(channels)
        await channels.close()


class ScriptedChannels:
    """`ContainerChannels` in front of one script."""

    def __init__(self, asked: ContainerCommand, script: Script | None) -> None:
        self._io = CommandIo()
        self._asked = asked
        self._running = asyncio.ensure_future(self._run(script))
        self.is_broken = False
        """whether the connection is broken, which is noticed only when something is sent"""

    async def send(self, message: bytes) -> None:
        if self.is_broken:
            raise UnavailableError("the connection to the container was lost")
        await self._io.sent.put(message)

    async def receive(self) -> bytes:
        return await self._io.printed.get()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, script: Script | None) -> None:
        if script is None:
            status = exec_channels.failure(f'exec: "{self._asked.command[0]}": executable file not found in $PATH')
        else:
            status = exec_channels.status_of(await script(self._asked, self._io))
        await self._io.write(status, stream=STATUS)
