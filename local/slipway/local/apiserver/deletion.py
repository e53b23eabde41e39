"""Deletion of one object: a delete marks the object, shortens its grace period, or removes it.

Owns preconditions, grace periods, and the finalizers that propagation policies add. Pure: takes an object and options,
returns the next state. Invariants: an object with finalizers is never removed; a bound, running pod is removed only by
a delete with grace 0; a deletion that has begun is never undone, and its deletionTimestamp never moves later.
"""

import msgspec

from slipway.local.apiserver import pods
from slipway.local.apiserver.objects import Json, clone, finalizers_of, format_time, metadata, parse_time
from slipway.local.apiserver.options import DeleteOptions
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.status import conflict

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
NAMESPACES = "namespaces"


class Deletion(msgspec.Struct, frozen=True):
    """The result of a delete. `obj` is the next state, or the last state if the delete removes the object."""

    obj: Json
    removes: bool
    changes: bool


def check_preconditions(kind: ResourceKind, obj: Json, options: DeleteOptions) -> None:
    """Compare the uid and the version with those that the client expects. Raises: StatusError 409."""
    meta = metadata(obj)
    words = "the {0} in the precondition ({1}) does not match the {0} in record ({2}). The object might have been {3}"
    if options.uid and options.uid != meta["uid"]:
        why = words.format("UID", options.uid, meta["uid"], "deleted and then recreated")
        raise conflict(kind.qualified, meta["name"], why)
    if options.resource_version and options.resource_version != meta["resourceVersion"]:
        why = words.format("ResourceVersion", options.resource_version, meta["resourceVersion"], "modified")
        raise conflict(kind.qualified, meta["name"], why)


def plan(kind: ResourceKind, obj: Json, options: DeleteOptions, now: float) -> Deletion:
    """Return the state after a delete of `obj`. Raises: StatusError 409 when a precondition fails."""
    check_preconditions(kind, obj, options)
    if kind.strategy.is_graceful and metadata(obj).get("deletionTimestamp"):
        begun = metadata(obj).get("deletionGracePeriodSeconds", 0)
        if begun and (options.grace_period_s is None or options.grace_period_s >= begun):
            # The pod is already being deleted, so only a shorter grace period changes it.
            return Deletion(obj, removes=False, changes=False)
    new = clone(obj)
    meta = new["metadata"]
    _propagate(meta, options.propagation)
    if not meta.get("deletionTimestamp"):
        grace = _grace(kind, obj, options)
        meta["deletionTimestamp"] = format_time(now + grace)
        if kind.resource != NAMESPACES:
            meta["deletionGracePeriodSeconds"] = grace
        if "generation" in meta:
            meta["generation"] += 1
    elif options.grace_period_s is not None and options.grace_period_s < meta.get("deletionGracePeriodSeconds", 0):
        _shorten(meta, options.grace_period_s, now)
    if kind.resource == NAMESPACES:
        new["status"] = {**new.get("status", {}), "phase": "Terminating"}
    removes = is_over(kind, new)
    return Deletion(new, removes, removes or new != obj)


def is_over(kind: ResourceKind, obj: Json) -> bool:
    """Whether the object is under deletion and no finalizer or grace period delays its removal."""
    meta = metadata(obj)
    if not meta.get("deletionTimestamp") or finalizers_of(obj):
        return False
    if kind.resource == NAMESPACES:
        return not obj.get("spec", {}).get("finalizers")
    return meta.get("deletionGracePeriodSeconds", 0) == 0


def _grace(kind: ResourceKind, obj: Json, options: DeleteOptions) -> int:
    if not kind.strategy.is_graceful or pods.is_settled(obj):
        return 0
    return options.grace_period_s if options.grace_period_s is not None else pods.grace_of(obj)


def _shorten(meta: Json, grace: int, now: float) -> None:
    """Shorten the grace period, but not into the past. Unless it becomes 0, the kubelet still removes the pod."""
    begun = (parse_time(meta["deletionTimestamp"]) or now) - meta["deletionGracePeriodSeconds"]
    end = begun + grace
    if end < now:
        end, grace = now, min(grace, 1)
    meta["deletionTimestamp"] = format_time(end)
    meta["deletionGracePeriodSeconds"] = grace


def _propagate(meta: Json, policy: str) -> None:
    if not policy:
        return
    names = [name for name in meta.get("finalizers", []) if name not in (ORPHAN, FOREGROUND)]
    if policy == "Orphan":
        names.append(ORPHAN)
    elif policy == "Foreground":
        names.append(FOREGROUND)
    if names:
        meta["finalizers"] = names
    else:
        meta.pop("finalizers", None)
