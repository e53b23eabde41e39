"""The access rules of Redis in one table: which service may send which command for which keys.

This module owns the accounts of the services and their rules in the form of `ACL SETUSER` (Redis 7.0 and Valkey, whose
selectors bind commands to keys). The chart's Valkey, the local mode and the page for other servers are made from this
table. It contains no passwords.

Invariant: the table grants the commands that the code sends and nothing else;
`tests/integration/redis/test_accounts.py` compares the two on real servers. Add a new command of a port here, to the
account of each service that calls it.

Not promised: `EVAL` is granted, because a server loses its scripts when it restarts. The commands of a script must
follow the same rules, so a script cannot access other keys. The run time of a script is not limited.
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
"""The commands that a connection needs before it names any key."""
_SCRIPTS: Final = ("eval", "evalsha")


class Grant(msgspec.Struct, frozen=True):
    """Permission for these commands on keys of these families. A command that names several keys needs one grant for
    all.
    """

    families: tuple[KeyFamily, ...]
    commands: tuple[str, ...]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The permissions of one process. `server` lists commands without a key."""

    name: str
    purpose: str
    grants: tuple[Grant, ...]
    server: tuple[str, ...] = ()

    def commands(self) -> dict[KeyFamily, frozenset[str]]:
        """Return {family: commands on its keys}. Scripts appear as `eval` and `evalsha`."""
        found: dict[KeyFamily, set[str]] = {}
        for grant in self.grants:
            for family in grant.families:
                found.setdefault(family, set()).update(grant.commands)
        return {family: frozenset(commands) for family, commands in found.items()}

    def arguments(self) -> list[str]:
        """Return the rules as arguments of `ACL SETUSER <name>`. Every other permission is removed. There is no
        password.
        """
        base = ["resetkeys", "resetchannels", "clearselectors", "-@all", *_allow((*CONNECTION, *self.server))]
        return base + [_selector(each) for each in _merged(self.grants)]

    def rules(self) -> str:
        """Return the rules as one line, for an ACL file or for `user` in a configuration file."""
        return " ".join(self.arguments())


def pattern(family: KeyFamily) -> str:
    """Return the pattern by which Redis matches the keys of a family."""
    return f"{family.prefix}*" if family.prefix.endswith(":") else family.prefix


def _on(family: KeyFamily, *commands: str) -> Grant:
    return Grant((family,), commands)


def _script(*families: KeyFamily) -> Grant:
    """Permission to run a script whose keys are of these families. The commands that it sends are granted
    separately.
    """
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
"""Commands of the script `touch`."""

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
        _on(keys.EVENTS, "xrange", "xrevrange", "xread", "xinfo|stream"),
        _on(keys.EVENTS, "xinfo|consumers", "xgroup|create", "xreadgroup", "xautoclaim", "xack"),
        _on(keys.WEBHOOK, "xadd", "xlen", "xgroup|create", "xreadgroup", "xautoclaim", "xack", "xdel", "del"),
        _on(keys.WEBHOOK, *_CLAIMS_KEPT),
        _on(keys.DEAD, "xrange", "xadd", "xdel", "xlen"),
        _on(keys.WORK, "xadd", "xpending"),  # dead letters that are sent again; the number of waiting hints
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
"""The rules of a single account that all services share."""
BY_NAME: Final[Mapping[str, Account]] = {account.name: account for account in ACCOUNTS}


def _allow(commands: Iterable[str]) -> list[str]:
    return [f"+{command}" for command in sorted(set(commands))]


def _merged(grants: Sequence[Grant]) -> list[Grant]:
    """Return one grant for each set of families, in the order of their first grant."""
    found: dict[tuple[KeyFamily, ...], list[str]] = {}
    for grant in grants:
        found.setdefault(grant.families, []).extend(grant.commands)
    return [Grant(families, tuple(commands)) for families, commands in found.items()]


def _selector(grant: Grant) -> str:
    return f"({' '.join((*(f'~{pattern(family)}' for family in grant.families), *_allow(grant.commands)))})"
