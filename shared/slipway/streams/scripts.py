"""The few atomic scripts, typed.

This module owns the loading of `lua/*.lua`, their arguments and their answers. On a Redis Cluster each call uses one
key. Only the call for logs uses three keys of one slot, and it is refused while the slot is moved. A script is called
by its hash. A server that does not know it (restarted, failed over, flushed) answers NOSCRIPT before it does anything.
Then the source is sent. State rules that need no atomicity stay in Python.
"""

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Final

import msgspec

from slipway.errors import ControlPlaneError, PermanentError
from slipway.streams.client import Argument, Command, RedisClient
from slipway.streams.replies import ScriptMissingError
from slipway.streams.routes import Reply


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One script and its SHA-1, by which the server identifies it."""

    source: str
    sha: str

    def call(self, key: str, *args: Argument) -> Command:
        """Return the command that runs it by hash."""
        return Command(key, ("EVALSHA", self.sha, 1, key, *args))

    def call_on_two(self, key: str, other: str, *args: Argument) -> Command:
        """Return the command with a second key, for a single server only, which has both keys."""
        return Command(key, ("EVALSHA", self.sha, 2, key, other, *args))

    def call_on_all(self, of: Sequence[str], *args: Argument) -> Command:
        """Return the command with several keys, all of one hash tag."""
        return Command(of[0], ("EVALSHA", self.sha, len(of), *of, *args))

    def call_in_full(self, call: Command) -> Command:
        """Return the same call with the source instead of the hash."""
        return Command(call.key, ("EVAL", self.source, *call.args[2:]))


def _load(name: str) -> Script:
    source = resources.files("slipway.streams").joinpath(f"lua/{name}.lua").read_text("utf-8")
    return Script(source=source, sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


APPEND: Final = _load("append")
FEED: Final = _load("feed")
TRIM: Final = _load("trim")
FORGET: Final = _load("forget")
TOUCH: Final = _load("touch")
NEWEST: Final = _load("newest")
GATHER: Final = _load("gather")
DECISIONS: Final = _load("decisions")
LOGS: Final = _load("logs")


async def run_all(client: RedisClient, script: Script, calls: Sequence[Command]) -> list[Reply | ControlPlaneError]:
    """Run the calls (made by `script.call`) in one pipeline, in order; an error reply is a value.

    When the server lacks the script, all calls from the first such answer on are sent again with the source, so that
    the order is kept.
    """
    replies = await client.pipeline(calls)
    missing = [place for place, reply in enumerate(replies) if isinstance(reply, ScriptMissingError)]
    if missing:
        in_full = script.call_in_full(calls[missing[0]])
        again = [in_full, *(calls[place] for place in missing[1:])]
        for place, reply in zip(missing, await client.pipeline(again), strict=True):
            replies[place] = reply
        still = [place for place in missing if isinstance(replies[place], ScriptMissingError)]
        if still:  # another node of a cluster
            answers = await client.pipeline([script.call_in_full(calls[place]) for place in still])
            for place, reply in zip(still, answers, strict=True):
                replies[place] = reply
    return replies


async def run(client: RedisClient, script: Script, key: str, *args: Argument) -> Reply:
    """Run a script once. Raises the error that its error reply means."""
    reply = (await run_all(client, script, [script.call(key, *args)]))[0]
    if isinstance(reply, ScriptMissingError):
        raise PermanentError("the server takes no scripts") from reply
    if isinstance(reply, ControlPlaneError):
        raise reply
    return reply
