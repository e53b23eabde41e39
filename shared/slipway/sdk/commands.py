"""Commands in ranks as values: the command, the messages that are sent, and the result. Pure.

Owns the path of the call and the decoding of its messages (`model/exec_channels.py`). Must not know how a message
reaches the server. Both clients of the SDK and the command line use it.
"""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, urlencode

from slipway.errors import DeadlineError, InvalidError, PermanentError, UnavailableError
from slipway.model import exec_channels
from slipway.model.exec_channels import PIECE_BYTES, STATUS, STDERR, STDIN, STDIN_END, STDOUT, CommandEnd

OUTPUT_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of output that are collected; they are kept in memory."""


class RankCommand(NamedTuple):
    """A command, and the rank that runs it. An empty `command` starts a shell; an empty `container` is the main one."""

    id: str
    command: tuple[str, ...] = ()
    rank: int = 0
    container: str = ""
    stdin: bool = False
    tty: bool = False

    @property
    def path(self) -> str:
        """The path of the call, with its query. Raises InvalidError for a negative rank or a too long command."""
        if self.rank < 0:
            raise InvalidError(f"rank: must be 0 or more, not {self.rank}")
        query = [("command", word) for word in self.command]
        query += [("container", self.container)] if self.container else []
        query += [(name, "true") for name, is_on in (("stdin", self.stdin), ("tty", self.tty)) if is_on]
        try:
            encoded, id_ = urlencode(query), quote(self.id, safe="")
        except UnicodeEncodeError:
            raise InvalidError("command: a word, the container or the id is not UTF-8 text") from None
        if len(encoded) > exec_channels.QUERY_BYTES_MAX:
            most = exec_channels.QUERY_BYTES_MAX
            raise InvalidError(f"command: is too long: {most} bytes in an address; send more as input")
        path = f"/api/v1/allocations/{id_}/ranks/{self.rank}/exec"
        return f"{path}?{encoded}" if query else path


class CommandResult(NamedTuple):
    """The output of a command in a rank, and its exit code."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def text(self) -> str:
        """The standard output as text."""
        return self.stdout.decode(errors="replace")


class CommandOutput:
    """Collects the output of a command. Pass each message to `take`, then read `result`."""

    def __init__(self) -> None:
        self._parts: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        self._size = 0
        self.end: CommandEnd | None = None

    def take(self, message: bytes | str) -> bool:
        """Add one message; return whether it was the last one. Raises PermanentError when there is too much output."""
        data = message.encode() if isinstance(message, str) else message
        if data and data[0] in self._parts:
            self._size += len(data) - 1
            if self._size > OUTPUT_BYTES_MAX:
                raise PermanentError(f"the command printed more than {OUTPUT_BYTES_MAX} bytes; let it write to a file")
            self._parts[data[0]].append(data[1:])
        elif data and data[0] == STATUS:
            self.end = exec_channels.end_of(data[1:])
        return self.end is not None

    @property
    def result(self) -> CommandResult:
        """The result of the command.

        Raises:
            UnavailableError: the connection was lost before the end. PermanentError: the command could not be run.
        """
        if self.end is None:
            raise lost()
        if self.end.code is None:
            raise PermanentError(self.end.message)
        return CommandResult(self.end.code, b"".join(self._parts[STDOUT]), b"".join(self._parts[STDERR]))


def input_messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages that send the whole input of a command."""
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes((STDIN,)) + data[start : start + PIECE_BYTES]
    yield STDIN_END


def late(wanted: RankCommand, timeout_s: float | None) -> DeadlineError:
    """Return the error for a command that did not end within `timeout_s`."""
    limit = f"{timeout_s:g} s" if timeout_s is not None else "the time that a connection may take"
    return DeadlineError(f"the command in rank {wanted.rank} of {wanted.id} has not ended within {limit}")


def lost() -> UnavailableError:
    """Return the error for a connection that broke before the command had ended."""
    return UnavailableError("the connection to the rank was lost; whether the command still runs is not known")
