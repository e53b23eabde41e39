"""The condition of a real server, read without any change to it.

The permissions of our account are checked with one form of each command that a service may send. The form fails or
finds nothing after the server has allowed it. Redis checks access before it runs a command, so only `NOPERM` reveals a
missing permission. `ACL DRYRUN` would need a permission that no service needs.

Invariant: a probe writes nothing, even when its key exists. The keys of families with a single stream (`slipway:wake`)
are real.
"""

from collections.abc import Sequence
from typing import Any, Final

from slipway.errors import ControlPlaneError, DeniedError
from slipway.streams import keys
from slipway.streams.accounts import OF_SERVICES, Account, Grant, pattern
from slipway.streams.client import Argument, Command, RedisClient, command
from slipway.streams.keys import KeyFamily
from slipway.streams.ports import STALE_S, ServerHealth
from slipway.streams.routes import Reply

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
    for verb in sorted(set(grant.commands) - _UNTRIED):
        named = verb.replace("|", " ")
        if verb in SEVERAL and not is_cluster:
            names = [_key(family) for family in grant.families]
            found[f"{named} {' '.join(map(pattern, grant.families))}"] = Command(names[0], _of_keys(verb, names))
            continue
        for family in grant.families:
            key = _key(family)
            args = _of_keys(verb, [key]) if verb in SEVERAL else _of_one_key(verb, key)
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


_KEY: Final = "slipway:probe"
_STALE_MAX: Final = 100
_SECTIONS: Final = ("server", "memory", "persistence", "stats", "replication")
_CONFIG: Final = ("maxmemory", "maxmemory-policy", "appendonly", "save")


class RedisServerHealthReader:
    """The `Conditions` of Redis."""

    def __init__(self, client: RedisClient, account: Account | None = None) -> None:
        """`account` is the account whose permissions the login needs; None when the login may be that of any
        service.
        """
        self._client = client
        self._accounts = OF_SERVICES if account is None else (account,)

    async def look(self) -> ServerHealth:
        account, refused = await try_accounts(self._client, self._accounts)
        unread: list[str] = []
        asked_at = self._client.clock.now()
        moment = await self._ask(("TIME",), unread)
        halfway = (asked_at + self._client.clock.now()) / 2
        said: dict[str, str] = {}
        for section in _SECTIONS:
            said |= _lines(await self._ask(("INFO", section), unread))
        # Every account may send HELLO, and its reply names the server.
        hello = _pairs(await self._ask(("HELLO",), unread))
        config: dict[str, str] = {}
        for name in _CONFIG:
            config |= _pairs(await self._ask(("CONFIG", "GET", name), unread))
        waiting, stale = await self._groups(unread)
        return ServerHealth(
            product=_product(said, hello),
            version=said.get("redis_version") or hello.get("version", ""),
            time=int(moment[0]) + int(moment[1]) / 1e6 if moment else None,
            asked_at=halfway,
            role=said.get("role", ""),
            policy=said.get("maxmemory_policy") or config.get("maxmemory-policy"),
            memory_used=_number(said.get("used_memory")),
            memory_max=_number(said.get("maxmemory", config.get("maxmemory"))),
            evicted=_number(said.get("evicted_keys")),
            appendonly=_flag(said.get("aof_enabled"), config.get("appendonly")),
            saves=bool(config["save"]) if "save" in config else None,
            is_persisting=_persisting(said),
            account=account.name,
            refused=refused,
            dead=await self._dead(unread),
            unread=sorted(set(unread)),
            waiting=waiting,
            stale_consumers=stale,
        )

    async def _ask(self, args: Sequence[Argument], unread: list[str]) -> Reply:
        """Return the answer; None when the account may not send the command, which is recorded in `unread`."""
        [answer] = await self._client.pipeline([Command(_KEY, tuple(args))])
        if isinstance(answer, DeniedError):
            unread.append(_called(args))
            return None
        return None if isinstance(answer, ControlPlaneError) else answer

    async def _dead(self, unread: list[str]) -> int | None:
        [answer] = await self._client.pipeline([command("XLEN", keys.DEAD.prefix)])
        if isinstance(answer, DeniedError):
            unread.append("xlen")
            return None
        if isinstance(answer, ControlPlaneError):
            raise answer
        return int(answer or 0)

    async def _groups(self, unread: list[str]) -> tuple[int | None, int | None]:
        """Return (number of pending hints, number of consumers that have left a hint untouched for `STALE_S`)."""
        held = [Command(key, ("XPENDING", key, keys.WORK_GROUP)) for key in keys.WORK_KEYS]
        old = ("IDLE", int(STALE_S * 1_000), "-", "+", _STALE_MAX)
        left = [Command(key, ("XPENDING", key, keys.WORK_GROUP, *old)) for key in keys.WORK_KEYS]
        replies = await self._client.pipeline([*held, *left])
        if any(isinstance(reply, DeniedError) for reply in replies):
            unread.append("xpending")
            return None, None
        answers = [None if isinstance(reply, ControlPlaneError) else reply for reply in replies]
        waiting = sum(int(answer[0]) for answer in answers[: len(held)] if answer)
        return waiting, len({_text(row[1]) for answer in answers[len(held) :] for row in answer or ()})


def _called(args: Sequence[Argument]) -> str:
    name = str(args[0]).lower()
    return f"{name}|{str(args[1]).lower()}" if name in ("xgroup", "xinfo", "config") else name


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _pairs(reply: Reply) -> dict[str, str]:
    """Return a flat list of names and values as a mapping."""
    items = [_text(item) for item in reply or ()]
    return dict(zip(items[::2], items[1::2], strict=False))


def _lines(reply: Reply) -> dict[str, str]:
    """Return the fields of a section of INFO."""
    lines = _text(reply or b"").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def _product(said: dict[str, str], hello: dict[str, str]) -> str:
    if "valkey_version" in said:
        return f"valkey {said['valkey_version']}"
    return f"{hello.get('server', 'redis')} {said.get('redis_version') or hello.get('version', '')}".strip()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _flag(told: str | None, configured: str | None) -> bool | None:
    if told is not None:
        return told == "1"
    return None if configured is None else configured == "yes"


def _persisting(said: dict[str, str]) -> bool | None:
    states = [said[name] for name in ("rdb_last_bgsave_status", "aof_last_write_status") if name in said]
    return all(state == "ok" for state in states) if states else None
