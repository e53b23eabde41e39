"""The condition of a real server.

Owns the questions and the reading of their answers. Every question is read-only: what our account may do is tried on a
key that does not exist, in forms that make none.
"""

from collections.abc import Sequence
from typing import Any, Final

from slipway.errors import ControlPlaneError, DeniedError
from slipway.streams import keys
from slipway.streams.client import Argument, Command, RedisClient
from slipway.streams.condition import STALE_S, Condition
from slipway.streams.routes import Reply

_KEY: Final = "slipway:probe"
_STALE_MAX: Final = 100
_PROBES: Final[tuple[tuple[Argument, ...], ...]] = (
    ("XADD", _KEY, "NOMKSTREAM", "*", "v", "1"),
    ("XRANGE", _KEY, "-", "+", "COUNT", 1),
    ("XTRIM", _KEY, "MAXLEN", 0),
    ("XGROUP", "CREATE", _KEY, keys.WORK_GROUP, "0"),
    ("XACK", _KEY, keys.WORK_GROUP, "0-1"),
    ("XAUTOCLAIM", _KEY, keys.WORK_GROUP, "probe", 0, "0"),
    ("XINFO", "GROUPS", _KEY),
    ("HGETALL", _KEY),
    ("HDEL", _KEY, "v"),
    ("EXPIRE", _KEY, 1),
    ("DEL", _KEY),
    ("EVAL", "return 1", 1, _KEY),
)
_SECTIONS: Final = ("server", "memory", "persistence", "stats", "replication")
_CONFIG: Final = ("maxmemory", "maxmemory-policy", "appendonly", "save")


class RedisConditions:
    """The `Conditions` of Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def look(self) -> Condition:
        refused = await self._refused()
        unread: list[str] = []
        asked_at = self._client.clock.now()
        moment = await self._ask(("TIME",), unread)
        halfway = (asked_at + self._client.clock.now()) / 2
        said: dict[str, str] = {}
        for section in _SECTIONS:
            said |= _lines(await self._ask(("INFO", section), unread))
        # The handshake names the server to every account.
        hello = _pairs(await self._ask(("HELLO",), unread))
        config: dict[str, str] = {}
        for name in _CONFIG:
            config |= _pairs(await self._ask(("CONFIG", "GET", name), unread))
        waiting, stale = await self._groups()
        return Condition(
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
            refused=refused,
            unread=sorted(set(unread)),
            dead=int(await self._client.run(Command(keys.DEAD.prefix, ("XLEN", keys.DEAD.prefix))) or 0),
            waiting=waiting,
            stale_consumers=stale,
        )

    async def _refused(self) -> list[str]:
        answers = await self._client.pipeline([Command(_KEY, args) for args in _PROBES])
        pairs = zip(_PROBES, answers, strict=True)
        return sorted({_called(args) for args, answer in pairs if isinstance(answer, DeniedError)})

    async def _ask(self, args: Sequence[Argument], unread: list[str]) -> Reply:
        """The answer; None, and noted, when the account may not ask."""
        [answer] = await self._client.pipeline([Command(_KEY, tuple(args))])
        if isinstance(answer, DeniedError):
            unread.append(_called(args))
            return None
        return None if isinstance(answer, ControlPlaneError) else answer

    async def _groups(self) -> tuple[int, int]:
        """(hints that are held, consumers that have left one alone for `STALE_S`)."""
        held = [Command(key, ("XPENDING", key, keys.WORK_GROUP)) for key in keys.WORK_KEYS]
        old = ("IDLE", int(STALE_S * 1_000), "-", "+", _STALE_MAX)
        left = [Command(key, ("XPENDING", key, keys.WORK_GROUP, *old)) for key in keys.WORK_KEYS]
        answers = [
            None if isinstance(answer, ControlPlaneError) else answer
            for answer in await self._client.pipeline([*held, *left])
        ]
        waiting = sum(int(answer[0]) for answer in answers[: len(held)] if answer)
        return waiting, len({_text(row[1]) for answer in answers[len(held) :] for row in answer or ()})


def _called(args: Sequence[Argument]) -> str:
    name = str(args[0]).lower()
    return f"{name}|{str(args[1]).lower()}" if name in ("xgroup", "xinfo", "config") else name


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _pairs(reply: Reply) -> dict[str, str]:
    """A flat list of names and values."""
    items = [_text(item) for item in reply or ()]
    return dict(zip(items[::2], items[1::2], strict=False))


def _lines(reply: Reply) -> dict[str, str]:
    """A section of INFO."""
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
