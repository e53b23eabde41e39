"""Seeded bugs of the ledger: what is committed, applied, settled and dropped."""

from typing import Any

import msgspec
import pytest

from slipway.crd import dependencies
from slipway.errors import StaleError
from slipway.model.ledger import Decision, Ledger
from slipway.scheduler import ledger
from slipway.scheduler.apply import Applier
from slipway.scheduler.cycle import Cycle
from slipway.scheduler.ledger_store import LedgerStore
from tests.simulation.bugs.bug import Bug


def _open_decisions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    promote = ledger.promote

    def seeded(stored: Ledger, epoch_max: int) -> Ledger:
        return msgspec.structs.replace(promote(stored, epoch_max), decisions=())

    patch.setattr(ledger, "promote", seeded)


def _admission_without_ledger(patch: pytest.MonkeyPatch) -> None:
    save = LedgerStore.save

    async def seeded(self: Any, made: Ledger) -> bool:
        return True if made.decisions else await save(self, made)

    patch.setattr(LedgerStore, "save", seeded)


def _ledger_without_swap(patch: pytest.MonkeyPatch) -> None:
    """After a conflict the ledger is written again over the stored one."""

    class OverwritingKube:
        def __init__(self, kube: Any) -> None:
            self._kube = kube

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kube, name)

        async def replace_status(self, resource: Any, body: Any) -> Any:
            try:
                return await self._kube.replace_status(resource, body)
            except StaleError:
                found = await self._kube.get(resource, body.metadata.name)
                return await self._kube.replace_status(resource, msgspec.structs.replace(found, status=body.status))

    make = LedgerStore.__init__

    def seeded(self: Any, kube: Any, *given: Any, **more: Any) -> None:
        without_fence: Any = OverwritingKube(kube)
        make(self, without_fence, *given, **more)

    patch.setattr(LedgerStore, "__init__", seeded)


def _voided_on_an_error(patch: pytest.MonkeyPatch) -> None:
    """A decision that could not be applied at once is dropped, without a mark on its allocation."""
    apply_one = Cycle._apply_one  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any, decision: Decision, nodes: Any, seen: Any) -> Any:
        applied = await apply_one(self, decision, nodes, seen)
        if applied is None:
            self._ledger = ledger.settle(self._ledger, (decision.id,))
        return applied

    patch.setattr(Cycle, "_apply_one", seeded)


def _decided_is_done(patch: pytest.MonkeyPatch) -> None:
    def seeded(_decision: Decision, _fact: Any) -> bool:
        return True

    patch.setattr(ledger, "is_applied", seeded)


def _any_object_of_the_name(patch: pytest.MonkeyPatch) -> None:
    """A decision is applied to any object of that name."""
    admit = Applier._admit  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any, found: Any, decision: Decision, nodes: Any) -> Any:
        same = msgspec.structs.replace(decision, uid=found.metadata.uid, attempt=found.status.attempt)
        return await admit(self, found, same, nodes)

    patch.setattr(Applier, "_admit", seeded)


def _admitted_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """The nodes are looked up in a shifted table."""
    decide = Applier.decision

    async def shifted(self: Any, decision: Decision, nodes: Any, seen: Any = None) -> Any:
        return await decide(self, decision, [*nodes[1:], *nodes[:1]], seen)

    patch.setattr(Applier, "decision", shifted)


def _refused_plan_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    """A plan that was refused is not planned again until the cluster changes."""
    tick = Cycle.tick

    async def seeded(self: Any) -> Any:
        generation, due = self._cluster.generation, self._is_due(self._clock.now())
        try:
            return await tick(self)
        finally:
            if due and self._planned_at == () and self._ledger.tick and not self._ledger.decisions:
                self._planned_at = generation

    patch.setattr(Cycle, "tick", seeded)


def _dependencies_are_not_known(patch: pytest.MonkeyPatch) -> None:
    """As in a scheduler older than `after`: an allocation is planned at once although it must wait for another."""

    def nothing(_allocation: object) -> tuple[tuple[str, str], ...]:
        return ()

    patch.setattr(dependencies, "waits_for", nothing)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="dependencies are not known",
        breaks="nothing is admitted while what it waits for has not ended",
        install=_dependencies_are_not_known,
        hunts=(("after-another", ""),),
        told_by=("I9",),
    ),
    Bug(
        name="open decisions are forgotten",
        breaks="a new leader finishes what its predecessor decided",
        install=_open_decisions_are_forgotten,
        hunts=(("launch-1", "crash@scheduler:*update resourcepools:after"),),
        told_by=("I9",),
    ),
    Bug(
        name="admission without ledger",
        breaks="a decision stands in the ledger before its admission is written",
        install=_admission_without_ledger,
        hunts=(("launch-1", ""),),
        told_by=("I9",),
    ),
    Bug(
        name="ledger without compare-and-swap",
        breaks="the ledger is written under the version it was read at",
        install=_ledger_without_swap,
        hunts=(
            ("lease-deleted-at-work", ""),
            ("lease-deleted-at-work", "freeze@scheduler:*update resourcepools:before"),
        ),
        told_by=("I8", "I9", "I10"),
    ),
    Bug(
        name="voided on an error",
        breaks="a decision is voided only for what cannot be undone, or after its epoch is stamped",
        install=_voided_on_an_error,
        hunts=(
            ("compete", "server-error@scheduler:*update allocations:before"),
            ("compete", "server-error@scheduler:*patch:before"),
        ),
        told_by=("I9",),
    ),
    Bug(
        name="decided is done",
        breaks="a decision stays in the ledger until the snapshot shows its effect",
        install=_decided_is_done,
        hunts=(
            ("compete", "server-error@scheduler:*update allocations:before"),
            ("compete", "server-error@scheduler:*patch:before"),
        ),
        told_by=("I9",),
    ),
    Bug(
        name="any object of the name",
        breaks="a decision is for one object and one attempt",
        install=_any_object_of_the_name,
        hunts=(("replaced", ""),),
        told_by=("I9",),
    ),
    Bug(
        name="admitted elsewhere",
        breaks="an admission equals its decision",
        install=_admitted_elsewhere,
        hunts=(("launch-4", ""), ("node-lost", "")),
        told_by=("I9",),
    ),
    Bug(
        name="a refused plan is not repeated",
        breaks="whatever keeps a plan from being committed, it is made again",
        install=_refused_plan_is_not_repeated,
        hunts=tuple((name, "conflict@scheduler:*update resourcepools:before") for name in ("restart", "given-up")),
        told_by=("I18",),
    ),
)
