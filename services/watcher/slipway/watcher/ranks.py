"""What is on record of one rank, moved on by what is seen of its pod.

Owns in which direction a record moves. Pure; must not know how a pod is read, or when a record is written.

Two watchers may look at one pod through views of different ages, and both may have to act. So a record is a join: it
takes in what is newer of a view and never gives up what another one saw, whatever order the views come in.

Invariants: of one pod the state never goes back, the node stays, and why it is to be lost only becomes more certain;
joining a view twice changes nothing; an end that is recorded stays as it is.
"""

from slipway.crd.v1alpha1 import RankStatus
from slipway.model.lifecycle import RANK_ENDS, is_behind
from slipway.model.reasons import Reason

_BY_CERTAINTY = (Reason.NONE, Reason.POD_DELETED, Reason.PREEMPTED, Reason.EVICTED, Reason.NODE_LOST)
"""Why a rank that lives is to be lost: who deletes a pod says it before, beside or after that, or not at all."""


def joined(known: RankStatus | None, seen: RankStatus) -> RankStatus:
    """The record after a view, given the record before it; both are of the same pod. An end is taken as it is seen."""
    if known is None:
        return seen
    if known.phase in RANK_ENDS:
        return known
    if seen.phase in RANK_ENDS:
        return seen
    return RankStatus(
        pod_uid=seen.pod_uid,
        node=known.node or seen.node,
        phase=known.phase if is_behind(seen.phase, known.phase) else seen.phase,
        reason=max(known.reason, seen.reason, key=_certainty),
    )


def _certainty(reason: str) -> int:
    """A reason that is none of ours to compare stands."""
    return next((index for index, each in enumerate(_BY_CERTAINTY) if each == reason), len(_BY_CERTAINTY))
