"""What the pod worker writes to an allocation: its release, later pods of ranks, the conditions Stuck and Refused.

Owns their form. Every write is a PUT of `/status` under the resourceVersion that the decision was made on: a cancel,
a deletion or a new attempt in between makes it fail, and the caller decides again. Everything else in the status
is sent back as it was read.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from slipway.crd.members import growth_of
from slipway.crd.meta import Condition, condition_of
from slipway.crd.v1alpha1 import Allocation, Release
from slipway.errors import AlreadyExistsError, PermanentError, StaleError, TooLargeError
from slipway.kube.statuses import put_status
from slipway.model.reasons import Reason
from slipway.model.times import SKEW_S, format_time, parse_time
from slipway.podworker.intent import CONDITION_STUCK
from slipway.podworker.ports import Kube

MESSAGE_CHARS_MAX = 1024
REASON_CHARS_MAX = 160
_NEXT_STEPS: Final = (
    (
        re.compile(r"error looking up service account (?P<namespace>[^/\s]+)/(?P<name>[^:\s]+): serviceaccount "),
        "create it with `kubectl create serviceaccount {name} --namespace {namespace}`, or name another one",
    ),
    (
        re.compile(r"no PriorityClass with name (?P<name>\S+) was found"),
        "`kubectl get priorityclasses` lists what there is",
    ),
    (
        re.compile(r'RuntimeClass(?:\.node\.k8s\.io)? "?(?P<name>[^"\s]+)"? not found'),
        "`kubectl get runtimeclasses` lists what there is",
    ),
)
"""(pattern of the API server's message about an object that a pod names and that does not exist, what to do)"""


async def release(kube: Kube, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
    """Commit the launch: from now on these pods, and no others, may be bound.

    Raises:
        StaleError: the allocation has changed since it was read: decide again.
        InvalidError: the server's own rules refuse it, such as a release of a stopped allocation.
    """
    status = msgspec.structs.replace(
        allocation.status,
        release=Release(attempt=allocation.status.attempt, pod_uids=list(pod_uids)),
        conditions=[item for item in allocation.status.conditions if item.type != CONDITION_STUCK],
    )
    return await put_status(kube, allocation, status)


async def commit_added(kube: Kube, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
    """Commit the pods of added ranks: `pod_uids` has the uids for the placements that had none, in order.

    Raises:
        StaleError: the allocation has changed since it was read: decide again.
        InvalidError: the server's own rules refuse it, such as more ranks for a stopped allocation.
    """
    growth = growth_of(allocation)
    if growth is None:
        raise StaleError("no ranks were added to the allocation")
    grown = msgspec.structs.replace(growth, pod_uids=[*growth.pod_uids, *pod_uids])
    return await put_status(kube, allocation, msgspec.structs.replace(allocation.status, growth=grown))


async def commit_restarted(kube: Kube, allocation: Allocation, pod_uids: Mapping[int, str]) -> Allocation:
    """Commit the new pods of ranks that start again in their place: {rank: uid}.

    Raises:
        StaleError: the allocation has changed since it was read: decide again.
        InvalidError: the server's own rules refuse it, such as a restart in a stopped allocation.
    """
    ranks = [
        msgspec.structs.replace(each, pod_uid=pod_uids[each.rank], not_before="") if each.rank in pod_uids else each
        for each in allocation.status.restarted_ranks
    ]
    status = msgspec.structs.replace(
        allocation.status,
        restarted_ranks=ranks,
        conditions=[item for item in allocation.status.conditions if item.type != CONDITION_STUCK],
    )
    return await put_status(kube, allocation, status)


async def withdraw(
    kube: Kube, allocation: Allocation, ranks: Collection[int], *, not_before: str = "", reason: str = ""
) -> Allocation:
    """Remove added ranks that have no released pod from the growth; the other ranks stay.

    Raises:
        StaleError: the allocation has changed since it was read: decide again.
    """
    growth = growth_of(allocation)
    if growth is None:
        raise StaleError("no ranks were added to the allocation")
    named = len(growth.pod_uids)
    rest = [place for place in growth.placements[named:] if place.rank not in ranks]
    grown = msgspec.structs.replace(
        growth,
        n=growth.n + 1,
        placements=[*growth.placements[:named], *rest],
        not_before=not_before or growth.not_before,
        reason=reason[:REASON_CHARS_MAX] or growth.reason,
    )
    return await put_status(kube, allocation, msgspec.structs.replace(allocation.status, growth=grown))


async def set_condition(
    kube: Kube, allocation: Allocation, type_: str, status: str, *, reason: str, message: str, now: float
) -> bool:
    """Write a condition of the current attempt; return False when it is the same already and nothing was written.

    Raises:
        StaleError: the allocation has changed since it was read.
    """
    attempt = allocation.status.attempt
    known = condition_of(allocation.status.conditions, type_)
    is_same = known is not None and (known.status, known.observed_generation) == (status, attempt)
    since = (known.last_transition_time if is_same and known else None) or format_time(now)
    if parse_time(since) > now + SKEW_S:
        # A process whose clock was ahead has written this time. A wait that is measured from it would last too long.
        is_same, since = False, format_time(now)
    wanted = Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message[:MESSAGE_CHARS_MAX],
        observed_generation=attempt,
        last_transition_time=since,
    )
    if known == wanted or (is_same and known and known.reason == reason):
        # Only the message differs. It may differ from try to try (times, addresses), so that is no change.
        return False
    others = [item for item in allocation.status.conditions if item.type != type_]
    await put_status(kube, allocation, msgspec.structs.replace(allocation.status, conditions=[*others, wanted]))
    return True


def refusal(error: PermanentError) -> Reason:
    """Return why a launch can never succeed; the watcher ends the allocation with this reason."""
    match error:
        case TooLargeError():
            return Reason.TOO_LARGE
        case AlreadyExistsError():
            return Reason.LAUNCH_REFUSED
        case _:
            return Reason.INVALID_SPEC


def refusal_text(error: PermanentError) -> str:
    """Return the API server's message, with the next step if it names an object that does not exist."""
    said = str(error)
    for words, step in _NEXT_STEPS:
        found = words.search(said)
        if found is not None:
            return f"{said}; {step.format(**found.groupdict())}"
    return said


def stuck_reason(error: Exception) -> str:
    """Return the condition's reason, from the class of the error: `QuotaExceeded`, `Denied`, `Unavailable`..."""
    return type(error).__name__.removesuffix("Error")
