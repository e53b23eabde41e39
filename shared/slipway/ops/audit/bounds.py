"""Checks of size: nothing that Slipway writes grows without a bound.

I24. Pure: evidence in, violations out.

The limit on our part of an allocation's object does not include the user's spec, which has its own limit. A rank uses
two uids, a node name and its state, in three lists: 176 bytes as measured. So our part is limited to 16 KiB and 256
bytes for each rank.
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
    SizeSample,
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
"""Minimum seconds between two writes of rank states (`rank_detail_interval_s` of the watcher is 1 s). The limit here is
a little lower, because the clocks of the writer and the recorder differ a little.
"""
HALVES_S = 1.0
"""Maximum seconds between the server's two commits of one write."""
STREAM_BYTES_MAX = 8 * 1024
GROWTH_SAMPLES_MIN = 10
GROWTH_MIN_S = 600.0
GROWTH_MAX = 0.1
"""The fraction by which the memory of a process may grow from the second quarter of its samples to the last one."""


def objects_are_bounded(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I24: an allocation's object stays within its limit. A spec above its limit is the user's fault; such an
    allocation must be refused.
    """
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
    """I24: an attempt with N ranks needs at most 10 + 4N of our writes to Kubernetes, not counting the Service of a
    gang. An order of a user or of the scheduler (to stop, to make room) grants two more: the order and the answer to
    it. An interruption grants the writes of an attempt again, because a stopped process may repeat the work of others
    and undo it. A pod that is made again grants the writes of its rank again, for example after a quota refused another
    pod of its gang. A growth grants four more: the decision, the pods, and the result. A rank that restarts in place
    grants two more besides its pod: the count and the next pod. Between transitions the watcher may record the states
    of single ranks, at most once a second; these writes are not counted.
    """
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
            message = f"had {count} writes by Slipway in {end.status.attempt} attempts; {most} are allowed"
            yield InvariantViolation(invariant="I24", subject=end.metadata.name, message=message)


def streams_are_bounded(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I24: the stored events of a live allocation use at most 8 KiB in Redis."""
    live = {
        str(id_of(history[-1].allocation))
        for history in evidence.allocations.values()
        if history[-1].allocation.status.phase is not Phase.TERMINATED
    }
    for sample in evidence.measures:
        if sample.kind == STREAM_BYTES and sample.value > STREAM_BYTES_MAX and sample.subject in live:
            message = f"takes {sample.value:.0f} bytes in Redis; {STREAM_BYTES_MAX} are allowed"
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
    """Whether this version completes the commit before it.

    One delete of a pod makes two commits: the pod is marked as deleted, then it is removed. The server may commit other
    writes between the two.
    """
    if not version.is_deletion or version.before is None or last is None:
        return False
    meta: Mapping[str, Any] = version.before["metadata"]
    is_marked = bool(meta.get("deletionTimestamp")) and not meta.get("finalizers")
    return is_marked and str(meta.get("resourceVersion")) == str(last.number) and version.at - last.at <= HALVES_S


def _growths(history: Sequence[AllocationVersion]) -> int:
    """Return how often ranks were added, or added ranks were removed."""
    highest: dict[int, int] = {}
    for item in history:
        growth = item.allocation.status.growth
        if growth is not None:
            highest[growth.attempt] = max(highest.get(growth.attempt, 0), growth.n)
    return sum(highest.values())


def _rank_restarts(history: Sequence[AllocationVersion]) -> int:
    """Return how often ranks were restarted in place."""
    most: dict[int, int] = {}
    for item in history:
        status = item.allocation.status
        most[status.attempt] = max(most.get(status.attempt, 0), sum(each.n for each in status.restarted_ranks))
    return sum(most.values())


def _is_order(version: Version) -> bool:
    """Whether the write is an order and no work: a user's change, or the scheduler's order to stop or to make room."""
    if not version.writer or version.writer.startswith(_API):
        return True
    return version.resource == ALLOCATIONS and _orders(version.obj) != _orders(version.before or {})


def _is_news_of_ranks(version: Version) -> bool:
    """Whether it changes only the recorded rank states of the status."""
    before, after = _status(version.before), _status(version.obj)
    others = {name: value for name, value in after.items() if name != "ranks"}
    return before != after and {name: value for name, value in before.items() if name != "ranks"} == others


def _status(obj: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (obj or {}).get("status") or {}


def _orders(allocation: Mapping[str, Any]) -> tuple[Any, ...]:
    status: Mapping[str, Any] = allocation.get("status") or {}
    return status.get("stop"), status.get("shrink"), status.get("deadlines")


def ranks_of(allocation: Allocation) -> int:
    """Return the number of ranks over all roles."""
    return sum(role.count for role in allocation.spec.ranks) or 1


def _weight(allocation: Allocation) -> int:
    """Return the approximate size of an allocation. Encoding every version of every object would take too long."""
    status = allocation.status
    uids = len(status.release.pod_uids) if status.release else 0
    texts = len(status.message) + sum(80 + 30 * len(entry.data) for entry in status.transitions)
    return texts + 40 * uids + 80 * len(status.ranks or ()) + 100 * len(status.conditions)


def _mean(samples: Sequence[SizeSample]) -> float:
    return sum(sample.value for sample in samples) / len(samples)
