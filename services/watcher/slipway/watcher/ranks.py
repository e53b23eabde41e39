"""The recorded state of one rank, updated from its pod.

Owns in which direction a record may change. Pure; does not know how a pod is read, or when a record is written.

Two watchers may see one pod in views of different ages, and both may have to act. So a record is a join: it adopts
newer information from a view, and never drops what another watcher has seen, in whatever order the views arrive.

Invariants: the state of one pod never goes back, its node stays, and the reason why it will be lost only becomes more
certain. Joining a view twice changes nothing. A recorded end stays as it is.
"""

from slipway.crd.v1alpha1 import RankStatus
from slipway.model.lifecycle import RANK_ENDS, is_behind
from slipway.model.reasons import Reason

_BY_CERTAINTY = (Reason.NONE, Reason.POD_DELETED, Reason.PREEMPTED, Reason.EVICTED, Reason.NODE_LOST)
"""Why a living rank will be lost, by certainty.
A program that deletes a pod may give its reason before or after the delete, or never."""


def merged(known: RankStatus | None, seen: RankStatus) -> RankStatus:
    """Return the record after a view, given the record before it;
    both are of the same pod. An end is recorded as seen."""
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
    """Return the position of a reason in that order; a reason that is not in the list is the most certain."""
    return next((index for index, each in enumerate(_BY_CERTAINTY) if each == reason), len(_BY_CERTAINTY))
