"""Runs one story in one world and audits it: for tests that check the events of a run, and not only the result of the
audit.

Owns the order: start, story, rest, evidence, audit. A scenario (`tests/simulation`) adds an ending and faults at any
point; a play adds nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from slipway.kube.objects import Pod
from slipway.ops.audit.check import audit
from slipway.ops.audit.evidence import AuditEvidence, Version
from tests.support.faults import Fault
from tests.support.world import Setup, World, run_world
from tests.support.world_evidence import EvidenceRecorder

REST_S = 60.0
"""Time after the story until everything must be at rest, in seconds."""
Story = Callable[[World], Awaitable[None]]


class Played:
    """The result of a play: `violations` of the audit, and its evidence."""

    def __init__(self, evidence: AuditEvidence, violations: list[str]) -> None:
        self.evidence = evidence
        self.violations = violations

    @property
    def pods(self) -> list[Pod]:
        """Every pod that was ever created, as it was created."""
        return [change.pod for change in self.evidence.pods if change.before is None]

    def deletions(self, resource: str, *, since: float = 0.0) -> list[Version]:
        """Return the versions in which one of our services deleted an object of that kind, or requested its
        deletion."""
        return [
            version
            for version in self.evidence.of(resource)
            if version.writer and version.at >= since and _is_doomed(version)
        ]


def play(
    story: Story,
    setup: Setup | None = None,
    *,
    seed: int = 1,
    faults: Iterable[Fault] = (),
    is_at_rest: bool = True,
    without: str = "\0",
) -> Played:
    """Run the story to its end and REST_S longer. Objects whose names begin with `without` are left out of the
    evidence."""

    async def played(world: World) -> Played:
        recorder = EvidenceRecorder(world)
        await story(world)
        await asyncio.sleep(REST_S)
        evidence = recorder.evidence(is_at_rest=is_at_rest)
        evidence.versions = [each for each in evidence.versions if not each.name.startswith(without)]
        return Played(evidence, [*map(str, audit(evidence)), *world.broken])

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return run_world(played, setup or Setup(), seed=seed, faults=tuple(faults))
    finally:
        logging.disable(before)


def _is_doomed(version: Version) -> bool:
    was_asked = version.before is not None and version.before["metadata"].get("deletionTimestamp")
    return version.is_deletion or bool(version.obj["metadata"].get("deletionTimestamp") and not was_asked)
