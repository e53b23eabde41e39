"""Dependencies between allocations (`spec.after`): which ones an allocation waits for, and how they ended.

Owns the search for them in the stores, and what their ends change in the status. An end is recorded once, in the status
of the waiting allocation. After that record the ended object is not needed any more and may be deleted. So the last
finalizer of an ended allocation is removed only after that record (`is_awaited`, which `reconcile.py` calls).

An AllocationID contains the uid, so it can only name an allocation that existed before. A name in an applied object can
be any text: it is looked up once, and the id that is found is recorded. If no such allocation exists then, or if it
waits for this allocation itself, the name is invalid.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from slipway.crd.dependencies import is_dependency_target, is_met, names_of, open_dependencies, records_of
from slipway.crd.transitions import id_of, record, with_status
from slipway.crd.v1alpha1 import Allocation, DependencyRecord
from slipway.model.ids import split_allocation_id
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from slipway.model.times import format_time
from slipway.watcher.ends import FinalEnd

LOOKS_MAX = 1000
"""The number of allocations that the search for a cycle reads."""
LISTED_MAX = 4
"""The number of ends that one event names."""


class SeenDependency(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of one dependency: `id` and, if it has ended, `result` (None: the object is gone, so it is
    unknown).

    `problem` is the error of a name that this allocation cannot wait for; empty without one.
    """

    id: str = ""
    has_ended: bool = False
    result: Result | None = None
    problem: str = ""


Seen = Mapping[str, SeenDependency]
"""{the text in `spec.after`: the observed state}"""
NOTHING_SEEN: Seen = {}


class AwaitedAllocation(NamedTuple):
    """One allocation that another one waits for."""

    allocation: str
    """the text in `spec.after`"""
    wanted: str
    """its id, once that is known; until then the text in `spec.after`"""
    is_name: bool
    """True while it was not looked up yet, so that the text may be a name"""

    @property
    def names(self) -> tuple[str, ...]:
        """The object names that this allocation may have."""
        return names_of(self.wanted)

    def matches(self, found: Allocation) -> bool:
        """Whether `found` is this allocation."""
        return is_dependency_target(found, self.wanted, by_name=self.is_name)


Find = Callable[[str, str], Allocation | None]
"""(namespace, name) -> the newest version of the allocation that is known; None when there is none"""

# --- finding dependencies


def awaited_by(allocation: Allocation) -> list[AwaitedAllocation]:
    """Return all allocations that `allocation` waits for."""
    records = records_of(allocation)
    return [
        AwaitedAllocation(name, known.id if known else name, known is None)
        for name, known in ((each.allocation, records.get(each.allocation)) for each in open_dependencies(allocation))
    ]


def awaited_names(allocation: Allocation) -> Iterable[str]:
    """Return `namespace/name` of all allocations that it may wait for: the keys of an index of the store."""
    if allocation.status.phase is not Phase.PENDING or not allocation.spec.after:
        return ()
    space = allocation.metadata.namespace
    return {f"{space}/{name}" for each in awaited_by(allocation) for name in each.names}


def state_of(allocation: Allocation, awaited: AwaitedAllocation, find: Find) -> SeenDependency | None:
    """Return the state of one dependency in the stores; None when it is not in them, which is no evidence."""
    for name in awaited.names:
        found = find(allocation.metadata.namespace, name)
        if found is None or not awaited.matches(found):
            continue
        if awaited.is_name and id_of(found) != awaited.wanted and _waits_for(found, allocation, find):
            text = f"{awaited.wanted} waits for this allocation, so neither could start; leave one of the two out"
            return SeenDependency(problem=text)
        has_ended = found.status.phase is Phase.TERMINATED
        return SeenDependency(id=id_of(found), has_ended=has_ended, result=found.status.result if has_ended else None)
    return None


def state_of_absent(allocation: Allocation, awaited: AwaitedAllocation) -> SeenDependency:
    """Return the state when the API server has no such allocation: one with an id has ended, a name is invalid."""
    if split_allocation_id(awaited.wanted) is not None:
        return SeenDependency(id=awaited.wanted, has_ended=True)
    space = allocation.metadata.namespace
    return SeenDependency(problem=f"workspace {space} has no allocation {awaited.wanted}; create that one first")


def is_awaited(ended: Allocation, waiting: Iterable[Allocation]) -> bool:
    """Whether one of the `waiting` allocations waits for `ended` and has not recorded its end."""
    return any(awaited.matches(ended) for each in waiting for awaited in awaited_by(each))


def _waits_for(found: Allocation, wanted: Allocation, find: Find) -> bool:
    """Whether `found` is `wanted`, or waits for it through others."""
    looked, left = set[str](), [found]
    while left and len(looked) < LOOKS_MAX:
        each = left.pop()
        if each.metadata.uid == wanted.metadata.uid:
            return True
        if each.metadata.uid in looked:
            continue
        looked.add(each.metadata.uid)
        names = [name for awaited in awaited_by(each) for name in awaited.names]
        left += [next_ for name in names if (next_ := find(each.metadata.namespace, name)) is not None]
    return False


# --- effects on the waiting allocation


def problem_of(allocation: Allocation, seen: Seen) -> FinalEnd | None:
    """Return the end of an allocation that names an invalid dependency; None when all its dependencies are valid."""
    for index, each in enumerate(allocation.spec.after):
        found = seen.get(each.allocation)
        if found is not None and found.problem:
            text = f"spec.after[{index}].allocation: {found.problem}"
            return FinalEnd(result=Result.INVALID, reason=Reason.INVALID_SPEC, message=text)
    return None


def with_dependencies(allocation: Allocation, seen: Seen, *, now: float) -> Allocation:
    """Return the allocation with the observed states of its dependencies; the identical object when nothing is new.

    An end is also recorded as an event; the id of a looked-up name is not.
    """
    ended: dict[str, str] = {}
    records = records_of(allocation)
    for each in open_dependencies(allocation):
        found = seen.get(each.allocation)
        if found is None or found.problem or not (found.has_ended or found.id != each.allocation):
            continue
        recorded_at = format_time(now) if found.has_ended else ""
        records[each.allocation] = DependencyRecord(
            allocation=each.allocation, id=found.id, result=found.result, recorded_at=recorded_at
        )
        if found.has_ended and (len(ended) < LISTED_MAX or not is_met(each.when, found.result)):
            ended[found.id] = found.result.value if found.result else ""
    status = msgspec.structs.replace(allocation.status, dependencies=list(records.values()))
    if status == allocation.status:
        return allocation
    if not ended:
        return with_status(allocation, status)
    return record(allocation, Event.UPDATED, now=now, data={"after": ended}, dependencies=status.dependencies)
