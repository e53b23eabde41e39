"""Commands in running containers, through the API server, as `kubectl exec` runs them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import pytest

from slipway.kube.errors import read_status
from slipway.kube.exec_socket import RefusedUpgrade, SocketChannels, SocketOptions, open_channels
from slipway.model import exec_channels
from slipway.model.exec_channels import STDERR, STDIN, STDIN_END, STDOUT
from slipway.sdk.commands import CommandOutput, CommandResult, input_messages
from tests.contract.nodes.conftest import Pods
from tests.contract.nodes.target import NodeTarget

WITHIN_S = 60.0
SLEEP = ("sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done")


class Commands:
    """Runs commands in pods of the node."""

    def __init__(self, target: NodeTarget) -> None:
        self._api = target.api

    async def opened(self, pod: str, command: Sequence[str], **query: str | bool) -> SocketChannels | RefusedUpgrade:
        given = [("command", word) for word in command]
        tty = bool(query.get("tty"))
        flags: dict[str, str | bool] = {"stdout": True, "stderr": not tty, "container": "main", **query}
        given += [(name, value if isinstance(value, str) else str(value).lower()) for name, value in flags.items()]
        url = f"{self._api.url}/api/v1/namespaces/default/pods/{pod}/exec?{urlencode(given)}"
        return await open_channels(url, self._api.headers, SocketOptions(tls=self._api.tls), timeout_s=WITHIN_S)

    @asynccontextmanager
    async def running(self, pod: str, command: Sequence[str], **query: str | bool) -> AsyncGenerator[SocketChannels]:
        channels = await self.opened(pod, command, **query)
        assert isinstance(channels, SocketChannels), channels
        try:
            async with asyncio.timeout(WITHIN_S):
                yield channels
        finally:
            await channels.close()

    async def run(self, pod: str, *command: str, data: bytes | None = None, **query: str | bool) -> CommandResult:
        """Run a command and return its output and its exit code."""
        async with self.running(pod, command, stdin=data is not None, **query) as channels:
            for message in input_messages(data) if data is not None else ():
                await channels.send(message)
            return await to_end(channels)


async def first_output(channels: SocketChannels) -> bytes:
    """Return the first output of a command. An API server may begin each stream with an empty message."""
    while len(message := await channels.receive()) == 1:
        pass
    assert message[0] == STDOUT
    return message[1:]


async def to_end(channels: SocketChannels) -> CommandResult:
    output = CommandOutput()
    while (message := await channels.receive()) and not output.take(message):
        pass
    return output.result


@pytest.fixture
def commands(target: NodeTarget) -> Commands:
    return Commands(target)


@pytest.fixture
async def pod(pods: Pods) -> str:
    """A running pod with a variable in its environment."""
    name = await pods.start(SLEEP, container={"env": [{"name": "COLOUR", "value": "red"}]})
    await pods.running(name)
    return name


async def test_both_outputs_and_the_exit_code(commands: Commands, pod: str) -> None:
    """Each output is a stream of its own; the environment is that of the container."""
    found = await commands.run(pod, "sh", "-c", 'echo "$COLOUR"; echo bad >&2; exit 3')
    assert found == CommandResult(3, b"red\n", b"bad\n")
    assert (await commands.run(pod, "true")).exit_code == 0


async def test_it_ends_as_its_program_does(commands: Commands, pod: str) -> None:
    """The exit code is the program's own; a signal gives 128 plus its number."""
    assert (await commands.run(pod, "sh", "-c", "kill -TERM $$")).exit_code == 143


async def test_input_is_passed_on_to_its_end(commands: Commands, pod: str) -> None:
    """Input larger than any buffer on the way arrives whole, and its end is the end of the file."""
    data = bytes(range(256)) * 8192
    assert await commands.run(pod, "cat", data=data) == CommandResult(0, data)
    assert (await commands.run(pod, "wc", "-c", data=b"")).stdout.strip() == b"0"


async def test_without_input_the_command_finds_the_end_at_once(commands: Commands, pod: str) -> None:
    """A command without input reads the end of the file at once."""
    assert await commands.run(pod, "cat") == CommandResult(0)


