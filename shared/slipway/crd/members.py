"""The ranks that an attempt has now: those of its admission, without those that left, and those that it grew by.

Owns the join of `admission`, `release`, `growth` and `restartedRanks`. Pure. Everything that asks which ranks
there are, where they stand, or which pods may run asks here.

Invariants: a rank is in the answer at most once; a rank that makes room stays in it until a growth, or the end of its
attempt, leaves it out; the position of a rank (what it is told as its number among the ranks) never changes.
"""

from collections.abc import Sequence

import msgspec

from slipway.crd.policies import RestartUnit
from slipway.crd.transitions import is_admitted, is_released, leaving_ranks
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, Growth, Placement, RankRestart
from slipway.model import growth
from slipway.model.lifecycle import Phase


class GangMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rank with its place and, once it is released, the uid of its pod (else empty)."""

    placement: Placement
    pod_uid: str = ""
    grown: bool = False
    """it was added while the others ran"""
    restart: RankRestart | None = None
    """its last restart, when it was started again in its place"""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.placement.rank


def growth_of(allocation: Allocation) -> Growth | None:
    """The growth of the current attempt, if it has one."""
    growth = allocation.status.growth
    return growth if growth is not None and growth.attempt == allocation.status.attempt else None


def members(allocation: Allocation) -> list[GangMember]:
    """The ranks of the admission in the order of the release, then those that were added, in their order."""
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
    """The ranks that were added and of which no pod is committed yet."""
    return [member for member in members(allocation) if member.grown and not member.pod_uid]


def restarting(allocation: Allocation) -> list[GangMember]:
    """The ranks that are to start again in their place, and of which no pod is committed yet."""
    return [member for member in members(allocation) if member.restart is not None and not member.pod_uid]


def pod_uids(allocation: Allocation) -> frozenset[str]:
    """Every pod that was ever released in this attempt, as far as the object knows; none before the release."""
    release, grown = allocation.status.release, growth_of(allocation)
    if release is None or not is_released(allocation):
        return frozenset()
    restarted = (each.pod_uid for each in allocation.status.restarted_ranks if each.pod_uid)
    return frozenset((*release.pod_uids, *(grown.pod_uids if grown is not None else ()), *restarted))


def left_ranks(allocation: Allocation) -> tuple[int, ...]:
    """The ranks that made room, have ended and are told of: their places are free, and a growth may fill them."""
    shrink = allocation.status.shrink
    told = leaving_ranks(allocation)
    return told if shrink is not None and told and shrink.told >= len(told) else ()


def positions(allocation: Allocation) -> dict[int, int]:
    """{rank: its position}: those of the admission by rank, then the others of the spec, whether they stand or not."""
    admission = allocation.status.admission
    first = sorted(place.rank for place in admission.placements) if admission is not None else []
    others = sorted(set(range(rank_count(allocation))) - set(first))
    return {rank: position for position, rank in enumerate([*first, *others])}


def rank_count(allocation: Allocation) -> int:
    """All ranks of the spec; an allocation without roles has one."""
    return sum(role.count for role in allocation.spec.ranks) or 1


def restarts_ranks(allocation: Allocation) -> bool:
    """Whether a rank that fails may start again in its place: until the attempt is over, that place stays its own."""
    is_over = allocation.status.phase in (Phase.TERMINATING, Phase.TERMINATED)
    return allocation.spec.restart is RestartUnit.RANK and is_admitted(allocation) and not is_over


def is_elastic(spec: AllocationSpec) -> bool:
    """Whether it may run with fewer ranks than it asks for: it names a minimum below their number."""
    count = sum(role.count for role in spec.ranks)
    if spec.min_available is not None:
        return spec.min_available < count
    return any(role.min_available is not None and role.min_available < role.count for role in spec.ranks)


def below_count(allocation: Allocation, gpus: Sequence[int] = ()) -> str:
    """What is said of a running gang that goes on with fewer ranks than it asks for; empty for any other.

    `gpus` are the whole GPUs of each rank, where they are known.
    """
    status, grown = allocation.status, growth_of(allocation)
    have = {member.rank for member in members(allocation)} - set(left_ranks(allocation))
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
    """The ranks, with the pods that stand for those that were started again."""
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
