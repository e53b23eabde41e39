"""Tests of the checker: it finds each seeded bug, and reports nothing about the unchanged services."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from slipway.ops.audit.check import INVARIANTS
from slipway.watcher.reconcile import Reconciler
from tests.simulation.bugs import BUGS, Bug, table
from tests.simulation.bugs.hunt import SEED, hunt, is_found_again, kept
from tests.simulation.run import run
from tests.support.faults import Fault

_KEPT = kept()
_POINTS = sorted({(item.scenario, item.fault, item.replicas) for item in _KEPT.values()})


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _name_of(bug: Bug) -> str:
    return bug.name.replace(" ", "-")


@pytest.mark.parametrize("bug", BUGS, ids=_name_of)
def test_a_seeded_bug_is_found(bug: Bug) -> None:
    """With a seeded bug the checker reports a violation, of an invariant that is about this bug.

    The stored point is tried first. When effects have other numbers by now, the hunt begins anew, and `python -m
    tests.simulation.bugs --write` stores what it finds.
    """
    if not is_found_again(bug, _KEPT[bug.name]):
        found, others = hunt(bug)
        assert found is not None, others


@pytest.mark.parametrize(("scenario", "fault", "replicas"), _POINTS)
def test_the_checker_reports_nothing_in_a_correct_run(scenario: str, fault: str, replicas: int) -> None:
    """At the points at which the bugs are found, the checker reports nothing about the unchanged services."""
    faults = (Fault.parse(fault),) if fault else ()
    assert not run(scenario, SEED, faults, replicas=replicas).violations


def test_each_bug_has_a_name_of_its_own_and_was_found() -> None:
    """Each bug was found by one of its invariants, and no find of a removed bug is stored."""
    told_by = {bug.name: bug.told_by for bug in BUGS}
    assert len(told_by) == len(BUGS)
    assert list(_KEPT) == [bug.name for bug in BUGS]
    assert [name for name, found in _KEPT.items() if found.invariant not in told_by[name]] == []


def test_a_bug_is_detected_by_broken_invariants() -> None:
    """The invariants of a bug are all in the register: a run that failed for some other reason is not enough."""
    known = {invariant.id for invariant in INVARIANTS}
    assert [bug.name for bug in BUGS if not known.issuperset(bug.told_by)] == []


def test_a_seeded_bug_that_fails_by_itself_is_not_found() -> None:
    """A bug whose code uses a name that is gone breaks something else than it says, so its hunt fails."""

    async def outdated(self: Any, uid: str) -> None:
        await self._gone(uid)

    def install(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Reconciler, "reconcile", outdated)

    bug = Bug(name="outdated", breaks="nothing", install=install, hunts=(("launch-1", ""),), told_by=("I18",))
    with pytest.raises(AssertionError, match=r"failed by itself.*_gone"):
        hunt(bug)


def test_the_table_in_the_docs_is_that_of_the_finds() -> None:
    """`python -m tests.simulation.bugs.table` writes it."""
    page = table.PAGE.read_text("utf-8")
    assert table.placed(page) == page
