"""The answers of failing calls: as the real server sends them, read as the real client reads them.

Owns the answers themselves, and which of them a server may give to which call (`legal`). For Kubernetes an answer is a
status code and a `Status`, which `slipway.kube.errors` interprets; for Redis it is an error reply, which
`slipway.streams.replies` interprets. Pure.

| not here | because |
|---|---|
| 404 for an object that is there | reads and writes go through etcd's quorum; scenarios make objects that are gone |
| 410 on a write | only LIST and WATCH have a position that can expire |
| 422, NamespaceTerminating, other 403 | lasting judgements about the object: scenarios, with their own endings |
| NOGROUP | the adapter makes the group again; a lost group is a fault of the model (`ungroup`, `evict`, `flush`) |
"""

import zlib
from collections.abc import Sequence
from functools import lru_cache

from redis import exceptions as library

from slipway.errors import ControlPlaneError, DeadlineError, UnavailableError
from slipway.kube.errors import ServerStatus, StatusDetails, Verb, explain
from slipway.streams.replies import translate
from tests.support.fault_kinds import Effect, Kind

RETRY_AFTER_S = 1.0
QUOTED = frozenset({"pods", "configmaps", "services"})
"""Kinds that a ResourceQuota counts, among those that we make."""
FENCED = frozenset({Verb.UPDATE, Verb.PATCH, Verb.DELETE})
_OF_CREATES = (Kind.EXISTS, Kind.QUOTA)
_SERVER = (Kind.SERVER_ERROR, Kind.UNAVAILABLE, Kind.GATEWAY, Kind.RESET)
_STATUS: dict[Kind, tuple[int, str, str]] = {
    Kind.CONFLICT: (409, "Conflict", "the object has been modified; please apply your changes to the latest version"),
    Kind.EXISTS: (409, "AlreadyExists", "object already exists"),
    Kind.THROTTLED: (429, "TooManyRequests", "the server has received too many requests and has asked us to wait"),
    Kind.SERVER_ERROR: (500, "InternalError", "Internal error occurred: etcdserver: leader changed"),
    Kind.UNAVAILABLE: (503, "ServiceUnavailable", "apiserver is shutting down"),
    Kind.GATEWAY: (504, "Timeout", "request did not complete within the allotted timeout"),
    Kind.SERVER_TIMEOUT: (500, "ServerTimeout", "the POST operation could not be completed at this time, try again"),
    Kind.UNAUTHORIZED: (401, "Unauthorized", "Unauthorized"),
    Kind.EXPIRED: (410, "Expired", "too old resource version"),
}


def error_of(kind: Kind, effect: Effect) -> ControlPlaneError | None:
    """What the caller sees; None when that kind of fault is no answer."""
    match kind:
        case Kind.TIMEOUT | Kind.TIMEOUT_APPLIED:
            return DeadlineError("injected: no answer in time")
        case Kind.RESET | Kind.RESET_APPLIED:
            return UnavailableError("injected: connection reset by peer")
        case _:
            return _of_kubernetes(kind, effect) if effect.is_kube else _of_redis(kind)


def answers(effect: Effect, salt: int = 0) -> list[tuple[Kind, str]]:
    """(kind, moment) of the answers that this call is tried with: one of each class that a caller can distinguish.

    The call's own place selects the one of a class, so that the scenarios together cover all of them.
    """
    if not effect.is_kube:
        before = [(turn(effect, salt, (Kind.RESET, Kind.TIMEOUT)), "before")] if effect.has_before else []
        return [*before, (turn(effect, salt, (Kind.TIMEOUT_APPLIED, Kind.RESET_APPLIED)), "after")]
    verb = Verb(effect.verb)
    found = [(Kind.THROTTLED, "before"), (turn(effect, salt, _SERVER), "before"), (Kind.TIMEOUT, "before")]
    if verb in FENCED:
        found.append((turn(effect, salt, (Kind.CONFLICT, Kind.TOUCHED)), "before"))
    if verb is Verb.CREATE:
        found.append((Kind.EXISTS, "before"))
    lost = (Kind.TIMEOUT_APPLIED, Kind.RESET_APPLIED, *([Kind.SERVER_TIMEOUT] if verb is Verb.CREATE else []))
    found.append((turn(effect, salt, lost), "after"))
    found.append((turn(effect, salt, (Kind.TIMEOUT_LATE, Kind.SLOW)), "before"))
    refusals = [Kind.DENIED, Kind.UNAUTHORIZED, Kind.OUTAGE]
    if verb is Verb.CREATE and effect.target in QUOTED:
        refusals += [Kind.QUOTA, Kind.QUOTA]
    found.append((turn(effect, salt, refusals), "before"))
    return found


def reads(effect: Effect, salt: int = 0) -> list[tuple[Kind, str]]:
    """Like `answers`, for a read: one temporary failure, and one refusal."""
    if not effect.is_kube:
        return [(turn(effect, salt, (Kind.RESET, Kind.TIMEOUT)), "before")]
    passing = (Kind.THROTTLED, *_SERVER, Kind.TIMEOUT, Kind.SLOW)
    refusals = (Kind.DENIED, Kind.UNAUTHORIZED, *([Kind.EXPIRED] * 2 if effect.verb == Verb.LIST else []))
    return [(turn(effect, salt, passing), "before"), (turn(effect, salt + 1, refusals), "before")]


def turn(effect: Effect, salt: int, choices: Sequence[Kind]) -> Kind:
    """Select one of them, by the place of the call."""
    return choices[draw(effect, salt, len(choices))]


def draw(effect: Effect, salt: int, of: int) -> int:
    """A number below `of` that belongs to the place of the call."""
    return zlib.crc32(b"%d" % salt, _place(effect.role, effect.number, effect.verb, effect.target)) % of


@lru_cache
def _place(role: str, number: int, verb: str, target: str) -> int:
    return zlib.crc32(f"{role}:{number}:{verb}:{target}:".encode())


def _of_kubernetes(kind: Kind, effect: Effect) -> ControlPlaneError | None:
    verb = Verb(effect.verb)
    if kind in _OF_CREATES and verb is not Verb.CREATE:
        # The answer was planned for a run in which this was another call.
        return None
    if kind is Kind.DENIED:
        words = f'User "slipway" cannot {effect.verb} resource "{effect.target}" in API group "" in the namespace'
        return explain(verb, 403, ServerStatus(reason="Forbidden", message=f"forbidden: {words}"))
    if kind is Kind.QUOTA:
        words = "forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4"
        return explain(verb, 403, ServerStatus(reason="Forbidden", message=words))
    if kind not in _STATUS:
        return None
    code, reason, message = _STATUS[kind]
    details = StatusDetails(retry_after_seconds=1) if kind is Kind.SERVER_TIMEOUT else None
    status = ServerStatus(code=code, reason=reason, message=message, details=details)
    return explain(verb, code, status, RETRY_AFTER_S if kind is Kind.THROTTLED else None)


def _of_redis(kind: Kind) -> ControlPlaneError | None:
    match kind:
        case Kind.OOM:
            return translate(library.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."))
        case Kind.READONLY:
            return translate(library.ReadOnlyError("You can't write against a read only replica."))
        case Kind.LOADING | Kind.SERVER_ERROR:
            # The library treats LOADING as a broken connection, and so does our client.
            return UnavailableError("injected: redis is loading the dataset in memory")
        case _:
            return None
