"""Identifiers of allocations and of the objects made for them, and how each is derived.

Owns the derivation of the AllocationID and of every name that starts with it. Knows nothing of Kubernetes calls or
Redis. Every function is pure: an object has the same id in every process, at any time.

Every rank of an allocation gets some labels, whatever its template contains. Affinity terms may select them. They do
not include the numbers of the rank and of the attempt: before placement, no rule distinguishes ranks by them.
"""

import re
from collections.abc import Mapping
from typing import Any, NewType, cast

AllocationId = NewType("AllocationId", str)
"""`<metadata.name>-<first 8 of metadata.uid>`: the key of the streams and the prefix of pod names."""
Epoch = NewType("Epoch", int)
"""The fence of the ledger: each new leader increases it, and it never decreases."""

NAME_LENGTH_MAX = 40
NAME_PATTERN = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
VALUES_PREFIX = "slipway-values-"
"""Prefix of the names of Secrets that contain secret values of allocations."""
_UID_PREFIX_LENGTH = 8
_ID_PATTERN = re.compile(r"^(?P<name>[a-z](?:[-a-z0-9]*[a-z0-9])?)-(?P<prefix>[0-9a-f]{8})$")


def allocation_id(name: str, uid: str) -> AllocationId:
    """The AllocationID of the object `name` with `uid`."""
    return AllocationId(f"{name}-{uid[:_UID_PREFIX_LENGTH]}")


def split_allocation_id(value: str) -> tuple[str, str] | None:
    """(object name, uid prefix) of an AllocationID, or None when `value` cannot be one."""
    match = _ID_PATTERN.fullmatch(value)
    return (match["name"], match["prefix"]) if match and is_name(match["name"]) else None


def is_name(value: str) -> bool:
    """Whether `value` may name an Allocation (the CRD has the same rule in CEL)."""
    return len(value) <= NAME_LENGTH_MAX and NAME_PATTERN.fullmatch(value) is not None


def bundle_name(allocation: AllocationId, attempt: int) -> str:
    """Return the name that the ConfigMap and the headless Service of an attempt share."""
    return f"{allocation}-{attempt}"


def is_bundle_name(value: str) -> bool:
    """Whether `value` has the form of a name that `bundle_name` returns."""
    allocation, _, attempt = value.rpartition("-")
    return attempt.isdecimal() and split_allocation_id(allocation) is not None


def values_name(uid: str) -> str:
    """Return the name of the Secret with the secret values of the allocation that has this uid."""
    return f"{VALUES_PREFIX}{uid}"


def pod_name(allocation: AllocationId, attempt: int, rank: int) -> str:
    """The name of the pod of one rank of one attempt."""
    return f"{allocation}-{attempt}-{rank}"


RANK_LABEL_PREFIX = "slipway.dev/"
ALLOCATION_UID, ALLOCATION, ROLE = (
    f"{RANK_LABEL_PREFIX}allocation-uid",
    f"{RANK_LABEL_PREFIX}allocation",
    f"{RANK_LABEL_PREFIX}role",
)
MANAGED_BY = "app.kubernetes.io/managed-by"
RANK_LABEL_MANAGER = "slipway"


def labels_of_rank(uid: str, allocation: str, role: str) -> dict[str, str]:
    """Return the labels of a rank of `role`; `allocation` is the AllocationID."""
    return {ALLOCATION_UID: uid, ALLOCATION: allocation, ROLE: role, MANAGED_BY: RANK_LABEL_MANAGER}


def labels_if_named(name: str, uid: str, role: str, *wishes: Any) -> Mapping[str, str]:
    """Return the labels of `labels_of_rank` when `wishes` (affinities, constraints) name any of them, else no labels.

    Without these labels, ranks of many allocations are equal, and the planner should see them as equal.
    """
    if _names_ours(wishes):
        return labels_of_rank(uid, allocation_id(name, uid), role)
    return {}


def _names_ours(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith(RANK_LABEL_PREFIX) or value == MANAGED_BY
    if isinstance(value, Mapping):
        return any(_names_ours(key) or _names_ours(item) for key, item in cast("Mapping[str, Any]", value).items())
    if isinstance(value, list | tuple):
        return any(_names_ours(item) for item in cast("list[Any]", value))
    return False
