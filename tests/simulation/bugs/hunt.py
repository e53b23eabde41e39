"""The hunt for one bug: plays the points of its hunts in order, until one of the bug's invariants reports it.

Owns the order of the points and the stored finds. Must not know the bugs.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.simulation.bugs.bug import Bug
from tests.simulation.run import Outcome, run
from tests.support.faults import Effect, Fault, Kind

SEED = 1
LEAST = "I18"
KEPT = Path(__file__).with_name("found.json")
"""Where each bug was found last: this point is tried first, and shown in the documentation."""
_SLIPS = (AttributeError, NameError, TypeError)
_NO_CONFLICT = ("create", "bind")
"""Verbs that the API server does not answer with a conflict."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """How a bug was found; `points` is the number of points played until then, including this one."""

    bug: str
    invariant: str
    scenario: str
    fault: str = ""
    replicas: int = 1
    points: int = 1

    @property
    def replay(self) -> str:
        """The arguments that run it again."""
        fault = f" --crash {self.fault}" if self.fault else ""
        replicas = f" --replicas {self.replicas}" if self.replicas > 1 else ""
        return f"--scenario {self.scenario} --seed {SEED}{replicas}{fault}"


@contextmanager
def seeded(bug: Bug) -> Generator[None]:
    """Install the bug.

    Raises:
        AssertionError: the code of the bug failed by itself, for example because it uses a name that is gone. What it
            breaks then says nothing about the checker.
    """
    slips: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        bug.install(cast("pytest.MonkeyPatch", _WatchedPatch(patch, slips)))
        yield
    assert not slips, f"the seeded bug {bug.name!r} failed by itself: {slips[0]}"


class _WatchedPatch:
    """A MonkeyPatch that records when a function that it installs has a programming error."""

    def __init__(self, patch: pytest.MonkeyPatch, slips: list[str]) -> None:
        self._patch, self._slips = patch, slips

    def setattr(self, target: Any, name: str, value: Any) -> None:
        """Install `value`; a function is watched."""
        self._patch.setattr(target, name, self._watched(value) if inspect.isfunction(value) else value)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wait(*args: Any, **named: Any) -> Any:
            try:
                return await function(*args, **named)
            except _SLIPS as error:
                self._note(error, function)
                raise

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except _SLIPS as error:
                self._note(error, function)
                raise

        return wait if inspect.iscoroutinefunction(function) else call

    def _note(self, error: Exception, function: Callable[..., Any]) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        if where.filename == function.__code__.co_filename:
            self._slips.append(f"{error!r} in line {where.lineno} of {Path(where.filename).name}")


def hunt(bug: Bug) -> tuple[Found | None, list[str]]:
    """Return the first find, and the other violations until then. The bug is installed during the hunt."""
    others: list[str] = []
    points = 0
    with seeded(bug):
        for scenario, pattern in bug.hunts:
            for fault, outcome in _played(scenario, pattern, bug.replicas):
                points += 1
                told = told_by(bug, outcome)
                if told:
                    found = Found(
                        bug=bug.name,
                        invariant=told,
                        scenario=scenario,
                        fault=str(fault) if fault else "",
                        replicas=bug.replicas,
                        points=points,
                    )
                    return found, others
                others += outcome.violations
    return None, others


def is_found_again(bug: Bug, found: Found) -> bool:
    """Whether the same invariant still reports the bug at the point of an earlier find."""
    faults = (Fault.parse(found.fault),) if found.fault else ()
    with seeded(bug):
        return told_by(bug, run(found.scenario, SEED, faults, replicas=found.replicas)) == found.invariant


def told_by(bug: Bug, outcome: Outcome) -> str:
    """The invariant that reports this bug, if any; I18 (the end state is not as desired) only if no other does,
    because it says least."""
    names = [name for name in said(outcome) if name in bug.told_by]
    return min(names, key=lambda name: name == LEAST, default="")


def said(outcome: Outcome) -> list[str]:
    """The broken invariants, in the order in which they are reported."""
    return [violation.split(" ", 1)[0] for violation in outcome.violations]


def kept() -> dict[str, Found]:
    """{bug: its last find}"""
    if not KEPT.exists():
        return {}
    return {item.bug: item for item in msgspec.json.decode(KEPT.read_bytes(), type=list[Found])}


def _played(scenario: str, pattern: str, replicas: int) -> Iterator[tuple[Fault | None, Outcome]]:
    if not pattern:
        yield None, run(scenario, SEED, replicas=replicas)
        return
    kind, _, point = pattern.rpartition("@")
    role, number, moment = point.rsplit(":", 2)
    if not number.startswith("*"):
        yield Fault.parse(pattern), run(scenario, SEED, (Fault.parse(pattern),), replicas=replicas)
        return
    for effect in run(scenario, SEED, replicas=replicas).effects:
        is_meant = effect.role.rstrip("0123456789") == role and number[1:] in effect.label
        if is_meant and _may(effect, Kind(kind), moment):
            fault = Fault.parse(f"{kind}@{effect.role}:{effect.number}:{moment}")
            yield fault, run(scenario, SEED, (fault,), replicas=replicas)


def _may(effect: Effect, kind: Kind, moment: str) -> bool:
    if kind is Kind.CONFLICT and (effect.verb in _NO_CONFLICT or not effect.is_kube):
        return False
    return effect.has_before or moment == "after"
