"""The condition of a real server.

This module owns the queries and reads their answers; `probes.py` tests the permissions of our account. It changes
nothing.
"""

from collections.abc import Sequence
from typing import Any, Final

from slipway.errors import ControlPlaneError, DeniedError
from slipway.streams import keys, probes
from slipway.streams.accounts import OF_SERVICES, Account
from slipway.streams.client import Argument, Command, RedisClient, command
from slipway.streams.routes import Reply
from slipway.streams.server_health import STALE_S, ServerHealth

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
        account, refused = await probes.try_accounts(self._client, self._accounts)
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
