"""What an allocation waits for by `spec.after`: which allocations these are, how they ended, and who waits for one.

Owns the search for them in the stores, and what their ends change in the status. An end is recorded once, in the status
of the allocation that waits: from then on nothing depends on the other object, which may be deleted. So the last
finalizer of an ended allocation waits for that record (`is_awaited`, asked by `reconcile.py`).

An AllocationID holds the uid, so it can only name what existed before. A name in an applied object can name anything:
it is looked up once and its id recorded; what does not exist then, or waits for this allocation itself, is invalid.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from slipway.crd.dependencies import is_met, is_the_one, names_of, open_dependencies, records_of
from slipway.crd.transitions import id_of, record, with_status
from slipway.crd.v1alpha1 import Allocation, DependencyRecord
from slipway.model.ids import split_allocation_id
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from slipway.model.times import format_time
from slipway.watcher.ends import End

LOOKS_MAX = 1000
"""Allocations that the search for a circle looks at."""
TOLD_MAX = 4
"""Ends that one event names."""


class SeenDependency(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one dependency: `id` and, when it has ended, `result` (None: it is gone, and nobody knows).

    `problem` says why a name means nothing that could be waited for.
    """

    id: str = ""
    has_ended: bool = False
    result: Result | None = None
    problem: str = ""


Seen = Mapping[str, SeenDependency]
"""{as `spec.after` names it: what was seen}"""
NOTHING_SEEN: Seen = {}


class Awaited(NamedTuple):
    """One that an allocation waits for."""

    allocation: str
    """as `spec.after` names it"""
    wanted: str
    """its id, once that is known"""
    is_name: bool
    """it was not looked up yet: the text may be a name"""

    @property
    def names(self) -> tuple[str, ...]:
        """The object names that it may have."""
        return names_of(self.wanted)

    def is_meant(self, found: Allocation) -> bool:
        """Whether it is this object."""
        return is_the_one(found, self.wanted, by_name=self.is_name)


Find = Callable[[str, str], Allocation | None]
"""(namespace, name) -> the newest version that is known"""

# --- who they are


def awaited_by(allocation: Allocation) -> list[Awaited]:
    """All that it waits for."""
    records = records_of(allocation)
    return [
        Awaited(name, known.id if known else name, known is None)
        for name, known in ((each.allocation, records.get(each.allocation)) for each in open_dependencies(allocation))
    ]


def awaited_names(allocation: Allocation) -> Iterable[str]:
    """`namespace/name` of all that it may wait for; nothing when it waits for nobody. An index of the store."""
    if allocation.status.phase is not Phase.PENDING or not allocation.spec.after:
        return ()
    space = allocation.metadata.namespace
    return {f"{space}/{name}" for each in awaited_by(allocation) for name in each.names}


def seen(allocation: Allocation, awaited: Awaited, find: Find) -> SeenDependency | None:
    """What the stores show of one that it waits for; None: nothing, which is no evidence of anything."""
    for name in awaited.names:
        found = find(allocation.metadata.namespace, name)
        if found is None or not awaited.is_meant(found):
            continue
        if awaited.is_name and id_of(found) != awaited.wanted and _waits_for(found, allocation, find):
            text = f"{awaited.wanted} waits for this allocation, so neither could start; leave one of the two out"
            return SeenDependency(problem=text)
        has_ended = found.status.phase is Phase.TERMINATED
        return SeenDependency(id=id_of(found), has_ended=has_ended, result=found.status.result if has_ended else None)
    return None


def absent(allocation: Allocation, awaited: Awaited) -> SeenDependency:
    """What follows when the API server has no such allocation: an id was one that is gone, a name means nothing."""
    if split_allocation_id(awaited.wanted) is not None:
        return SeenDependency(id=awaited.wanted, has_ended=True)
    space = allocation.metadata.namespace
    return SeenDependency(problem=f"workspace {space} has no allocation {awaited.wanted}; create that one first")


def is_awaited(ended: Allocation, waiting: Iterable[Allocation]) -> bool:
    """Whether one of those that may wait for it has not recorded its end."""
    return any(awaited.is_meant(ended) for each in waiting for awaited in awaited_by(each))


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


# --- what follows


def problem_of(allocation: Allocation, seen: Seen) -> End | None:
    """The end of an allocation that names what cannot be waited for."""
    for index, each in enumerate(allocation.spec.after):
        found = seen.get(each.allocation)
        if found is not None and found.problem:
            text = f"spec.after[{index}].allocation: {found.problem}"
            return End(result=Result.INVALID, reason=Reason.INVALID_SPEC, message=text)
    return None


def noted(allocation: Allocation, seen: Seen, *, now: float) -> Allocation:
    """The allocation with what was seen of its dependencies; the very same object when that is nothing new.

    Ends are told as an event; that a name has got its id is not.
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
        if found.has_ended and (len(ended) < TOLD_MAX or not is_met(each.when, found.result)):
            ended[found.id] = found.result.value if found.result else ""
    status = msgspec.structs.replace(allocation.status, dependencies=list(records.values()))
    if status == allocation.status:
        return allocation
    if not ended:
        return with_status(allocation, status)
    return record(allocation, Event.UPDATED, now=now, data={"after": ended}, dependencies=status.dependencies)
