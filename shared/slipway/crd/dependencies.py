"""The dependencies of an allocation (`spec.after`), and what follows from the ends of those allocations.

Pure, and computed from the object only: the end of each dependency is in the spec (it had ended before the launch) or
in the status (the watcher recorded it). So all services and all leaders get the same result, also when the other
allocation is deleted.
"""

from slipway.crd.meta import ANNOTATION_FORMER_IDS
from slipway.crd.v1alpha1 import Allocation, Dependency, DependencyRecord
from slipway.model.ids import allocation_id, split_allocation_id
from slipway.model.reasons import DependencyEnd, Result
from slipway.model.times import parse_time


def is_met(when: DependencyEnd, result: Result | None) -> bool:
    """Whether a dependency that ended with `result` satisfies `when`; None: it was deleted and its result is not
    known."""
    match when:
        case DependencyEnd.ENDED:
            return True
        case DependencyEnd.SUCCEEDED:
            return result is Result.SUCCEEDED
        case DependencyEnd.FAILED:
            return result not in (Result.SUCCEEDED, None)


def records_of(allocation: Allocation) -> dict[str, DependencyRecord]:
    """Return {name as in `spec.after`: record} of the dependencies in the status."""
    return {each.allocation: each for each in allocation.status.dependencies}


def open_dependencies(allocation: Allocation) -> list[Dependency]:
    """Return the dependencies whose end is neither in the spec nor in the status."""
    if not allocation.spec.after:
        return []
    ended = {each.allocation for each in allocation.status.dependencies if each.recorded_at}
    return [each for each in allocation.spec.after if each.result is None and each.allocation not in ended]


def waits_for(allocation: Allocation) -> tuple[tuple[str, str], ...]:
    """Return (allocation, required end) of the dependencies whose end the object does not contain."""
    return tuple((each.allocation, each.when.value) for each in open_dependencies(allocation))


def unmet(allocation: Allocation) -> str:
    """Return why it can never start: the first dependency that did not end as required, as a sentence; empty for
    none."""
    records = records_of(allocation)
    for each in allocation.spec.after:
        known = records.get(each.allocation)
        if each.result is None and (known is None or not known.recorded_at):
            continue
        result = each.result or (known.result if known else None)
        if not is_met(each.when, result):
            name = known.id if known else each.allocation
            return f"{ending(name, result)}; this allocation starts only if it {each.when}"
    return ""


def ending(name: str, result: Result | None) -> str:
    """Return how an allocation ended, as the beginning of a sentence."""
    return f"{name} ended with {result}" if result else f"{name} was deleted, and its result is not known"


def met_at(allocation: Allocation) -> float | None:
    """Return the time at which the last end was recorded, in epoch seconds; None when no end was recorded."""
    times = [each.recorded_at for each in allocation.status.dependencies if each.recorded_at]
    return max(map(parse_time, times)) if times else None


def names_of(wanted: str) -> tuple[str, ...]:
    """Return the object names that a text may mean: the name in an AllocationID, and the text itself."""
    parts = split_allocation_id(wanted)
    return (wanted,) if parts is None else (parts[0], wanted)


def is_dependency_target(found: Allocation, wanted: str, *, by_name: bool) -> bool:
    """Whether `found` is the allocation that a dependency names; a restored one is also known by its former ids."""
    former = found.metadata.annotations.get(ANNOTATION_FORMER_IDS, "").split(",")
    return (
        allocation_id(found.metadata.name, found.metadata.uid) == wanted
        or wanted in former
        or (by_name and found.metadata.name == wanted)
    )
