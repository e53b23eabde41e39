"""Decides what the pod worker has to do for one allocation now, and with an existing object of a wanted name. Pure.

The next step (`decide`) follows from the allocation alone: when a launch begins, continues, or is torn down. It depends
on no pods, no calls and no time. The launcher and the remover find out which pods exist while they carry out the
decision; each of their steps is idempotent.

Invariants: an allocation is launched only if this attempt is admitted and is not to stop; a pod is bound only if the
release of this attempt lists it. A past attempt is always torn down; the current attempt is torn down only when it was
stopped before its release, or when the watcher has ended it. In a running gang, only evicted ranks are deleted: the
scheduler evicts ranks, and the watcher evicts added ranks that cannot start. Ranks are added to it only on nodes that
the scheduler has chosen, and not while other ranks leave. A rank starts again in its place only if the watcher has
recorded that restart.

The verdict after AlreadyExists (`judge_existing`) is a function of the found object and of the one that we would have
created. Invariants: an object of another owner is never changed; an object that is being deleted is waited for, never
reused; our own object of another content (another version of this service created it) is replaced. That is safe only
because it is not in a release, so nothing uses it.
"""

from enum import StrEnum

import msgspec

from slipway.crd import transitions
from slipway.crd.members import GangMember, growth_of, members
from slipway.crd.meta import ANNOTATION_SPEC_HASH, LABEL_ALLOCATION_UID, TEARDOWN_FINALIZER, ObjectMeta, condition_of
from slipway.crd.transitions import is_admitted, is_released, leaving_ranks, stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase, RankState

CONDITION_REFUSED = "Refused"
"""The launch of the attempt in `observedGeneration` can never succeed: the watcher ends the allocation as Invalid."""
CONDITION_STUCK = transitions.CONDITION_STUCK
"""True: the launch of the attempt in `observedGeneration` exhausted its retries, or its teardown has failed for as
long. Unknown: it is being retried."""

_BINDABLE = (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING)
_RESTARTING = (Phase.STARTING, Phase.RUNNING)
_OVER = (Phase.TERMINATING, Phase.TERMINATED)
_GOING = (RankState.RELEASING, RankState.SUCCEEDED, RankState.FAILED)


class LaunchIntent(msgspec.Struct, frozen=True, tag=True):
    """Create the attempt's objects, release and bind its pods; then delete what attempts up to `past` left (0:
    none)."""

    past: int


class Bind(msgspec.Struct, frozen=True, tag=True):
    """The release is committed: bind its pods that are not bound yet; then delete what attempts up to `past` left."""

    past: int


class Teardown(msgspec.Struct, frozen=True, tag=True):
    """Delete everything that belongs to the attempts up to and including `through`."""

    through: int


class DeleteRanks(msgspec.Struct, frozen=True, tag=True):
    """Delete the pods of these ranks, which are evicted; the rest of the gang goes on."""

    ranks: tuple[int, ...]


class AddRanks(msgspec.Struct, frozen=True, tag=True):
    """Create, release and bind the ranks that were added to a running gang and are not known to be bound.

    `n` is the number of the last change of the growth that added them.
    """

    n: int
    ranks: tuple[int, ...]


class RestartRanks(msgspec.Struct, frozen=True, tag=True):
    """Create, release and bind new pods of these ranks, which failed and start again in their place."""

    ranks: tuple[int, ...]


class NoAction(msgspec.Struct, frozen=True, tag=True):
    """Nothing has to be done; `why` is a short constant for the log."""

    why: str


Intent = LaunchIntent | Bind | Teardown | DeleteRanks | AddRanks | RestartRanks | NoAction


