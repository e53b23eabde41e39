"""Moves in a queue: the position that puts a job or an allocation directly before or behind another one. Pure.

A job moves with all its members that have no position of their own. The answer is one number, and a priority when the
anchor has a different one. No other allocation gets a new number.
"""

from collections.abc import Iterable, Sequence

import msgspec

from slipway.api.http.errors import ConflictError
from slipway.api.queues.queue_view import Jobs, in_order, job_of, place_of, priority_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, Job
from slipway.model.position import NoRoomError, between, place_key

Subject = Allocation | Job


class QueuePosition(msgspec.Struct, frozen=True, kw_only=True):
    """The new position of a job or an allocation; `priority` is None when it does not have to change."""

    position: str
    priority: int | None = None


def name_of(subject: Subject) -> str:
    """Return `job x`, or the id of an allocation."""
    return f"job {subject.metadata.name}" if isinstance(subject, Job) else id_of(subject)


def members_of(subject: Subject, allocations: Iterable[Allocation]) -> list[Allocation]:
    """Return the allocations of a job, or the allocation itself."""
    meta = subject.metadata
    if isinstance(subject, Job):
        return [each for each in allocations if (each.metadata.namespace, each.spec.job) == (meta.namespace, meta.name)]
    return [each for each in allocations if each.metadata.uid == meta.uid]


def place_beside(
    subject: Subject, anchor: Subject, pending: Iterable[Allocation], jobs: Jobs, *, ahead: bool
) -> QueuePosition | None:
    """Return the position that puts `subject` directly before (or behind) `anchor`; None when it is there already.

    Raises:
        ConflictError: one of them does not wait, they do not wait in the same queue, or no number is left between the
            neighbours.
    """
    if subject.metadata.uid == anchor.metadata.uid:
        raise ConflictError(f"{name_of(subject)} cannot be moved next to itself")
    waiting = in_order(pending, jobs)
    own, others = _movable(subject, waiting), members_of(anchor, waiting)
    if not others:
        raise ConflictError(f"no allocation of {name_of(anchor)} waits, so there is no place next to it")
    line = _line_of(own[0])
    beside = [each for each in others if _line_of(each) == line]
    if not beside or any(_line_of(each) != line for each in own):
        raise ConflictError(
            f"{name_of(subject)} and {name_of(anchor)} do not wait in the same queue ({_queues(own)}; "
            f"{_queues(others)}); move it to that queue first"
        )
    edge = beside[0] if ahead else beside[-1]
    priority = priority_of(edge, job_of(edge, jobs))
    is_same_lane = all(priority_of(each, job_of(each, jobs)) == priority for each in own)
    lane = [each for each in waiting if _line_of(each) == line and priority_of(each, job_of(each, jobs)) == priority]
    low, high = _neighbours(lane, own, edge, jobs, ahead=ahead)
    if is_same_lane and all(_is_between(place_of(each, jobs), low, high) for each in own):
        return None
    try:
        position = between(low, high)
    except NoRoomError as error:
        raise ConflictError(f"{error}; set queuePosition of one of them by hand") from error
    return QueuePosition(position=position, priority=None if is_same_lane else priority)


def _movable(subject: Subject, waiting: Iterable[Allocation]) -> list[Allocation]:
    """Return the waiting allocations of the subject that have no position of their own; all of a single allocation."""
    found = members_of(subject, waiting)
    if not found:
        raise ConflictError(f"no allocation of {name_of(subject)} waits; only waiting allocations have a place")
    if isinstance(subject, Job):
        found = [each for each in found if not each.spec.queue_position]
        if not found:
            raise ConflictError(
                f"every waiting allocation of {name_of(subject)} has a place of its own; move those allocations"
            )
    return found


def _line_of(allocation: Allocation) -> tuple[str, str]:
    return allocation.spec.pool, allocation.spec.queue


def _queues(allocations: Iterable[Allocation]) -> str:
    return ", ".join(sorted({f"{queue} of pool {pool}" for pool, queue in map(_line_of, allocations)}))


def _neighbours(
    lane: Sequence[Allocation], own: Sequence[Allocation], edge: Allocation, jobs: Jobs, *, ahead: bool
) -> tuple[str | None, str | None]:
    """Return the positions directly below and above the new one; None at an end of the lane.

    Allocations with the same position as the anchor are treated as the anchor.
    """
    moving = {each.metadata.uid for each in own}
    at = place_of(edge, jobs)
    places = [place_of(each, jobs) for each in lane if each.metadata.uid not in moving]
    if ahead:
        lower = [place for place in places if place_key(place) < place_key(at)]
        return (lower[-1] if lower else None), at
    higher = [place for place in places if place_key(place) > place_key(at)]
    return at, (higher[0] if higher else None)


def _is_between(place: str, low: str | None, high: str | None) -> bool:
    key = place_key(place)
    return (low is None or place_key(low) < key) and (high is None or key < place_key(high))
