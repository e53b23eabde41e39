"""Which service may send which command for which keys: the access rules of Redis, in one table.

Owns the accounts of the services and their rules as `ACL SETUSER` takes them (Redis 7.0 and Valkey, whose selectors
bind commands to keys). The chart's Valkey, the local mode and the page for other servers are made from this table. It
knows no passwords.

Invariant: the table grants what the code sends and nothing else; `tests/integration/redis/test_accounts.py` compares
the two on real servers. A new command of a port is added here, under what the service does with the port.

Not promised: `EVAL` is granted, because a server forgets scripts when it restarts. What a script does is held to the
same rules, so it reaches no other keys; how long it runs is not.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from slipway.streams import keys
from slipway.streams.keys import KeyFamily

CONNECTION: Final = (
    "asking",
    "auth",
    "client|setname",
    "cluster|slots",
    "hello",
    "ping",
    "select",
)
"""What a connection needs before it names any key."""
_SCRIPTS: Final = ("eval", "evalsha")


class Grant(msgspec.Struct, frozen=True):
    """These commands for keys of these families; a command that names several keys needs one grant for all of them."""

    families: tuple[KeyFamily, ...]
    commands: tuple[str, ...]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one process may do. `server` lists commands without a key."""

    name: str
    purpose: str
    grants: tuple[Grant, ...]
    server: tuple[str, ...] = ()

    def commands(self) -> dict[KeyFamily, frozenset[str]]:
        """{family: commands on its keys}; scripts are among them by `eval` and `evalsha`."""
        found: dict[KeyFamily, set[str]] = {}
        for grant in self.grants:
            for family in grant.families:
                found.setdefault(family, set()).update(grant.commands)
        return {family: frozenset(commands) for family, commands in found.items()}

    def arguments(self) -> list[str]:
        """The rules as arguments of `ACL SETUSER <name>`: what is not among them is taken away. No password."""
        base = ["resetkeys", "resetchannels", "clearselectors", "-@all", *_allow((*CONNECTION, *self.server))]
        return base + [_selector(each) for each in _merged(self.grants)]

    def rules(self) -> str:
        """The same as one line, as a line of an ACL file or of `user` in a configuration has it."""
        return " ".join(self.arguments())


def pattern(family: KeyFamily) -> str:
    """The keys of a family as Redis matches them."""
    return f"{family.prefix}*" if family.prefix.endswith(":") else family.prefix


def _on(family: KeyFamily, *commands: str) -> Grant:
    return Grant((family,), commands)


def _script(*families: KeyFamily) -> Grant:
    """Running a script whose keys are of these families; its own commands are granted beside it."""
    return Grant(families, _SCRIPTS)


_SPANS: Final = (_on(keys.TRACE, "xadd", "expire"),)
_EVENTS_APPENDED: Final = (
    _script(keys.ALLOCATION, keys.EVENTS),
    _on(keys.ALLOCATION, "xrevrange", "exists", "ttl", "expire", "del", "xadd"),
    _on(keys.EVENTS, "xadd"),
)
_WAKE_RUNG: Final = (_on(keys.WAKE, "xadd"),)
_HINTS_SENT: Final = (_on(keys.WORK, "xadd", "xlen"), _on(keys.BELL, "xadd"))
_ACTIVITY_WRITTEN: Final = (_script(keys.ACTIVITY), _on(keys.ACTIVITY, "hget", "hset", "expire"))
_CLAIMS_KEPT: Final = ("exists", "xpending", "xclaim", *_SCRIPTS)
"""Of the script `touch`."""