def decide(allocation: Allocation, *, namespace_terminating: bool = False) -> Intent:
    """Return what to do for `allocation` in its present state."""
    status = allocation.status
    if status.admission is None:
        # Every admission is recorded in the status, so without a record no object was ever created.
        return NoAction("never admitted")
    past = status.attempt - 1
    is_stopping = stop_reason(allocation, namespace_terminating=namespace_terminating) is not None
    if status.phase in _OVER:
        return Teardown(status.attempt)
    if is_released(allocation):
        to_go = () if is_stopping else _ranks_to_delete(allocation)
        if to_go:
            return DeleteRanks(to_go)
        again = () if is_stopping or status.phase not in _RESTARTING else _ranks_to_restart(allocation)
        if again:
            return RestartRanks(again)
        growth = growth_of(allocation)
        to_join = () if is_stopping or status.phase is not Phase.RUNNING else _ranks_to_add(allocation)
        if growth is not None and to_join:
            return AddRanks(growth.n, to_join)
        if is_stopping or status.phase not in _BINDABLE:
            # The watcher records the exits and moves the phase; the teardown follows from that.
            return NoAction("stopping") if is_stopping else NoAction("running")
        return Bind(past)
    if is_stopping:
        return Teardown(status.attempt)
    if status.phase is not Phase.ASSIGNED or not is_admitted(allocation):
        return Teardown(past) if past else NoAction("not admitted")
    if allocation.spec.hold:
        # The user held the allocation after its admission and before its release: the watcher withdraws the admission.
        return Teardown(past) if past else NoAction("held")
    if TEARDOWN_FINALIZER not in allocation.metadata.finalizers:
        return NoAction("no finalizer")
    if is_refused(allocation):
        return NoAction("refused")
    return LaunchIntent(past)


def _ranks_to_delete(allocation: Allocation) -> tuple[int, ...]:
    """Return the evicted ranks of a running gang whose end or deletion is not recorded yet."""
    status = allocation.status
    if status.phase is not Phase.RUNNING:
        return ()
    ranks, standing = status.ranks or [], {member.rank: member for member in members(allocation)}

    def goes(rank: int) -> bool:
        """Whether the end or deletion of the rank is recorded; a record of another pod of that rank is ignored."""
        member = standing.get(rank)
        if member is None:
            return True
        known = ranks[rank] if rank < len(ranks) else None
        return known is not None and known.phase in _GOING and (not member.grown or known.pod_uid == member.pod_uid)

    return tuple(rank for rank in leaving_ranks(allocation) if not goes(rank))


def _ranks_to_add(allocation: Allocation) -> tuple[int, ...]:
    """Return the added ranks that have no pod yet, or a pod that is not known to be bound."""
    ranks, leaving = allocation.status.ranks or [], leaving_ranks(allocation)

    def is_due(member: GangMember) -> bool:
        known = ranks[member.rank] if member.rank < len(ranks) else None
        is_same = bool(member.pod_uid) and known is not None and known.pod_uid == member.pod_uid
        return not is_same or known is None or known.phase is RankState.PENDING

    added = [member for member in members(allocation) if member.grown and member.rank not in leaving]
    return tuple(member.rank for member in added if is_due(member))


def _ranks_to_restart(allocation: Allocation) -> tuple[int, ...]:
    """Return the ranks that are to start again and have no new pod yet, or a new pod that is not known to be bound."""
    ranks = allocation.status.ranks or []

    def is_due(member: GangMember) -> bool:
        known = ranks[member.rank] if member.rank < len(ranks) else None
        is_same = bool(member.pod_uid) and known is not None and known.pod_uid == member.pod_uid
        return not is_same or known is None or known.phase is RankState.PENDING

    return tuple(member.rank for member in members(allocation) if member.restart is not None and is_due(member))


def is_refused(allocation: Allocation) -> bool:
    """Whether this attempt's launch is known to be impossible."""
    refused = condition_of(allocation.status.conditions, CONDITION_REFUSED)
    return refused is not None and refused.status == "True" and refused.observed_generation == allocation.status.attempt


class AdoptVerdict(StrEnum):
    """What the pod worker does with an existing object."""

    ADOPT = "adopt"
    WAIT = "wait"
    REPLACE = "replace"
    NOT_OURS = "not ours"


def is_ours(found: ObjectMeta, uid: str) -> bool:
    """Whether the allocation with that uid owns the object, and the object's label has that uid too."""
    owned = any(owner.uid == uid for owner in found.owner_references)
    return owned and found.labels.get(LABEL_ALLOCATION_UID) == uid


def judge_existing(found: ObjectMeta, *, uid: str, spec_hash: str) -> AdoptVerdict:
    """Return the verdict on `found` for the allocation with `uid`, which needs an object of `spec_hash`."""
    if found.deletion_timestamp is not None:
        # This also applies to an object of another owner: the name will be free soon.
        return AdoptVerdict.WAIT
    if not is_ours(found, uid):
        return AdoptVerdict.NOT_OURS
    if found.annotations.get(ANNOTATION_SPEC_HASH) != spec_hash:
        return AdoptVerdict.REPLACE
    return AdoptVerdict.ADOPT
