"""The labels that every rank of an allocation gets, whatever its template contains. Affinity terms may select them.

They do not include the numbers of the rank and of the attempt: before placement, no rule distinguishes ranks by them.
"""

from collections.abc import Mapping
from typing import Any, cast

from slipway.model.ids import allocation_id

PREFIX = "slipway.dev/"
ALLOCATION_UID, ALLOCATION, ROLE = f"{PREFIX}allocation-uid", f"{PREFIX}allocation", f"{PREFIX}role"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "slipway"


def labels_of_rank(uid: str, allocation: str, role: str) -> dict[str, str]:
    """Return the labels of a rank of `role`; `allocation` is the AllocationID."""
    return {ALLOCATION_UID: uid, ALLOCATION: allocation, ROLE: role, MANAGED_BY: MANAGER}


def labels_if_named(name: str, uid: str, role: str, *wishes: Any) -> Mapping[str, str]:
    """Return the labels of `labels_of_rank` when `wishes` (affinities, constraints) name any of them, else no labels.

    Without these labels, ranks of many allocations are equal, and the planner should see them as equal.
    """
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
