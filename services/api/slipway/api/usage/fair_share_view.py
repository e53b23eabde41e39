"""The past use of queues and users in comparison with others, as the REST API shows it. Pure."""

from collections.abc import Collection, Iterable, Mapping

from slipway.api.schemas import FairShareView, QueuePast, UserPast
from slipway.crd.v1alpha1 import Queue, ResourcePool
from slipway.model.decay import ByUser
from slipway.model.facts import LEAST_USED

USERS_MAX = 20
"""Limit of users that are shown of a queue: those with the most use."""
NAMED_MAX = 3
GPU_HOUR_MS = 3_600_000


def fair_share_view(
    queue: Queue, pool: ResourcePool | None, queues: Iterable[Queue], used: ByUser, *, only: Collection[str] | None
) -> FairShareView | None:
    """Return the past use of `queue`, of its siblings and of its users; None when the pool does not count past use.

    `only` are the users who may be named; None permits all.
    """
    rule = pool.spec.fair_share if pool is not None else None
    if rule is None:
        return None
    in_pool = [each for each in queues if each.spec.pool == queue.spec.pool]
    siblings = [each for each in in_pool if (each.spec.parent or "") == (queue.spec.parent or "")]
    weights = sum(each.spec.weight for each in siblings)
    amounts = {each.metadata.name: used_below(each.metadata.name, in_pool, used) for each in siblings}
    in_all = sum(amounts.values())
    users = sorted(used.get(queue.metadata.name, {}).items(), key=lambda item: (-item[1], item[0]))
    shown = [(user, amount) for user, amount in users if only is None or user in only]
    return FairShareView(
        half_life=rule.half_life,
        history_weight=rule.history_weight,
        user_order=queue.spec.user_order,
        queues=[
            QueuePast(
                name=each.metadata.name,
                weight=each.spec.weight,
                gpu_hours=hours(amounts[each.metadata.name]),
                used_percent=round(100 * amounts[each.metadata.name] / in_all, 1) if in_all else 0.0,
                weight_percent=round(100 * each.spec.weight / weights, 1),
            )
            for each in sorted(
                siblings, key=lambda each: (amounts[each.metadata.name] / each.spec.weight, each.metadata.name)
            )
        ],
        users=[UserPast(user=user, gpu_hours=hours(amount)) for user, amount in shown[:USERS_MAX]],
    )


def used_below(name: str, queues: Collection[Queue], used: ByUser) -> int:
    """Return the use of queue `name` and all queues below it; in a cycle of parents each queue is counted once."""
    seen: set[str] = set()
    open_ = [name]
    while open_:
        at = open_.pop()
        if at not in seen:
            seen.add(at)
            open_ += [each.metadata.name for each in queues if each.spec.parent == at]
    return sum(sum(used.get(each, {}).values()) for each in seen)


def turn_sentence(
    user: str,
    others: Collection[str],
    queue: Queue,
    pool: ResourcePool,
    *,
    used: Mapping[str, int],
    levels: Mapping[str, int],
) -> str:
    """Return a sentence about which user goes first among equal priorities: `user`, or one of the waiting `others`.

    Empty when the queue does not order its users by use, or none of the others waits.
    """
    rule = pool.spec.fair_share
    rivals = sorted(set(others) - {user}, key=lambda each: (levels.get(each, 0), each))
    if rule is None or queue.spec.user_order != LEAST_USED or not rivals:
        return ""
    named = ", ".join(f"{each} {spelled(used.get(each, 0))}" for each in rivals[:NAMED_MAX])
    mine, least = levels.get(user, 0), levels.get(rivals[0], 0)
    first = (
        "the order is that of submission"
        if mine == least
        else f"{user if mine < least else rivals[0]}'s allocations go first"
    )
    return (
        f"user {user} has used {spelled(used.get(user, 0))} in queue {queue.metadata.name} (half-life "
        f"{rule.half_life}), {named}: among allocations of the same priority, {first}"
    )


def hours(gpu_ms: int) -> float:
    """Return GPU-hours, rounded to a thousandth."""
    return round(gpu_ms / GPU_HOUR_MS, 3)


def spelled(gpu_ms: int) -> str:
    """Return a text such as `120 GPU-h`."""
    return f"{round(gpu_ms / GPU_HOUR_MS, 1):g} GPU-h"
