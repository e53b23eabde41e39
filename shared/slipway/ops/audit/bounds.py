"""Checks of size: nothing of ours grows without a bound.

I24. Pure: evidence in, violations out.

Of an allocation's object, what the user wrote is bounded by itself. A rank takes two uids, a node's name and its state
in three lists: measured, 176 bytes; so what we add is held to 16 KiB and 256 bytes for each rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.ops.audit.evidence import (
    ALLOCATIONS,
    CONFIG_MAPS,
    PODS,
    RSS_BYTES,
    STREAM_BYTES,
    AllocationVersion,
    AuditEvidence,
    InvariantViolation,
    Measured,
    Version,
)

SPEC_BYTES_MAX = 256 * 1024
STATUS_BYTES_MAX = 16 * 1024
RANK_BYTES_MAX = 256
_API = "api"
WRITES_MAX = 10
RANK_WRITES_MAX = 4
GROWTH_WRITES_MAX = 4
RESTART_WRITES_MAX = 2
NEWS_S = 0.9
"""News of ranks between transitions is written a second apart at the least (`rank_detail_interval_s` of the watcher);
the clocks of who writes and of who records it differ by a little."""
HALVES_S = 1.0
"""What the server takes at most between the two commits of one write."""
STREAM_BYTES_MAX = 8 * 1024
GROWTH_SAMPLES_MIN = 10
GROWTH_MIN_S = 600.0
GROWTH_MAX = 0.1
"""The part by which the memory of a process may grow from the second quarter of its samples to the last one."""


def objects_are_bounded(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I24: an allocation's object stays within its bound, whatever happens to it. A spec that is too large is its
    author's; we refuse to work on it."""
    for history in evidence.allocations.values():
        biggest = max(history, key=lambda item: _weight(item.allocation))
        said = len(msgspec.json.encode(biggest.version.obj.get("spec")))
        added = len(msgspec.json.encode(biggest.version.obj)) - said
        most = STATUS_BYTES_MAX + RANK_BYTES_MAX * ranks_of(biggest.allocation)
        is_refused = history[-1].allocation.status.result is Result.INVALID
        if (said > SPEC_BYTES_MAX and not is_refused) or added > most:
            message = f"its spec takes {said} bytes of {SPEC_BYTES_MAX}, the rest {added} of {most}"
            yield InvariantViolation(
                invariant="I24",
                subject=biggest.allocation.metadata.name,
                message=message,
                version=biggest.version.number,
            )


