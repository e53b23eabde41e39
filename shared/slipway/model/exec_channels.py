"""The protocol of a command in a container: Kubernetes' channels over a WebSocket.

Owns the numbers of the channels and the meaning of the last message. The first byte of every binary message is the
channel; the rest is data. A `CLOSE` message contains the number of the channel that has ended; the end of the standard
input is sent this way. A `STATUS` message contains one `Status` object and follows all output of the command. A
`RESIZE` message contains the size of the terminal. Pure; the standard library only, because the command line imports
it.

Source: k8s.io/apimachinery/pkg/util/remotecommand/constants.go, k8s.io/kubelet/pkg/cri/streaming/remotecommand (v1.36).
"""

import json
from typing import Any, NamedTuple

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PIECE_BYTES = 32 * 1024
"""Maximum data bytes of a message that we send; messages from the Kubernetes API have the same size."""
MESSAGE_BYTES_MAX = 256 * 1024
QUERY_BYTES_MAX = 12 * 1024
"""Maximum bytes of a command in the URL of a request, because servers limit the size of the request head."""
STDIN_END = bytes((CLOSE, STDIN))
NOT_FOUND_CODE = 127
"""The exit code of shells for a program that does not exist."""
_EXIT_CODE, _NONZERO = "ExitCode", "NonZeroExitCode"
_NO_PROGRAM = ("executable file not found", "no such file or directory")
SIDE_MAX = 4096


class CommandEnd(NamedTuple):
    """The end of a command: its exit code; or `code` is None and `message` is the reason."""

    code: int | None
    message: str = ""

    @property
    def is_missing_program(self) -> bool:
        """Whether the container has no such program."""
        return self.code is None and any(mark in self.message for mark in _NO_PROGRAM)


def end_of(status: bytes) -> CommandEnd:
    """Return the end of the command from the last message, without its channel byte."""
    try:
        told: Any = json.loads(status)
        if told["status"] == "Success":
            return CommandEnd(0)
        message = str(told.get("message") or told.get("reason") or "the command could not be run")
        if told.get("reason") == _NONZERO:
            causes = told["details"]["causes"]
            return CommandEnd(next(int(each["message"]) for each in causes if each["reason"] == _EXIT_CODE), message)
        return CommandEnd(None, message)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return CommandEnd(None, f"the end of the command cannot be read: {status[:200]!r}")


def status_of(code: int) -> bytes:
    """Return the last message for an exit code, without its channel byte."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    return json.dumps(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": _NONZERO,
            "details": {"causes": [{"reason": _EXIT_CODE, "message": str(code)}]},
        }
    ).encode()


def failure(message: str, code: int = 500) -> bytes:
    """Return the last message for a command that was not run, without its channel byte."""
    told: dict[str, Any] = {"metadata": {}, "status": "Failure", "message": message, "code": code}
    told["reason"] = "InternalError"
    return json.dumps(told).encode()


def resize(columns: int, rows: int) -> bytes:
    """Return the message with the size of the terminal."""
    size = {"Width": min(max(columns, 1), SIDE_MAX), "Height": min(max(rows, 1), SIDE_MAX)}
    return bytes((RESIZE,)) + json.dumps(size).encode()


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return (columns, rows) of a `RESIZE` message, without its channel byte; None when it has no valid size."""
    try:
        told: Any = json.loads(data)
        columns, rows = int(told["Width"]), int(told["Height"])
    except (ValueError, KeyError, TypeError):
        return None
    return (columns, rows) if 0 < columns <= SIDE_MAX and 0 < rows <= SIDE_MAX else None
