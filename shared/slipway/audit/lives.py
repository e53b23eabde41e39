"""Checks of the lives of allocations: nothing acknowledged is lost, phases only move as the table says, a cancel wins.

I1, I7, I8, I13, I20. Pure: evidence in, violations out.
"""

from collections.abc import Iterator
from itertools import pairwise

from slipway.audit.evidence import AllocationVersion, Evidence, Violation
from slipway.audit.labels import attempt_of, owner_of, rank_of
from slipway.crd.meta import TRACKING_FINALIZER
from slipway.crd.transitions import ring_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvariantError
from slipway.kube.objects import Pod
from slipway.model.lifecycle import Phase, advance, is_legal_step
from slipway.model.reasons import Result


def acknowledged_launches_last(evidence: Evidence) -> Iterator[Violation]:
    """I1: what was answered 2xx exists, and goes only when it was deleted or has ended."""
    deleted = {promise.uid for promise in evidence.promises if promise.kind == "deleted"}
    for promise in evidence.promises:
        if promise.kind != "launched":
            continue
        history = evidence.allocations.get(promise.uid, [])
        if not history:
            yield Violation(invariant="I1", subject=promise.uid, message="was acknowledged and never existed")
            continue
        end = history[-1]
        if end.version.is_deletion and promise.uid not in deleted and end.allocation.status.phase != Phase.TERMINATED:
            yield _broken("I1", end, "is gone although nobody deleted it and it had not ended")


def terminal_is_absorbing(evidence: Evidence) -> Iterator[Violation]:
    """I7: Terminated stays; seq, attempt and epoch never fall; result, release and exits are written once."""
    for before, after in _steps(evidence):
        old, new = before.allocation.status, after.allocation.status
        if old.phase is Phase.TERMINATED and (new.phase, new.attempt, new.result) != (
            old.phase,
            old.attempt,
            old.result,
        ):
            yield _broken("I7", after, f"leaves its end: {old.result} -> {new.phase} {new.result}")
        if new.seq < old.seq or new.attempt < old.attempt:
            yield _broken("I7", after, f"goes back: seq {old.seq} -> {new.seq}, attempt {old.attempt} -> {new.attempt}")
        if old.admission is not None and (new.admission is None or new.admission.epoch < old.admission.epoch):
            yield _broken("I7", after, "the epoch of its admission falls")
        if new.attempt != old.attempt:
            continue
        if old.release is not None and new.release != old.release:
            yield _broken("I7", after, "its release is rewritten")
        for rank, (was, now) in enumerate(zip(old.ranks or [], new.ranks or [], strict=False)):
            if was.exit_code is not None and (was.exit_code, was.pod_uid) != (now.exit_code, now.pod_uid):
                yield _broken("I7", after, f"the exit of rank {rank} is rewritten: {was} -> {now}")


def transitions_are_legal(evidence: Evidence) -> Iterator[Violation]:
    """I8: phases move as the table says; the ring grows by one entry per seq and is never rewritten."""
    for before, after in _steps(evidence):
        old, new = before.allocation.status, after.allocation.status
        same_attempt = old.attempt == new.attempt
        if not is_legal_step(old.phase, new.phase, same_attempt=same_attempt):
            yield _broken("I8", after, f"{old.phase} (attempt {old.attempt}) -> {new.phase} (attempt {new.attempt})")
        known = {entry.seq: entry for entry in ring_of(before.allocation)}
        phase = old.phase
        for entry in ring_of(after.allocation):
            if entry.seq in known:
                if known[entry.seq] != entry:
                    yield _broken("I8", after, f"ring entry {entry.seq} is rewritten")
                continue
            if entry.seq <= max(known):
                continue
            try:
                phase = advance(phase, entry.type)
            except InvariantError as error:
                yield _broken("I8", after, f"ring entry {entry.seq}: {error}")
            if entry.phase is not phase:
                yield _broken("I8", after, f"ring entry {entry.seq} {entry.type} says {entry.phase}, the table {phase}")
        if new.seq and [entry.seq for entry in ring_of(after.allocation)][-1] != new.seq:
            yield _broken("I8", after, "the ring does not end with seq")
        if phase is not new.phase:
            yield _broken("I8", after, f"the phase {new.phase} is not that of the ring, {phase}")