def writes_are_bounded(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I24: an attempt of N ranks costs us 10 + 4N writes to Kubernetes at most, the Service of a gang apart. Orders
    (of users, or of the scheduler to stop or to make room) grant two more: their own, and the answer to them. Whatever
    interrupts us may cost an attempt's work again: who was held does what others have done, and undoes it. A pod that
    was given back because a quota refused another of its gang, and was made again, costs its writes again. A growth
    costs four more: the decision, the pods, and what it comes to. A rank that starts again in its place costs two more
    than its pod: the count, and the next pod. Between
    transitions the watcher may record what single ranks do, once a second at most; these writes are not counted."""
    writes: dict[str, int] = {}
    pods: dict[str, dict[str, set[str]]] = {}
    last: dict[tuple[str, str, str], Version] = {}
    status_at: dict[str, float] = {}
    for version in evidence.of(ALLOCATIONS, PODS, CONFIG_MAPS):
        owner, key = version.uid, (version.resource, version.namespace, version.name)
        is_second_half = _is_second_half(version, last.get(key))
        last[key] = version
        if version.resource != ALLOCATIONS:
            labels: Mapping[str, str] = version.obj["metadata"].get("labels") or {}
            owner = labels.get(LABEL_ALLOCATION_UID, "")
        if version.resource == PODS:
            pods.setdefault(owner, {}).setdefault(version.name, set()).add(version.uid)
        if version.resource == ALLOCATIONS:
            is_news = _is_news_of_ranks(version) and version.at - status_at.get(owner, 0.0) >= NEWS_S
            if _status(version.obj) != _status(version.before):
                status_at[owner] = version.at
            if is_news:
                continue
        if owner and (version.writer or version.resource == ALLOCATIONS) and not is_second_half:
            writes[owner] = writes.get(owner, 0) + (-1 if _is_order(version) else 1)
    for uid, count in writes.items():
        history = evidence.allocations.get(uid)
        if not history:
            continue
        end = history[-1].allocation
        tries = max(1, end.status.attempt) + evidence.interruptions
        again = sum(len(uids) - 1 for uids in pods.get(uid, {}).values())
        most = (WRITES_MAX + RANK_WRITES_MAX * ranks_of(end)) * tries + RANK_WRITES_MAX * again
        most += GROWTH_WRITES_MAX * _growths(history) + RESTART_WRITES_MAX * _rank_restarts(history)
        if count > most:
            message = f"took {count} of our writes in {end.status.attempt} attempts, {most} are granted"
            yield InvariantViolation(invariant="I24", subject=end.metadata.name, message=message)


def streams_are_bounded(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I24: what Redis keeps of a live allocation takes 8 KiB at most."""
    live = {
        str(id_of(history[-1].allocation))
        for history in evidence.allocations.values()
        if history[-1].allocation.status.phase is not Phase.TERMINATED
    }
    for sample in evidence.measures:
        if sample.kind == STREAM_BYTES and sample.value > STREAM_BYTES_MAX and sample.subject in live:
            message = f"takes {sample.value:.0f} bytes in Redis, {STREAM_BYTES_MAX} are granted"
            yield InvariantViolation(invariant="I24", subject=sample.subject, message=message)


def memory_is_flat(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I24: the memory of a process does not grow while it runs."""
    samples = sorted((each for each in evidence.measures if each.kind == RSS_BYTES), key=lambda each: each.subject)
    for subject, group in groupby(samples, key=lambda each: each.subject):
        ordered = sorted(group, key=lambda each: each.at)
        if len(ordered) < GROWTH_SAMPLES_MIN or ordered[-1].at - ordered[0].at < GROWTH_MIN_S:
            continue
        quarter = len(ordered) // 4
        early, late = _mean(ordered[quarter : 2 * quarter]), _mean(ordered[-quarter:])
        if late > early * (1 + GROWTH_MAX):
            message = f"grew from {early:.0f} to {late:.0f} bytes in {ordered[-1].at - ordered[0].at:.0f} s"
            yield InvariantViolation(invariant="I24", subject=subject, message=message)


def _is_second_half(version: Version, last: Version | None) -> bool:
    """Whether it ends what the commit before it began: a pod that is deleted is marked, and goes, by one write. Between
    the two a server commits what others write at the same time."""
    if not version.is_deletion or version.before is None or last is None:
        return False
    meta: Mapping[str, Any] = version.before["metadata"]
    is_marked = bool(meta.get("deletionTimestamp")) and not meta.get("finalizers")
    return is_marked and str(meta.get("resourceVersion")) == str(last.number) and version.at - last.at <= HALVES_S


def _growths(history: Sequence[AllocationVersion]) -> int:
    """How often ranks were added to it, or taken out of what was added."""
    highest: dict[int, int] = {}
    for item in history:
        growth = item.allocation.status.growth
        if growth is not None:
            highest[growth.attempt] = max(highest.get(growth.attempt, 0), growth.n)
    return sum(highest.values())


def _rank_restarts(history: Sequence[AllocationVersion]) -> int:
    """How often ranks of it were started again in their place."""
    most: dict[int, int] = {}
    for item in history:
        status = item.allocation.status
        most[status.attempt] = max(most.get(status.attempt, 0), sum(each.n for each in status.restarted_ranks))
    return sum(most.values())


def _is_order(version: Version) -> bool:
    """Whether it is no work but asks for some: a user's change, or the scheduler's order to stop or to make room."""
    if not version.writer or version.writer.startswith(_API):
        return True
    return version.resource == ALLOCATIONS and _orders(version.obj) != _orders(version.before or {})


def _is_news_of_ranks(version: Version) -> bool:
    """Whether it changes what is on record of the ranks, and nothing else of the status."""
    before, after = _status(version.before), _status(version.obj)
    others = {name: value for name, value in after.items() if name != "ranks"}
    return before != after and {name: value for name, value in before.items() if name != "ranks"} == others


def _status(obj: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (obj or {}).get("status") or {}


def _orders(allocation: Mapping[str, Any]) -> tuple[Any, ...]:
    status: Mapping[str, Any] = allocation.get("status") or {}
    return status.get("stop"), status.get("shrink"), status.get("deadlines")


def ranks_of(allocation: Allocation) -> int:
    """How many ranks it has in all."""
    return sum(role.count for role in allocation.spec.ranks) or 1


def _weight(allocation: Allocation) -> int:
    """About how big it is: encoding every version of everything would take too long."""
    status = allocation.status
    uids = len(status.release.pod_uids) if status.release else 0
    texts = len(status.message) + sum(80 + 30 * len(entry.data) for entry in status.transitions)
    return texts + 40 * uids + 80 * len(status.ranks or ()) + 100 * len(status.conditions)


def _mean(samples: Sequence[Measured]) -> float:
    return sum(sample.value for sample in samples) / len(samples)
