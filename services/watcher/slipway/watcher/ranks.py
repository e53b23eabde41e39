"""The recorded state of one rank, updated from its pod.

Owns in which direction a record may change. Pure; does not know how a pod is read, or when a record is written.

Two watchers may look at one pod through views of different ages, and both may have to act. A record is therefore a
join: it takes newer information from a view and never drops what another watcher has seen, in whatever order the views
arrive.

Invariants: the state of one pod never goes back, its node stays, and the reason why it will be lost only becomes more
certain. Joining a view twice changes nothing. A recorded end stays as it is.
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
