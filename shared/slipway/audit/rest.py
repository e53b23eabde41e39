"""Checks of the end, at rest: gangs are whole or not there, and nothing is left over.

I6, I11. Pure: evidence in, violations out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slipway.audit.evidence import CONFIG_MAPS, PODS, SERVICES, Evidence, Violation
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase

OURS = (PODS, CONFIG_MAPS, SERVICES)


def gangs_are_whole(evidence: Evidence) -> Iterator[Violation]:
    """I6: at rest an allocation runs no rank at all, or at least its minimum."""
    if not evidence.is_at_rest:
        return
    running: dict[str, int] = {}
    for ran in evidence.containers:
        if ran.ended_at is None:
            running[ran.allocation_uid] = running.get(ran.allocation_uid, 0) + 1
    for uid, history in evidence.allocations.items():
        allocation = history[-1].allocation
        count, minimum = running.get(uid, 0), _minimum(allocation)
        if 0 < count < minimum:
            message = f"{count} ranks run at rest, its minimum is {minimum}"
            yield Violation(invariant="I6", subject=allocation.metadata.name, message=message)


def nothing_leaks(evidence: Evidence) -> Iterator[Violation]:
    """I11: at rest every object of ours belongs to the current attempt of a live allocation; no finalizer is left."""
    if not evidence.is_at_rest:
        return
    ends = (history[-1] for history in evidence.allocations.values())
    owners = [end.allocation for end in ends if not end.version.is_deletion]
    objects = [(key[0], version.obj["metadata"]) for key, version in evidence.last(OURS).items()]
    for name, message in leftovers(owners, objects):
        yield Violation(invariant="I11", subject=name, message=message)


def leftovers(
    allocations: Iterable[Allocation], objects: Iterable[tuple[str, Mapping[str, Any]]]
) -> Iterator[tuple[str, str]]:
    """(name, why) of everything that should be gone; `objects` are (resource, metadata) of what there is of `OURS`."""
    owners = {allocation.metadata.uid: allocation for allocation in allocations}
    for owner in owners.values():
        if TEARDOWN_FINALIZER in owner.metadata.finalizers and owner.status.phase is Phase.TERMINATED:
            yield owner.metadata.name, "has ended and still carries its finalizer"
    for resource, meta in objects:
        labels: Mapping[str, Any] = meta.get("labels", {})
        uid, attempt, name = labels.get(LABEL_ALLOCATION_UID), labels.get(LABEL_ATTEMPT), str(meta["name"])
        if uid is None:
            continue
        owner = owners.get(uid)
        if owner is None:
            yield name, f"{resource} without an allocation"
        elif owner.status.phase is Phase.TERMINATED:
            yield name, f"{resource} of an allocation that has ended"
        elif attempt != str(owner.status.attempt):
            yield name, f"{resource} of attempt {attempt}, the current one is {owner.status.attempt}"


def _minimum(allocation: Allocation) -> int:
    spec = allocation.spec
    if spec.min_available is not None:
        return spec.min_available
    return sum(role.count if role.min_available is None else role.min_available for role in spec.ranks) or 1
