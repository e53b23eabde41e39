"""Checks of the lives of allocations: phases follow the lifecycle table, an end is final, a cancel wins.

I7, I8, I13. Pure: evidence in, violations out.
"""

from collections.abc import Iterator
from itertools import pairwise

from slipway.crd.members import growth_of
from slipway.crd.rules import RULES
from slipway.crd.transitions import ring_of
from slipway.crd.v1alpha1 import Allocation, RankStatus
from slipway.errors import InvariantError
from slipway.model.lifecycle import Phase, advance, is_behind, is_legal_step
from slipway.model.reasons import Result
from slipway.ops.audit.evidence import ALLOCATIONS, AllocationVersion, AuditEvidence, InvariantViolation
from slipway.ops.audit.gangs import DEFAULT_GRACE_S, ORPHAN_RUN_S, graces_of


def terminal_is_absorbing(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I7: Terminated is final. seq, attempt and epoch never fall. Result, release and exits are written once."""
    for before, after in _steps(evidence):
        old, new = before.allocation.status, after.allocation.status
        if old.phase is Phase.TERMINATED and (new.phase, new.attempt, new.result) != (
            old.phase,
            old.attempt,
            old.result,
        ):
            yield _broken("I7", after, f"changes after its end: {old.result} -> {new.phase} {new.result}")
        if new.seq < old.seq or new.attempt < old.attempt:
            yield _broken("I7", after, f"goes back: seq {old.seq} -> {new.seq}, attempt {old.attempt} -> {new.attempt}")
        if old.admission is not None and (new.admission is None or new.admission.epoch < old.admission.epoch):
            yield _broken("I7", after, "the epoch of its admission decreases")
        if old.result is not None and new.result != old.result:
            yield _broken("I7", after, f"its result is rewritten: {old.result} -> {new.result}")
        if new.attempt != old.attempt:
            continue
        if old.release is not None and new.release != old.release:
            yield _broken("I7", after, "its release is rewritten")
        for rank, (was, now) in enumerate(zip(old.ranks or [], new.ranks or [], strict=False)):
            # A pod that was added, ran and failed between two looks of the watcher is named only in the earlier
            # version.
            later = _came_later(before.allocation) | _came_later(after.allocation)
            is_back = now.pod_uid in later and now.pod_uid != was.pod_uid
            if was.exit_code is not None and not is_back and _end_of(was) != _end_of(now):
                yield _broken("I7", after, f"the exit of rank {rank} is rewritten: {was} -> {now}")


def rules_are_installed(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I7: the API server has every rule that makes an end final, even for a wrong or old writer."""
    held = set(evidence.crd_rules or ())
    for rule in RULES:
        if rule.kind == Allocation.__name__ and rule.rule not in held:
            yield InvariantViolation(
                invariant="I7", subject=ALLOCATIONS, message=f"the API server does not enforce: {rule.rule}"
            )


def transitions_are_legal(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I8: phases follow the lifecycle table, no rank goes back, and the ring grows by one entry per seq, never
    rewritten.

    In a sampled history, one step may hide several; then the ring shows them, as far back as it reaches.
    """
    for history in evidence.allocations.values():
        begin = history[0].allocation.status
        if not evidence.starts_late and begin.phase is not Phase.PENDING and not evidence.is_sampled:
            yield _broken("I8", history[0], f"begins {begin.phase}")
    for before, after in _steps(evidence):
        old, new = before.allocation.status, after.allocation.status
        same_attempt = old.attempt == new.attempt
        is_hidden = evidence.is_sampled and not same_attempt and old.phase is not Phase.TERMINATED
        if not is_hidden and not is_legal_step(old.phase, new.phase, same_attempt=same_attempt):
            yield _broken("I8", after, f"{old.phase} (attempt {old.attempt}) -> {new.phase} (attempt {new.attempt})")
        yield from _ranks_move_on(before, after)
        yield from _ring_is_legal(before, after, is_sampled=evidence.is_sampled)


def _came_later(allocation: Allocation) -> frozenset[str]:
    """Return the pods of ranks that were added or restarted while the others ran."""
    growth = growth_of(allocation)
    added = growth.pod_uids if growth is not None else []
    return frozenset((*added, *(each.pod_uid for each in allocation.status.restarted_ranks if each.pod_uid)))


def _end_of(rank: RankStatus) -> tuple[int | None, str]:
    return rank.exit_code, rank.pod_uid


def _ranks_move_on(before: AllocationVersion, after: AllocationVersion) -> Iterator[InvariantViolation]:
    ranks = zip(before.allocation.status.ranks or [], after.allocation.status.ranks or [], strict=False)
    for rank, (was, now) in enumerate(ranks):
        if was.pod_uid == now.pod_uid and is_behind(now.phase, was.phase):
            yield _broken("I8", after, f"rank {rank} goes back: {was.phase} -> {now.phase}")


def _ring_is_legal(
    before: AllocationVersion, after: AllocationVersion, *, is_sampled: bool
) -> Iterator[InvariantViolation]:
    new = after.allocation.status
    ring = ring_of(after.allocation)
    known = {entry.seq: entry for entry in ring_of(before.allocation)}
    phase, last = before.allocation.status.phase, max(known)
    for entry in ring:
        if entry.seq in known:
            if known[entry.seq] != entry:
                yield _broken("I8", after, f"ring entry {entry.seq} is rewritten")
            continue
        if entry.seq <= last:
            continue
        if entry.seq != last + 1:
            if not is_sampled:
                yield _broken("I8", after, f"ring entry {entry.seq} follows {last}")
            phase = entry.phase
        else:
            try:
                phase = advance(phase, entry.type)
            except InvariantError as error:
                yield _broken("I8", after, f"ring entry {entry.seq}: {error}")
        last = entry.seq
        if entry.phase is not phase:
            yield _broken("I8", after, f"ring entry {entry.seq} {entry.type} says {entry.phase}, the table {phase}")
    if new.seq and ring[-1].seq != new.seq:
        yield _broken("I8", after, "the ring does not end with status.seq")
    if phase is not new.phase:
        yield _broken("I8", after, f"the phase is {new.phase}, but the ring says {phase}")


def cancels_win(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I13: after a committed cancel no release is committed; without an earlier release no rank starts; it ends
    Canceled.
    """
    for uid, history in evidence.allocations.items():
        stopped = next((item for item in history if _is_cancelled(item.allocation)), None)
        if stopped is None:
            continue
        at = history.index(stopped)
        # Between two looks, the cancel may have been committed after a release that is first seen in the same version.
        earlier = stopped.allocation.status if evidence.is_sampled or not at else history[at - 1].allocation.status
        released = earlier.release
        for item in history[at:]:
            now = item.allocation.status.release
            if now is not None and now != released:
                yield _broken(
                    "I13", item, f"releases attempt {now.attempt} after the cancel of {stopped.version.number}"
                )
                break
        if released is None:
            for ran in evidence.runs:
                if ran.allocation_uid == uid and ran.started_at >= stopped.version.at:
                    yield _broken("I13", stopped, f"rank {ran.rank} starts at {ran.started_at:.3f} after the cancel")
        end = history[-1].allocation.status
        was_over = earlier.phase is Phase.TERMINATED
        if end.phase is Phase.TERMINATED and not was_over and end.result is not Result.CANCELED:
            yield _broken("I13", history[-1], f"ends {end.result} ({end.reason}) although it was cancelled before")


def cancels_are_carried_out(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I13: pods that a release before the cancel still starts are torn down within their grace."""
    graces = graces_of(evidence)
    for uid, history in evidence.allocations.items():
        stopped = next((item for item in history if _is_cancelled(item.allocation)), None)
        if stopped is None:
            continue
        since = max(stopped.version.at, evidence.last_fault_at or 0.0)
        for ran in evidence.runs:
            ended_at = ran.ended_at if ran.ended_at is not None else evidence.end_at
            if ran.allocation_uid == uid and ended_at > since + graces.get(ran.pod_uid, DEFAULT_GRACE_S) + ORPHAN_RUN_S:
                yield _broken("I13", stopped, f"rank {ran.rank} runs {ended_at - since:.0f} s after the cancel")


def _is_cancelled(allocation: Allocation) -> bool:
    return allocation.spec.desired == "Stopped" or allocation.metadata.deletion_timestamp is not None


def _steps(evidence: AuditEvidence) -> Iterator[tuple[AllocationVersion, AllocationVersion]]:
    for history in evidence.allocations.values():
        yield from pairwise(history)


def _broken(invariant: str, item: AllocationVersion, message: str) -> InvariantViolation:
    return InvariantViolation(
        invariant=invariant, subject=item.allocation.metadata.name, message=message, version=item.version.number
    )
