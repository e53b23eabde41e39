"""The labels that every rank of an allocation gets, whatever its template says: who looks for neighbours may name them.

Without the number of the rank and the attempt, by which nobody is told apart before it is placed.
"""

from collections.abc import Mapping
from typing import Any, cast

from slipway.model.ids import allocation_id

PREFIX = "slipway.dev/"
ALLOCATION_UID, ALLOCATION, ROLE = f"{PREFIX}allocation-uid", f"{PREFIX}allocation", f"{PREFIX}role"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "slipway"


def labels_of_rank(uid: str, allocation: str, role: str) -> dict[str, str]:
    """Of a rank of `role`; `allocation` is the AllocationID."""
    return {ALLOCATION_UID: uid, ALLOCATION: allocation, ROLE: role, MANAGED_BY: MANAGER}


def labels_if_named(name: str, uid: str, role: str, *wishes: Any) -> Mapping[str, str]:
    """The same where `wishes` (affinities, constraints) name any of them, else nothing: ranks of many allocations that
    nobody tells apart should look the same."""
    if _names_ours(wishes):
        return labels_of_rank(uid, allocation_id(name, uid), role)
    return {}


def _names_ours(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith(PREFIX) or value == MANAGED_BY
    if isinstance(value, Mapping):
        return any(_names_ours(key) or _names_ours(item) for key, item in cast("Mapping[str, Any]", value).items())
    if isinstance(value, list | tuple):
        return any(_names_ours(item) for item in cast("list[Any]", value))
    return False
