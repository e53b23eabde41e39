"""How many ranks of each role the smallest gang that may start has, and what they use. Pure."""

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.state.rank_request import quota_of


def targets(allocation: AllocationFact) -> list[int]:
    """Return the ranks per role of the smallest gang that may start.

    Each role gets its minimum. Ranks that the gang's own minimum still requires are added so that each role gets the
    same part of its range from minimum to count.
    """
    if len(allocation.roles) == 1:
        only = allocation.roles[0]
        return [max(only.minimum, min(allocation.minimum, only.count))]
    counts = [role.minimum for role in allocation.roles]
    missing = min(allocation.minimum, allocation.rank_count) - sum(counts)
    while missing > 0:
        chosen = next_role(allocation.roles, counts)
        if chosen is None:
            break
        counts[chosen] += 1
        missing -= 1
    return counts


def next_role(roles: tuple[RoleFact, ...], counts: list[int], skip: frozenset[int] = frozenset()) -> int | None:
    """Return the role with the smallest part of its range so far, the first among equals; None when all are full."""
    best: int | None = None
    for index, role in enumerate(roles):
        if counts[index] >= role.count or index in skip:
            continue
        if best is None or _is_behind(role, counts[index], roles[best], counts[best]):
            best = index
    return best


def _is_behind(role: RoleFact, count: int, other: RoleFact, other_count: int) -> bool:
    part = (count - role.minimum) * (other.count - other.minimum)
    return part < (other_count - other.minimum) * (role.count - role.minimum)


def smallest_demand(allocation: AllocationFact) -> Resources:
    """Return what the smallest gang that may start uses."""
    counts = targets(allocation)
    return total(quota_of(role) * count for role, count in zip(allocation.roles, counts, strict=True) if count)
