"""Which of those that wait get a smallest change offered: the first few, where one is found and true.

An offer must hold whatever waits beside it: the `rivals` that would take what it gives are part of the check.
"""

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.position import WorkKey
from slipway.model.reasons import Gate
from slipway.scheduler.plan import explain
from slipway.scheduler.plan.change import BY_ITSELF, CHANGEABLE, Standing, smallest_change
from slipway.scheduler.plan.gates import closed_gate
from slipway.scheduler.plan.lines import STRICT, GangKey, Line, Wants
from slipway.scheduler.plan.ordering import work_key
from slipway.scheduler.plan.outcome import Explanation
from slipway.scheduler.plan.snapshot import Snapshot


class Offers:
    """The offers of one tick, on the state after its plan."""

    def __init__(self, snapshot: Snapshot, standing: Standing, wants: Wants, now: float) -> None:
        self._snapshot = snapshot
        self._standing = standing
        self._wants = wants
        self._now = now

    def add(self, lines: dict[str, Line], explanations: dict[str, Explanation], most: int) -> None:
        """Complete at most `most` of `explanations` with what would help; the others offer nothing."""
        waiting = [fact for line in lines.values() for _, fact in line.work if fact.key in explanations]
        held = [fact for fact in self._snapshot.pending if _gate(explanations, fact) in BY_ITSELF]
        held.sort(key=lambda fact: (fact.key, fact.uid))
        open_to_change = [*(fact for fact in waiting if _gate(explanations, fact) in CHANGEABLE), *held]
        for fact in open_to_change[:most]:
            why = explanations[fact.key]
            line = lines.get(fact.queue)
            first = (why.change or ()) if why.gate in BY_ITSELF else ()
            change = None
            if not self._is_behind(fact, line, explanations) and (not first or self._is_open_after(fact)):
                rivals = self._rivals(fact, waiting, explanations)
                change = smallest_change(self._standing, fact, first, rivals)
            explanations[fact.key] = explain.with_change(why, change)
        for fact in open_to_change[most:]:
            explanations[fact.key] = explain.with_change(explanations[fact.key], None)

    def _is_open_after(self, fact: AllocationFact) -> bool:
        """Whether it is only held or backing off, and not shut out besides."""
        free = msgspec.structs.replace(fact, hold=False, not_before=0.0)
        return closed_gate(free, self._snapshot, self._standing.tree, self._now) is None

    def _is_behind(self, fact: AllocationFact, line: Line | None, explanations: dict[str, Explanation]) -> bool:
        """Whether strict order puts others before it: a change would be theirs, or leave them blocking it."""
        if line is None or line.queue.ordering != STRICT:
            return False
        return any(key < self._key(fact) and other.key in explanations for key, other in line.work)

    def _rivals(
        self, fact: AllocationFact, waiting: list[AllocationFact], explanations: dict[str, Explanation]
    ) -> list[AllocationFact]:
        """Those that would get what is freed first: before it in its queue, or in other queues; one of a kind."""
        mine = self._key(fact)
        found: dict[tuple[GangKey, str, str, bool], AllocationFact] = {}
        for other in waiting:
            is_before = other.queue != fact.queue or self._key(other) < mine
            if other is not fact and is_before and _gate(explanations, other) in CHANGEABLE:
                found.setdefault((self._wants.of(other).key, other.queue, other.job, other.preemptible), other)
        return list(found.values())

    def _key(self, fact: AllocationFact) -> WorkKey:
        return work_key(fact, self._snapshot.job_of(fact))


def _gate(explanations: dict[str, Explanation], fact: AllocationFact) -> Gate | None:
    why = explanations.get(fact.key)
    return why.gate if why else None
