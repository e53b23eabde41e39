"""Checks of a login's permissions, without any change to the server.

This module owns one form of each command that a service may send. The form fails or finds nothing after the server has
allowed it. Redis checks access before it runs a command, so only `NOPERM` reveals a missing permission. `ACL DRYRUN`
would need a permission that no service needs.

Invariant: a probe writes nothing, even when its key exists. The keys of families with a single stream (`slipway:wake`)
are real.
"""

from collections.abc import Sequence
from typing import Final

from slipway.errors import DeniedError
from slipway.streams.accounts import Account, Grant, pattern
from slipway.streams.client import Argument, Command, RedisClient
from slipway.streams.keys import KeyFamily

_ABSENT: Final = "{probe}"
"""The end of a key that does not exist."""
_NO_ID: Final = "probe"
"""A text that is not an id of an entry."""
_FORMS: Final[dict[str, tuple[Argument, ...]]] = {
    "del": (),
    "exists": (),
    "expire": (_NO_ID,),
    "get": (),
    "hdel": ("v",),
    "hexists": ("v",),
    "hget": ("v",),
    "hgetall": (),
    "hincrby": ("v", _NO_ID),
    "hmget": ("v",),
    "hset": ("v", "1", "w"),
    "hstrlen": ("v",),
    "set": ("1", "NX", "EX", _NO_ID),
    "ttl": (),
    "xack": ("probe", _NO_ID),
    "xadd": ("NOMKSTREAM", "0-0", "v", "1"),
    "xautoclaim": ("probe", "probe", "0", _NO_ID),
    "xclaim": ("probe", "probe", "0", _NO_ID),
    "xdel": (_NO_ID,),
    "xgroup|create": ("probe", _NO_ID),
    "xgroup|delconsumer": ("probe", "probe"),
    "xinfo|consumers": ("probe",),
    "xinfo|groups": (),
    "xinfo|stream": (),
    "xlen": (),
    "xpending": ("probe",),
    "xrange": ("-", "+", "COUNT", "1"),
    "xrevrange": ("+", "-", "COUNT", "1"),
    "xtrim": ("MAXLEN", _NO_ID),
}
"""{command: the arguments after its key}."""
_UNTRIED: Final = frozenset({"hsetnx"})
"""This command has no form that fails by itself. In all our rules, an account that may HSET may also do this."""


def _of_one_key(command: str, key: str) -> tuple[Argument, ...]:
    return (*command.upper().split("|"), key, *_FORMS[command])


def _of_keys(command: str, names: Sequence[str]) -> tuple[Argument, ...]:
    match command:
        case "eval":
            return ("EVAL", "return 1", len(names), *names)
        case "evalsha":
            return ("EVALSHA", "0" * 40, len(names), *names)
        case "xread":
            return ("XREAD", "COUNT", "1", "STREAMS", *names, *(_NO_ID for _ in names))
        case _:
            return ("XREADGROUP", "GROUP", "probe", "probe", "STREAMS", *names, *(_NO_ID for _ in names))


SEVERAL: Final = ("eval", "evalsha", "xread", "xreadgroup")
"""Commands that may name several keys."""


def probes(grant: Grant, *, is_cluster: bool) -> dict[str, Command]:
    """Return {description of the check: its command}. On a Cluster, no command names keys of two slots."""
    found: dict[str, Command] = {}
    for command in sorted(set(grant.commands) - _UNTRIED):
        named = command.replace("|", " ")
        if command in SEVERAL and not is_cluster:
            names = [_key(family) for family in grant.families]
            found[f"{named} {' '.join(map(pattern, grant.families))}"] = Command(names[0], _of_keys(command, names))
            continue
        for family in grant.families:
            key = _key(family)
            args = _of_keys(command, [key]) if command in SEVERAL else _of_one_key(command, key)
            found[f"{named} {pattern(family)}"] = Command(key, args)
    return found


async def try_accounts(client: RedisClient, accounts: Sequence[Account]) -> tuple[Account, list[str]]:
    """Return the account that matches the login best, and which of its permissions the server refuses."""
    tried = [(account, await _refused(client, account)) for account in accounts]
    return min(tried, key=lambda each: len(each[1]))


async def _refused(client: RedisClient, account: Account) -> list[str]:
    asked: dict[str, Command] = {}
    for grant in account.grants:
        asked |= probes(grant, is_cluster=client.is_cluster)
    answers = await client.pipeline(list(asked.values()))
    return sorted(said for said, answer in zip(asked, answers, strict=True) if isinstance(answer, DeniedError))


def _key(family: KeyFamily) -> str:
    return f"{family.prefix}{_ABSENT}" if family.prefix.endswith(":") else family.prefix