API: Final = Account(
    name="api",
    purpose="events and logs to users, gatherings, activity, webhooks, dead letters, logouts",
    server=("info", "time"),
    grants=(
        *_SPANS,
        *_EVENTS_APPENDED,
        *_WAKE_RUNG,
        *_ACTIVITY_WRITTEN,
        _on(keys.ACTIVITY, "hgetall"),
        Grant((keys.ALLOCATION, keys.LOGS), ("xread",)),  # one connection waits for all followers
        _on(keys.ALLOCATION, "xrange"),
        _on(keys.LOGS, "xrange", "xrevrange"),
        _on(keys.LOG_STATE, "hgetall"),
        _on(keys.TRACE, "xrevrange"),
        _on(keys.DECISIONS, "xrange"),
        _on(keys.EVENTS, "xrange", "xrevrange", "xread"),
        _on(keys.EVENTS, "xinfo|consumers", "xgroup|create", "xreadgroup", "xautoclaim", "xack"),
        _on(keys.WEBHOOK, "xadd", "xlen", "xgroup|create", "xreadgroup", "xautoclaim", "xack", "xdel", "del"),
        _on(keys.WEBHOOK, *_CLAIMS_KEPT),
        _on(keys.DEAD, "xrange", "xadd", "xdel", "xlen"),
        _on(keys.WORK, "xadd", "xpending"),  # a dead letter sent again; what waits
        _on(keys.LOGOUTS, "xadd", "xrange", "xrevrange"),
        _on(keys.USED_CODE, "set"),
        _on(keys.SIGN_IN, "get", "set"),
        _script(keys.GATHER),
        _on(keys.GATHER, "hget", "hmget", "hgetall", "hstrlen", "exists"),
        _on(keys.GATHER, "hset", "hsetnx", "hincrby", "hdel", "expire", "del"),
    ),
)
SCHEDULER: Final = Account(
    name="scheduler",
    purpose="the cluster feed, hints to the podworkers, the decision log",
    grants=(
        *_SPANS,
        *_HINTS_SENT,
        *_WAKE_RUNG,
        _on(keys.WAKE, "xread", "xrevrange"),
        _on(keys.CLUSTER, "xread", "xrevrange"),
        _on(keys.SNAPSHOT, "hmget"),
        _on(keys.ACTIVITY, "hgetall"),
        _script(keys.DECISIONS),
        _on(keys.DECISIONS, "xadd", "xdel", "xlen", "xrange", "xrevrange"),
    ),
)
PODWORKER: Final = Account(
    name="podworker",
    purpose="the work queue",
    grants=(
        *_SPANS,
        _on(keys.HEALTH, "xadd"),
        _on(keys.WORK, "xreadgroup", "xgroup|create", "xgroup|delconsumer", "xautoclaim", "xack", "xrange", "xtrim"),
        _on(keys.WORK, "xinfo|groups", "xinfo|consumers", *_CLAIMS_KEPT),
        _on(keys.BELL, "xread", "xrevrange"),
        _on(keys.DEAD, "xadd"),
    ),
)
WATCHER: Final = Account(
    name="watcher",
    purpose="events, hints, the cluster feed and its snapshots, logs",
    grants=(
        *_SPANS,
        *_EVENTS_APPENDED,
        *_HINTS_SENT,
        *_WAKE_RUNG,
        *_ACTIVITY_WRITTEN,
        _on(keys.WORK, "xinfo|groups", "xrange"),
        _script(keys.CLUSTER),
        _on(keys.CLUSTER, "xadd", "xrevrange"),
        _on(keys.SNAPSHOT, "hset", "expire", "del"),
        _script(keys.LOGS, keys.LOG_STATE, keys.LOG_PACKS),
        _on(keys.LOGS, "xadd", "xdel", "xinfo|stream", "xrange", "expire"),
        _on(keys.LOG_STATE, "hget", "hgetall", "hset", "hexists", "expire"),
        _on(keys.LOG_PACKS, "hget", "hset", "hdel", "expire"),
    ),
)
AUDIT: Final = Account(
    name="audit",
    purpose="`slipway audit`, which writes nothing",
    grants=(
        _on(keys.ALLOCATION, "xrange"),
        _on(keys.DEAD, "xrange"),
        _on(keys.WORK, "xinfo|groups", "xrange"),
    ),
)
SCALER: Final = Account(
    name="scaler",
    purpose="KEDA, which counts the hints that wait",
    server=("info",),
    grants=(_on(keys.WORK, "xinfo|groups", "xlen", "xpending"),),
)
READER: Final = Account(
    name="reader",
    purpose="programs of yours that read events as docs/integrating.md says, also with `slipway.sdk.consume`",
    grants=(
        Grant((keys.ALLOCATION, keys.EVENTS), ("xrange", "xrevrange", "xread", "xlen", "xinfo|stream")),
        _on(keys.EVENTS, "xgroup|create", "xreadgroup", "xack", "xautoclaim", "xclaim", "xpending", "xinfo|groups"),
        _on(keys.EVENTS, "xgroup|delconsumer"),
        _on(keys.LETTERS, "xadd", "xrange", "xdel"),
    ),
)
ACCOUNTS: Final = (API, SCHEDULER, PODWORKER, WATCHER, AUDIT, SCALER, READER)
OF_SERVICES: Final = (API, SCHEDULER, PODWORKER, WATCHER)

ONE_FOR_ALL: Final = "~slipway:* +@all -@admin -@dangerous +info"
"""The rules of one account that all services share."""
BY_NAME: Final[Mapping[str, Account]] = {account.name: account for account in ACCOUNTS}


def _allow(commands: Iterable[str]) -> list[str]:
    return [f"+{command}" for command in sorted(set(commands))]


def _merged(grants: Sequence[Grant]) -> list[Grant]:
    """One grant for each set of families, in the order of their first grant."""
    found: dict[tuple[KeyFamily, ...], list[str]] = {}
    for grant in grants:
        found.setdefault(grant.families, []).extend(grant.commands)
    return [Grant(families, tuple(commands)) for families, commands in found.items()]


def _selector(grant: Grant) -> str:
    return f"({' '.join((*(f'~{pattern(family)}' for family in grant.families), *_allow(grant.commands)))})"
