"""The answers of a server: replies as values, and errors in our error tree.

This module owns the meaning of error replies, and is the only one that distinguishes them. It must not know the purpose
of a command. Invariant: an error reply is a value, so that the replies after it are still read.
"""

from typing import Final, cast

from slipway.errors import (
    ControlPlaneError,
    DeniedError,
    PermanentError,
    ThrottledError,
    UnavailableError,
)
from slipway.streams.redis_library import AbstractConnection
from slipway.streams.redis_library import exceptions as library
from slipway.streams.routes import RedisAddress, Reply

_TRANSIENT_WORDS: Final = ("BUSY ", "MISCONF", "NOREPLICAS")


class GroupMissingError(PermanentError):
    """NOGROUP: the consumer group or its stream does not exist."""


class ScriptMissingError(PermanentError):
    """NOSCRIPT: the server does not have the script."""


class MovedError(UnavailableError):
    """The command did not run here: `target` serves the slot.

    With `is_asked`, this is true only for keys that were already moved there (the slot is being moved); otherwise from
    now on. An empty host means the server that was asked.
    """

    def __init__(self, slot: int, target: RedisAddress, *, is_asked: bool) -> None:
        super().__init__(
            "another node of the redis cluster serves the key; a cluster's URL begins with redis+cluster://"
        )
        self.slot, self.target, self.is_asked = slot, target, is_asked


class TopologyError(UnavailableError):
    """The server is not, or not now, the right one for this command. Discover the topology again."""


async def send(connection: AbstractConnection, packed: bytes) -> None:
    """Write commands. Raises ConnectionResetError when the connection is already closed.

    uvloop raises RuntimeError for a transport that is closed but whose loss it has not reported yet.
    """
    try:
        await connection.send_packed_command(packed, check_health=False)
    except RuntimeError as error:
        raise ConnectionResetError("the connection was closed") from error


async def read_reply(connection: AbstractConnection) -> Reply | ControlPlaneError:
    """Return the next reply; an error reply is a value."""
    try:
        return cast("Reply", await connection.read_response())  # pyright: ignore[reportUnknownMemberType]
    except library.ResponseError as exc:
        return translate(exc)


def translate(error: library.ResponseError) -> ControlPlaneError:
    """Return the error of our tree for an error reply."""
    text = str(error)
    match error:
        case library.NoScriptError():
            found: ControlPlaneError = ScriptMissingError("the script is not loaded")
        case library.OutOfMemoryError():
            found = ThrottledError("redis is out of memory")
        case library.ReadOnlyError():
            found = TopologyError("redis is a read-only replica")
        case library.AskError():  # the library derives MOVED from it
            target = RedisAddress(
                str(error.host),  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
                int(error.port),  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            )
            found = MovedError(int(error.slot_id), target, is_asked=not isinstance(error, library.MovedError))
        case library.NoPermissionError() | library.AuthenticationWrongNumberOfArgsError():
            found = DeniedError("redis refuses our account the command or key")
        case library.ClusterDownError():  # also MASTERDOWN
            found = TopologyError("the redis cluster is not ready")
        case library.TryAgainError():
            found = UnavailableError("a slot of the redis cluster is being moved")
        case library.ClusterCrossSlotError():
            found = PermanentError("redis is a cluster: its URL must begin with redis+cluster://")
        case _ if text.startswith(("NOGROUP", "UNBLOCKED the stream key")):  # the latter: Redis 7.0, FLUSHALL
            found = GroupMissingError("the consumer group is not there")
        case _ if text.startswith("UNBLOCKED"):
            found = TopologyError("redis was made a replica while we waited")
        case _ if text.startswith(_TRANSIENT_WORDS):
            found = UnavailableError(f"redis does not answer for now: {text.partition(' ')[0]}")
        case _:
            found = PermanentError(f"redis answered: {text[:200]}")
    found.__cause__ = error
    return found
