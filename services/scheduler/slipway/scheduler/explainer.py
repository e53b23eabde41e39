"""Writes why pending allocations wait, as a condition on each: bounded per tick, and only when it is news.

Owns the pace. The words are the planner's; the write is `apply.py`'s. A text that can not be written now (too many
in this tick, or too soon after the last one) is written later: `Explained.again_at` says when to look again.
"""

from collections.abc import Callable, Mapping

import msgspec

from slipway.crd.v1alpha1 import Allocation
from slipway.errors import StaleError, TransientError
from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Gate
from slipway.runtime import log, telemetry
from slipway.runtime.clock import Clock
from slipway.scheduler.apply import Applier, Outcome
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.plan.outcome import Explanation

WRITES_MAX = 20
"""Explanations written in one tick; the rest follow in the next ones."""
INTERVAL_S = 2.0
"""One allocation's text is rewritten at most this often while its gate stays the same."""

Observe = Callable[[str, Allocation | None], None]

_log = log.get_logger(__name__)


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """How many texts were written, and when (epoch seconds) there is more to write, if there is."""

    written: int
    again_at: float | None


class Explainer:
    """The explanations of one leadership."""

    def __init__(self, pool: str, applier: Applier, clock: Clock) -> None:
        self._pool = pool
        self._applier = applier
        self._clock = clock
        self._last: dict[str, float] = {}

    async def write(self, explanations: Mapping[str, Explanation], cluster: Cluster, observe: Observe) -> Explained:
        """Write what is news; `observe` is told each object as it stands after its write."""
        moment, written = self._clock.monotonic(), 0
        again_s: list[float] = []
        for key, explanation in explanations.items():
            fact = cluster.allocations.get(key)
            if fact is None or not _is_news(fact, explanation):
                continue
            wait_s = self._wait_s(fact, explanation, moment)
            if wait_s > 0 or written >= WRITES_MAX:
                again_s.append(wait_s)
                continue
            written += await self._write_one(key, fact, explanation, observe)
        self._last = {uid: at for uid, at in self._last.items() if moment - at < INTERVAL_S}
        self._measure(explanations)
        return Explained(written=written, again_at=self._clock.now() + min(again_s) if again_s else None)

    async def _write_one(self, key: str, fact: AllocationFact, explanation: Explanation, observe: Observe) -> bool:
        self._last[fact.uid] = self._clock.monotonic()
        try:
            applied = await self._applier.explain(
                fact.namespace, fact.name, fact.uid, fact.attempt, explanation.gate, explanation.message
            )
        except (StaleError, TransientError) as exc:
            _log.warning("explanation not written yet", allocation=key, error=str(exc))
            return False
        observe(key, applied.allocation)
        return applied.outcome is Outcome.APPLIED

    def _wait_s(self, fact: AllocationFact, explanation: Explanation, moment: float) -> float:
        if fact.gate != explanation.gate.value or fact.uid not in self._last:
            return 0.0
        return max(0.0, self._last[fact.uid] + INTERVAL_S - moment)

    def _measure(self, explanations: Mapping[str, Explanation]) -> None:
        counts: dict[Gate, int] = {}
        for explanation in explanations.values():
            counts[explanation.gate] = counts.get(explanation.gate, 0) + 1
        for gate in Gate:
            telemetry.PENDING.labels(pool=self._pool, reason=gate.value).set(counts.get(gate, 0))


def _is_news(fact: AllocationFact, explanation: Explanation) -> bool:
    is_waiting = fact.phase is Phase.PENDING and not fact.stopping
    is_said = (fact.gate, fact.gate_message) == (explanation.gate.value, explanation.message)
    return is_waiting and not is_said and explanation.gate is not Gate.NOT_YET_CONSIDERED
