"""Decides whether a rank may start: by the pods of the roles that its role depends on, in the same attempt. Pure.

A role has started when all its placed ranks have started; it is ready when all of them are ready. A role without a
placed rank does not block other roles. A rank that ended with exit code 0 is treated as started and ready.
"""

from collections.abc import Mapping

from slipway.api.schemas import StartOrderView
from slipway.crd.members import departed_ranks, members
from slipway.crd.v1alpha1 import Allocation, RoleSpec
from slipway.kube.objects import Pod
from slipway.model.lifecycle import RoleProgress


def ranks_of(allocation: Allocation) -> list[int]:
    """Return the placed ranks of the attempt; before any is placed, those that the spec requests."""
    gone = departed_ranks(allocation)
    placed = sorted(member.rank for member in members(allocation) if member.rank not in gone)
    if placed:
        return placed
    return list(range(sum(role.count for role in allocation.spec.ranks) or 1))


def role_of(allocation: Allocation, rank: int) -> RoleSpec:
    """Return the role of a rank; ranks are numbered through the roles in their order."""
    for role in allocation.spec.ranks:
        if rank < role.count:
            return role
        rank -= role.count
    return RoleSpec()


def view_of(allocation: Allocation, rank: int, pods: Mapping[int, Pod]) -> StartOrderView:
    """Return the answer for a rank; `pods` are those of its attempt, by rank."""
    ranks: dict[str, list[int]] = {}
    for each in ranks_of(allocation):
        ranks.setdefault(role_of(allocation, each).name, []).append(each)
    missing: list[str] = []
    for dependency in role_of(allocation, rank).depends_on:
        placed = ranks.get(dependency.role, [])
        there = sum(_is_so_far(pods.get(each), dependency.until) for each in placed)
        if there < len(placed):
            missing.append(f"role {dependency.role} ({there} of {len(placed)} ranks {dependency.until})")
    message = f"waits for {' and '.join(missing)}" if missing else ""
    return StartOrderView(attempt=allocation.status.attempt, start=not missing, message=message)


def _is_so_far(pod: Pod | None, until: RoleProgress) -> bool:
    if pod is None:
        return False
    if pod.status.phase == "Succeeded":
        return True
    if pod.status.phase != "Running":
        return False
    return until is RoleProgress.STARTED or any(
        each.type == "Ready" and each.status == "True" for each in pod.status.conditions
    )
