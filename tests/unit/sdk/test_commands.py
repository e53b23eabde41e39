"""Commands in ranks by the SDK: both clients against the real api."""

import pytest

from slipway.errors import DeadlineError, InvalidError, NotFoundError, PermanentError
from slipway.model.exec_channels import STDERR, STDOUT, failure, status_of
from slipway.sdk import commands
from slipway.sdk.commands import CommandOutput, CommandResult, RankCommand
from tests.support.api_world import ApiWorld
from tests.support.sdk import Shell
from tests.unit.api.allocations.test_rank_exec import a_running


async def test_what_a_command_prints_is_collected(shell: Shell, world: ApiWorld) -> None:
    """The output of a command is collected with its exit code, which raises nothing; input is passed on completely."""
    id_ = await a_running(world, ranks=2)
    said = await shell.do(lambda client: client.exec(id_, ["echo", "a", "b"], rank=1))
    assert (said, said.text) == (CommandResult(0, b"a b"), "a b")
    assert await shell.do(lambda client: client.exec(id_, ["fail", "3"])) == CommandResult(3, b"", b"it failed\n")
    data = b"x" * 300_000
    assert (await shell.do(lambda client: client.exec(id_, ["echo"], stdin=data))).stdout == data


async def test_what_cannot_be_run_is_raised(shell: Shell, world: ApiWorld) -> None:
    """A command that cannot be run raises an error of the tree."""
    id_ = await a_running(world)
    with pytest.raises(PermanentError, match="executable file not found"):
        await shell.do(lambda client: client.exec(id_, ["nvidia-smi"]))
    with pytest.raises(NotFoundError, match="it has only rank 0"):
        await shell.do(lambda client: client.exec(id_, ["echo"], rank=1))
    with pytest.raises(DeadlineError, match="has not ended within"):
        await shell.do(lambda client: client.exec(id_, ["sleep"], timeout_s=0.5))


@pytest.mark.parametrize("rank", [-1, -5])
def test_a_rank_is_a_number_of_one(rank: int) -> None:
    """A rank must be an existing number; others are refused before anything is sent."""
    with pytest.raises(InvalidError, match="rank"):
        _ = RankCommand("a", ("true",), rank=rank).path


def test_a_command_that_is_too_long_is_refused_here() -> None:
    """A command that is too long is refused by the client with a message, because the server would only report a head
    that is too large."""
    with pytest.raises(InvalidError, match="send more as input"):
        _ = RankCommand("a", ("x" * 20_000,)).path


def test_output_beyond_the_limit_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output above the limit is an error that suggests a file, so that it does not fill the client's memory."""
    monkeypatch.setattr(commands, "OUTPUT_BYTES_MAX", 10)
    output = CommandOutput()
    output.take(bytes((STDOUT,)) + b"x" * 6)
    with pytest.raises(PermanentError, match="write to a file"):
        output.take(bytes((STDERR,)) + b"x" * 6)


def test_a_connection_that_ends_early_is_no_result() -> None:
    """A connection that ends early is an error, and so is a command that was not run."""
    with pytest.raises(Exception, match="was lost"):
        _ = CommandOutput().result
    output = CommandOutput()
    assert output.take(b"\x03" + failure("no such container"))
    with pytest.raises(PermanentError, match="no such container"):
        _ = output.result
    output = CommandOutput()
    assert output.take(b"\x03" + status_of(0))
    assert output.result == CommandResult(0)
