"""The checker is checked: it finds each seeded bug, and says nothing about the services as they are."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.bugs import BUGS, Bug
from tests.simulation.run import Outcome, run
from tests.support.faults import Fault


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_seeded_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose, the system is found broken, by an invariant that is about just that."""
    bug.install(monkeypatch)
    said: list[str] = []
    for outcome in _hunt(bug):
        said += outcome.violations
        if any(violation.split(" ", 1)[0] in bug.told_by for violation in outcome.violations):
            return
    pytest.fail(f"not found; the checker said {said[:5]}")


def _hunt(bug: Bug) -> Iterator[Outcome]:
    for scenario, pattern in bug.hunts:
        if not pattern:
            yield run(scenario, 1, replicas=bug.replicas)
            continue
        kind, _, point = pattern.rpartition("@")
        role, _, moment = point.split(":")
        base = run(scenario, 1, replicas=bug.replicas)
        for effect in base.effects:
            if effect.role.rstrip("0123456789") == role and (effect.has_before or moment == "after"):
                fault = Fault.parse(f"{kind}@{effect.role}:{effect.number}:{moment}")
                yield run(scenario, 1, (fault,), replicas=bug.replicas)