async def test_a_slow_reader_makes_the_command_wait(commands: Commands, pod: str) -> None:
    """The command waits for a slow reader, who gets every byte."""
    async with commands.running(pod, ["head", "-c", "5000000", "/dev/zero"]) as channels:
        await asyncio.sleep(0.5)
        assert len((await to_end(channels)).stdout) == 5_000_000


async def test_on_a_terminal(commands: Commands, pod: str) -> None:
    """The command has a terminal of the requested size, keys send signals, and there is one output."""
    script = "sleep 0.3; stty size; tty >/dev/null && echo yes >&2; read line; echo got $line"
    async with commands.running(pod, ["sh", "-c", script], stdin=True, tty=True) as channels:
        await channels.send(exec_channels.resize(101, 31))
        await channels.send(bytes((STDIN,)) + b"word\n")
        found = await to_end(channels)
    assert (found.exit_code, found.stderr) == (0, b"")
    assert b"31 101" in found.stdout
    assert b"yes" in found.stdout
    assert b"got word" in found.stdout


async def test_input_after_the_end_is_dropped(commands: Commands, pod: str) -> None:
    """A client that still sends gets no error: the exit code is the result."""
    async with commands.running(pod, ["sh", "-c", "exit 4"], stdin=True) as channels:
        assert (await to_end(channels)).exit_code == 4
        while await channels.receive():
            pass
        await channels.send(bytes((STDIN,)) + b"late")


async def test_the_interrupt_key_of_a_terminal(commands: Commands, pod: str) -> None:
    """The interrupt key ends the command, as in a local terminal.

    The shell waits by itself. With a `sleep` behind the `echo` it could lose the signal between the two: it holds
    signals back while it starts a program, and then waits for that program.
    """
    async with commands.running(pod, ["sh", "-c", "echo here; read line"], stdin=True, tty=True) as channels:
        assert b"here" in await first_output(channels)
        await channels.send(bytes((STDIN,)) + b"\x03")
        assert (await to_end(channels)).exit_code == 130


async def test_a_program_that_is_not_there(commands: Commands, pod: str) -> None:
    """The last message reports the missing program by name."""
    output = CommandOutput()
    async with commands.running(pod, ["no-such-program"]) as channels:
        while (message := await channels.receive()) and not output.take(message):
            pass
    assert output.end is not None
    assert output.end.code is None or output.end.code in (126, 127)
    assert "no-such-program" in output.end.message or output.end.code is not None


async def test_a_command_ends_with_its_container(commands: Commands, pods: Pods, pod: str) -> None:
    """No process of the command runs on when the pod is gone."""
    async with commands.running(pod, ["sh", "-c", "echo here; sleep 600"]) as channels:
        assert await first_output(channels) == b"here\n"
        await pods.delete(pod, gracePeriodSeconds=1)
        output = CommandOutput()
        while (message := await channels.receive()) and not output.take(message):
            pass
    assert output.end is None or output.end.code != 0


async def test_input_that_is_not_read_keeps_nothing_from_the_end(commands: Commands, pod: str) -> None:
    """A command that ends without reading its input has ended."""
    async with commands.running(pod, ["sh", "-c", "echo done >&2; exit 4"], stdin=True) as channels:
        await channels.send(bytes((STDIN,)) + b"unread")
        await channels.send(STDIN_END)
        found = await to_end(channels)
    assert (found.exit_code, found.stderr) == (4, b"done\n")
    assert STDERR == 2


async def test_a_container_that_is_not_in_the_pod(commands: Commands, pod: str) -> None:
    """An unknown container is refused before the WebSocket opens, with a Status."""
    refused = await commands.opened(pod, ["true"], container="other")
    assert isinstance(refused, RefusedUpgrade)
    assert refused.status == 400
    assert "container other is not valid for pod" in str(read_status(refused.body).message)


async def test_a_pod_that_is_not_there(commands: Commands) -> None:
    """A command in a missing pod gets 404, as every call on it."""
    refused = await commands.opened("no-such-pod", ["true"])
    assert isinstance(refused, RefusedUpgrade)
    assert refused.status == 404
