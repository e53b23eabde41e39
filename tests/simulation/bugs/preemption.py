"""Seeded bugs of preemption: decisions, beneficiaries, reserved places and graces."""

from typing import Any

import msgspec
import pytest

from slipway.crd.members import unreleased
from slipway.crd.v1alpha1 import Allocation
from slipway.model.ledger import DecisionKind, Ledger
from slipway.pods import manifest
from slipway.podworker import intent, status, worker
from slipway.podworker.intent import DeleteRanks
from slipway.scheduler import cycle, ledger
from slipway.watcher import ends
from tests.simulation.bugs.bug import Bug


def _room_is_taken_before_it_is_free(patch: pytest.MonkeyPatch) -> None:
    sound = ledger.decisions_of

    def seeded(plan: Any) -> list[ledger.PlacedDecision]:
        found = sound(plan)
        return [
            msgspec.structs.replace(item, kind=DecisionKind.ADMIT) if item.kind is DecisionKind.NOMINATE else item
            for item in found
        ]

    patch.setattr(cycle, "decisions_of", seeded)


def _nobody_holds_the_room(patch: pytest.MonkeyPatch) -> None:
    sound = ledger.decisions_of

    def without(plan: Any) -> list[ledger.PlacedDecision]:
        return [item for item in sound(plan) if item.kind is not DecisionKind.NOMINATE]

    def none(_ledger: Ledger) -> frozenset[str]:
        return frozenset()

    patch.setattr(ledger, "obsolete_evictions", none)
    patch.setattr(cycle, "decisions_of", without)


def _victims_are_told_without_a_decision(patch: pytest.MonkeyPatch) -> None:
    sound = ledger.commit

    def seeded(*given: Any, **more: Any) -> tuple[Ledger, tuple[Any, ...]]:
        made, decided = sound(*given, **more)
        kept = tuple(item for item in made.decisions if item.kind is not DecisionKind.EVICT)
        return msgspec.structs.replace(made, decisions=kept), decided

    patch.setattr(ledger, "commit", seeded)


def _grace_is_cut_short(patch: pytest.MonkeyPatch) -> None:
    def short(_allocation: Allocation, _policy: Any) -> float:
        return 1.0

    patch.setattr(ends, "preemption_grace_s", short)


def _evictions_are_repeated(patch: pytest.MonkeyPatch) -> None:
    """An evicted allocation does not run again."""
    sound = ends.preemption

    def final(allocation: Allocation) -> Any:
        found = sound(allocation)
        return msgspec.structs.replace(found, requeue=False) if found is not None else None

    patch.setattr(ends, "preemption", final)


def _the_whole_gang_makes_room(patch: pytest.MonkeyPatch) -> None:
    """Every rank of a gang that should shrink is deleted."""
    sound = intent.decide

    def seeded(allocation: Allocation, **more: Any) -> Any:
        found = sound(allocation, **more)
        return DeleteRanks(tuple(range(4))) if isinstance(found, DeleteRanks) else found

    patch.setattr(worker, "decide", seeded)


def _added_ranks_are_bound_unnamed(patch: pytest.MonkeyPatch) -> None:
    """The pods of added ranks are bound before the growth lists them."""
    sound = status.commit_added

    async def seeded(kube: Any, allocation: Allocation, uids: Any) -> Allocation:
        for member, uid in zip(unreleased(allocation), uids, strict=True):
            name = manifest.pod_name(allocation, member.rank)
            await kube.bind(allocation.metadata.namespace, name, uid, member.placement.node)
        return await sound(kube, allocation, uids)

    patch.setattr(status, "commit_added", seeded)


def _a_growth_is_written_without_a_decision(patch: pytest.MonkeyPatch) -> None:
    sound = ledger.commit

    def seeded(*given: Any, **more: Any) -> tuple[Ledger, tuple[Any, ...]]:
        made, decided = sound(*given, **more)
        kept = tuple(item for item in made.decisions if item.kind is not DecisionKind.GROW)
        return msgspec.structs.replace(made, decisions=kept), decided

    patch.setattr(ledger, "commit", seeded)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="added ranks run unnamed",
        breaks="a pod that was added runs only when the growth lists it",
        install=_added_ranks_are_bound_unnamed,
        hunts=(("grow", ""),),
        told_by=("I5",),
    ),
    Bug(
        name="ranks are added without a decision",
        breaks="a growth stands in the ledger before its ranks have places",
        install=_a_growth_is_written_without_a_decision,
        hunts=(("grow", ""),),
        told_by=("I9",),
    ),
    Bug(
        name="room is taken before it is free",
        breaks="what takes the room of an eviction is admitted after that room is there",
        install=_room_is_taken_before_it_is_free,
        hunts=(("preempt-unheard", ""),),
        told_by=("I10",),
    ),
    Bug(
        name="nobody holds the room",
        breaks="an eviction is committed together with the place that it is for",
        install=_nobody_holds_the_room,
        hunts=(("preempt-in-queue", ""),),
        told_by=("I21",),
    ),
    Bug(
        name="victims are told without a decision",
        breaks="a preemption stands in the ledger before anybody is told",
        install=_victims_are_told_without_a_decision,
        hunts=(("reclaim", ""),),
        told_by=("I21",),
    ),
    Bug(
        name="grace is cut short",
        breaks="who is preempted has its whole grace",
        install=_grace_is_cut_short,
        hunts=(("preempt-unheard", ""),),
        told_by=("I21",),
    ),
    Bug(
        name="who was evicted does not come back",
        breaks="an eviction is followed by another attempt",
        install=_evictions_are_repeated,
        hunts=(("evict", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="the whole gang makes room",
        breaks="only the ranks that were decided make room",
        install=_the_whole_gang_makes_room,
        hunts=(("shrink", ""),),
        told_by=("I18", "I21"),
    ),
)
