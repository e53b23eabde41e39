"""The current ranks of an attempt: those of its admission, without evicted ones, and those that a growth added.

Owns the join of `admission`, `release`, `growth` and `restartedRanks`. Pure. All code that needs the current ranks,
their nodes, or the pods that may run uses this module.

Invariants: a rank is in the result at most once. A rank that is evicted to make room stays in the result until a growth
or the end of its attempt removes it. The position of a rank (its index among the ranks, as its pod knows it) never
changes.
"""

from collections.abc import Sequence

import msgspec

from slipway.crd.policies import RestartUnit
from slipway.crd.transitions import is_admitted, is_released, leaving_ranks
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, Growth, Placement, RankRestart
from slipway.model import growth
from slipway.model.lifecycle import Phase


class GangMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rank with its placement and, after its release, the uid of its pod (else empty)."""

    placement: Placement
    pod_uid: str = ""
    grown: bool = False
    """a growth added it while the other ranks ran"""
    restart: RankRestart | None = None
    """its last restart in place; None when it was never restarted"""

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return self.placement.rank


def growth_of(allocation: Allocation) -> Growth | None:
    """Return the growth of the current attempt, or None."""
    growth = allocation.status.growth
    return growth if growth is not None and growth.attempt == allocation.status.attempt else None


def members(allocation: Allocation) -> list[GangMember]:
    """Return the ranks of the admission in the order of the release, then the added ranks in the order of the
    growth."""
    admission, grown = allocation.status.admission, growth_of(allocation)
    release = allocation.status.release if is_released(allocation) else None
    uids = release.pod_uids if release is not None else []
    places = sorted(admission.placements, key=_rank) if admission is not None else []
    if not places and uids:
        places = [Placement(rank=index, node="") for index in range(len(uids))]
    found = [_member(place, index, uids) for index, place in enumerate(places)]
    if grown is None:
        return _with_restarts(allocation, found)
    left, named = frozenset(grown.left), grown.pod_uids
    kept = [member for member in found if member.rank not in left]
    kept += [_member(place, index, named, grown=True) for index, place in enumerate(grown.placements)]
    return _with_restarts(allocation, kept)


def unreleased(allocation: Allocation) -> list[GangMember]:
    """Return the added ranks whose pods are not committed yet."""
    return [member for member in members(allocation) if member.grown and not member.pod_uid]


def restarting(allocation: Allocation) -> list[GangMember]:
    """Return the ranks that restart in place and whose new pods are not committed yet."""
    return [member for member in members(allocation) if member.restart is not None and not member.pod_uid]


def pod_uids(allocation: Allocation) -> frozenset[str]:
    """Return the uids of all pods that the object knows as released in this attempt; empty before the release."""
    release, grown = allocation.status.release, growth_of(allocation)
    if release is None or not is_released(allocation):
        return frozenset()
    restarted = (each.pod_uid for each in allocation.status.restarted_ranks if each.pod_uid)
    return frozenset((*release.pod_uids, *(grown.pod_uids if grown is not None else ()), *restarted))


def departed_ranks(allocation: Allocation) -> tuple[int, ...]:
    """Return the evicted ranks when all of them have ended and this is published: a growth may use their places. Else
    empty."""
    shrink = allocation.status.shrink
    told = leaving_ranks(allocation)
    return told if shrink is not None and told and shrink.told >= len(told) else ()


def positions(allocation: Allocation) -> dict[int, int]:
    """Return {rank: its position}: first the ranks of the admission by number, then all other ranks of the spec."""
    admission = allocation.status.admission
    first = sorted(place.rank for place in admission.placements) if admission is not None else []
    others = sorted(set(range(rank_count(allocation))) - set(first))
    return {rank: position for position, rank in enumerate([*first, *others])}


def rank_count(allocation: Allocation) -> int:
    """Return the number of ranks of the spec; an allocation without roles has one."""
    return sum(role.count for role in allocation.spec.ranks) or 1


def restarts_ranks(allocation: Allocation) -> bool:
    """Whether a failed rank may restart in place: its place stays reserved for it until the attempt is over."""
    is_over = allocation.status.phase in (Phase.TERMINATING, Phase.TERMINATED)
    return allocation.spec.restart is RestartUnit.RANK and is_admitted(allocation) and not is_over


def is_elastic(spec: AllocationSpec) -> bool:
    """Whether it may run with fewer ranks than it requests: it sets a minimum below their number."""
    count = sum(role.count for role in spec.ranks)
    if spec.min_available is not None:
        return spec.min_available < count
    return any(role.min_available is not None and role.min_available < role.count for role in spec.ranks)


def below_count(allocation: Allocation, gpus: Sequence[int] = ()) -> str:
    """Return the message about a running gang with fewer ranks than requested; empty for any other allocation.

    `gpus` are the whole GPUs of each rank; empty when they are not known.
    """
    status, grown = allocation.status, growth_of(allocation)
    have = {member.rank for member in members(allocation)} - set(departed_ranks(allocation))
    missing = [rank for rank in range(rank_count(allocation)) if rank not in have]
    if status.phase is not Phase.RUNNING or not have or not missing:
        return ""
    waits = grown.not_before if grown is not None else ""
    if status.admission is None or not status.admission.elastic:
        return f"{len(have)} of {rank_count(allocation)} ranks; the next attempt may have more"
    text = growth.below_count(
        have=len(have), count=rank_count(allocation), gpus=sum(gpus[rank] for rank in missing if gpus)
    )
    return f"{text}, not before {waits} ({grown.reason})" if waits and grown is not None else text


def _member(place: Placement, index: int, uids: list[str], *, grown: bool = False) -> GangMember:
    return GangMember(placement=place, pod_uid=uids[index] if index < len(uids) else "", grown=grown)


def _with_restarts(allocation: Allocation, found: list[GangMember]) -> list[GangMember]:
    """Return the ranks, with the current pods of restarted ranks."""
    if not allocation.status.restarted_ranks or not is_released(allocation):
        return found
    last = {each.rank: each for each in allocation.status.restarted_ranks}
    return [
        msgspec.structs.replace(member, pod_uid=last[member.rank].pod_uid, restart=last[member.rank])
        if member.rank in last
        else member
        for member in found
    ]


def _rank(placement: Placement) -> int:
    return placement.rank
