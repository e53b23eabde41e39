"""Who holds what something waits for: the admitted allocations of its pool, queue or job, the largest first. Pure."""

from collections.abc import Callable, Iterable

from slipway.api.queue_view import slots_of
from slipway.api.schemas import Holder
from slipway.crd.transitions import id_of, is_admitted, ring_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.reasons import Gate, says_never

HOLDERS_MAX = 5

_OF_POOL = frozenset({Gate.NO_FIT, Gate.TOPOLOGY_TOO_SMALL, Gate.MAKING_ROOM, Gate.BEHIND_RESERVATION})


def waits_for_others(code: str, message: str) -> bool:
    """Whether the end of other work would let it start."""
    return code in (*_OF_POOL, Gate.WAITING_FOR_QUOTA, Gate.JOB_MAX_SLOTS) and not says_never(message)


def holders(
    waiting: Allocation, code: str, live: Iterable[Allocation], sees: Callable[[str], bool]
) -> tuple[list[Holder], int]:
    """(the largest, how many others hold something too); `sees`: whether the viewer may look into that workspace.

    Of a queue that holds nothing itself, all of the pool: what it lacks is lent or in use elsewhere.
    """
    spec = waiting.spec
    held = [each for each in live if each.spec.pool == spec.pool and is_admitted(each)]
    if code == Gate.JOB_MAX_SLOTS:
        namespace = waiting.metadata.namespace
        held = [each for each in held if (each.metadata.namespace, each.spec.job) == (namespace, spec.job)]
    elif code == Gate.WAITING_FOR_QUOTA:
        held = [each for each in held if each.spec.queue == spec.queue] or held
    seen = [_holder(each) for each in held if sees(each.metadata.namespace)]
    largest = sorted(seen, key=lambda each: (-each.slots, each.since, each.id))[:HOLDERS_MAX]
    return largest, len(held) - len(largest)


def _holder(allocation: Allocation) -> Holder:
    admission = allocation.status.admission
    since = admission.at if admission is not None and admission.at else ring_of(allocation)[-1].time
    return Holder(id=id_of(allocation), user=user_of(allocation), slots=slots_of(allocation), since=since)
