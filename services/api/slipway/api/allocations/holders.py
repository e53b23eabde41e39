"""Finds the allocations that hold what an allocation waits for, in its pool, queue or job; the largest first. Pure."""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType

from slipway.api.queues.queue_view import slots_of
from slipway.api.schemas import Holder
from slipway.crd.transitions import id_of, is_admitted, ring_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.reasons import Gate, waiting_never_helps

HOLDERS_MAX = 5

_OF_POOL = frozenset({Gate.NO_FIT, Gate.TOPOLOGY_TOO_SMALL, Gate.MAKING_ROOM, Gate.BEHIND_RESERVATION})


def waits_for_others(code: str, message: str) -> bool:
    """Whether the end of other allocations would let it start."""
    return code in (*_OF_POOL, Gate.WAITING_FOR_QUOTA, Gate.JOB_MAX_SLOTS) and not waiting_never_helps(message)


def holders(
    waiting: Allocation,
    code: str,
    live: Iterable[Allocation],
    sees: Callable[[str], bool],
    *,
    message: str = "",
    parents: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[Holder], int]:
    """Return (the largest holders, the number of other holders).

    `sees` returns whether the caller may see a workspace. `parents` is {queue: its parent}. `message` is the sentence
    of the scheduler: for an allocation that waits for quota, it names the queue that is short, its own queue or a
    parent. Then the holders are the allocations of that queue and of the queues below it. If these hold nothing, the
    holders are all allocations of the pool: then the missing quota is lent to other queues, or in use by them.
    """
    spec = waiting.spec
    held = [each for each in live if each.spec.pool == spec.pool and is_admitted(each)]
    if code == Gate.JOB_MAX_SLOTS:
        namespace = waiting.metadata.namespace
        held = [each for each in held if (each.metadata.namespace, each.spec.job) == (namespace, spec.job)]
    elif code == Gate.WAITING_FOR_QUOTA:
        short = _queue_that_is_short(spec.queue, message, parents)
        held = [each for each in held if short in _upwards(each.spec.queue, parents)] or held
    seen = [_holder(each) for each in held if sees(each.metadata.namespace)]
    largest = sorted(seen, key=lambda each: (-each.slots, each.since, each.id))[:HOLDERS_MAX]
    return largest, len(held) - len(largest)


def _queue_that_is_short(own: str, message: str, parents: Mapping[str, str]) -> str:
    """Return the queue that the scheduler's sentence names: `own` or a parent; `own` when it names none."""
    words = message.replace(",", " ").replace(";", " ").replace(":", " ").split()
    named = {after for before, after in pairwise(words) if before == "queue"}
    return next((name for name in _upwards(own, parents) if name in named), own)


def _upwards(queue: str, parents: Mapping[str, str]) -> list[str]:
    """Return the queue and its parents."""
    found: list[str] = []
    while queue and queue not in found:
        found.append(queue)
        queue = parents.get(queue, "")
    return found


def _holder(allocation: Allocation) -> Holder:
    admission = allocation.status.admission
    since = admission.at if admission is not None and admission.at else ring_of(allocation)[-1].time
    return Holder(id=id_of(allocation), user=user_of(allocation), slots=slots_of(allocation), since=since)