def cancels_win(evidence: Evidence) -> Iterator[Violation]:
    """I13: after a committed cancel no release commits; without an earlier one nothing starts; it ends Canceled."""
    for uid, history in evidence.allocations.items():
        stopped = next((item for item in history if _is_cancelled(item.allocation)), None)
        if stopped is None:
            continue
        at = history.index(stopped)
        earlier = history[at - 1].allocation.status if at else None
        released = earlier.release if earlier is not None else None
        for item in history[at:]:
            now = item.allocation.status.release
            if now is not None and now != released:
                yield _broken(
                    "I13", item, f"releases attempt {now.attempt} after the cancel of {stopped.version.number}"
                )
                break
        if released is None:
            for ran in evidence.containers:
                if ran.allocation_uid == uid and ran.started_at >= stopped.version.at:
                    yield _broken("I13", stopped, f"rank {ran.rank} starts at {ran.started_at:.3f} after the cancel")
        end = history[-1].allocation.status
        was_over = earlier is not None and earlier.phase is Phase.TERMINATED
        if end.phase is Phase.TERMINATED and not was_over and end.result is not Result.CANCELED:
            yield _broken("I13", history[-1], f"ends {end.result} ({end.reason}) although it was cancelled before")


def exits_are_true(evidence: Evidence) -> Iterator[Violation]:
    """I20: recorded exit codes are the containers' own, and a pod is let go only when its exit is on record."""
    codes = {ran.pod_uid: ran.code for ran in evidence.containers}
    seen: dict[tuple[str, str], int] = {}
    for uid, history in evidence.allocations.items():
        for item in history:
            for rank in item.allocation.status.ranks or ():
                if rank.exit_code is None or (rank.pod_uid, uid) in seen:
                    continue
                seen[rank.pod_uid, uid] = item.version.number
                if codes and codes.get(rank.pod_uid) != rank.exit_code:
                    yield _broken("I20", item, f"{rank.pod_uid} exited {codes.get(rank.pod_uid)}, not {rank.exit_code}")
    for change in evidence.pods:
        before, after = change.before, change.pod
        if before is None or TRACKING_FINALIZER not in before.metadata.finalizers:
            continue
        is_dropped = change.version.is_deletion or TRACKING_FINALIZER not in after.metadata.finalizers
        if is_dropped and _has_exit(before) and not _is_recorded(evidence, before, change.version.number):
            message = f"pod {before.metadata.name} is let go before its exit is on record"
            yield Violation(invariant="I20", subject=owner_of(before), message=message, version=change.version.number)


def _has_exit(pod: Pod) -> bool:
    return any(status.state.terminated is not None for status in pod.status.container_statuses)


def _is_recorded(evidence: Evidence, pod: Pod, version: int) -> bool:
    history = [item for item in evidence.allocations.get(owner_of(pod), []) if item.version.number < version]
    if not history or history[-1].version.is_deletion:
        return True
    attempt, rank, uid = attempt_of(pod), rank_of(pod), pod.metadata.uid
    for item in reversed(history):
        status = item.allocation.status
        if status.attempt == attempt:
            ranks = status.ranks or []
            return rank < len(ranks) and ranks[rank].pod_uid == uid and ranks[rank].exit_code is not None
    return False


def _is_cancelled(allocation: Allocation) -> bool:
    return allocation.spec.desired == "Stopped" or allocation.metadata.deletion_timestamp is not None


def _steps(evidence: Evidence) -> Iterator[tuple[AllocationVersion, AllocationVersion]]:
    for history in evidence.allocations.values():
        yield from pairwise(history)


def _broken(invariant: str, item: AllocationVersion, message: str) -> Violation:
    return Violation(
        invariant=invariant, subject=item.allocation.metadata.name, message=message, version=item.version.number
    )


__all__ = [
    "acknowledged_launches_last",
    "cancels_win",
    "exits_are_true",
    "terminal_is_absorbing",
    "transitions_are_legal",
]
