"""Sets the gauges of a pool: how many allocations wait, in which queue, why and since when; how many are admitted.

Owns the gauges that only a leader can set, and their removal at the end of its leadership: the values of two processes
that report the same pool would be added. A wait is reported as the time at which it began, so that it stays true while
nothing changes.

One more metric says how good the planner's forecasts are: it compares the first forecast of each queue head with a
reservation to its start.
"""

from collections.abc import Iterable
from typing import Final

from slipway.model.facts import AllocationFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Gate
from slipway.runtime import telemetry
from slipway.runtime.clock import Clock
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.plan.explanation.explanations import Explanations
from slipway.scheduler.plan.state.plan_types import ReservedPlaces

EACH_MAX = 5_000
"""Up to so many allocations, each is read after every plan; with more, only every `EACH_S` seconds."""
EACH_S = 5.0
_GAUGES = (telemetry.PENDING, telemetry.PENDING_SINCE, telemetry.QUEUE_PENDING, telemetry.QUEUE_SINCE)
_NO_PLACE = (Phase.PENDING, Phase.TERMINATED)


class PoolGauges:
    """The gauges of one leadership of one pool."""

    def __init__(self, pool: str, cluster: Cluster, clock: Clock) -> None:
        self._pool = pool
        self._cluster = cluster
        self._clock = clock
        self._looked_at = float("-inf")

    def measure(self, explained: Explanations) -> None:
        """Set the gauges after a plan."""
        gates = {gate.value: 0.0 for gate in Gate}
        queues = {each.name: 0.0 for each in self._cluster.queues.values() if each.pool == self._pool}
        for waiting_group in explained.groups():
            gate, queue, count = (
                waiting_group.why.gate.value,
                waiting_group.members[0][1].queue,
                len(waiting_group.members),
            )
            gates[gate] = gates.get(gate, 0.0) + count
            queues[queue] = queues.get(queue, 0.0) + count
        telemetry.PENDING.set_all((self._pool,), gates)
        telemetry.QUEUE_PENDING.set_all((self._pool,), queues)
        moment = self._clock.monotonic()
        if len(self._cluster.allocations) <= EACH_MAX or moment - self._looked_at >= EACH_S:
            self._looked_at = moment
            self._set_gauges(explained)

    def forget(self) -> None:
        """Remove the gauges at the end of the leadership."""
        for gauge in _GAUGES:
            gauge.set_all((self._pool,), {})
        telemetry.PLACED.drop((self._pool,))

    def _set_gauges(self, explained: Explanations) -> None:
        gates: dict[str, float] = {}
        queues: dict[str, float] = {}
        for waiting_group in explained.groups():
            since = _since(fact for _, fact in waiting_group.members)
            gate, queue = waiting_group.why.gate.value, waiting_group.members[0][1].queue
            gates[gate] = min(since, gates.get(gate, since))
            queues[queue] = min(since, queues.get(queue, since))
        telemetry.PENDING_SINCE.set_all((self._pool,), gates, merge=min)
        telemetry.QUEUE_SINCE.set_all((self._pool,), queues, merge=min)
        facts = self._cluster.allocations.values()
        placed = sum([fact.pool == self._pool and fact.phase not in _NO_PLACE for fact in facts])
        telemetry.PLACED.labels(pool=self._pool).set(placed)


def _since(waiting: Iterable[AllocationFact]) -> float:
    return min([fact.waiting_since or fact.created for fact in waiting])


FORECASTS_MAX: Final = 4_096


class ForecastAccuracy:
    """The first start forecasts in one leadership of `pool`."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._forecasts: dict[str, float] = {}

    def note(self, kept: Iterable[ReservedPlaces]) -> None:
        """Remember the first forecast of each allocation."""
        for each in kept:
            if each.start is not None and each.uid not in self._forecasts:
                self._forecasts[each.uid] = each.start
                if len(self._forecasts) > FORECASTS_MAX:
                    del self._forecasts[next(iter(self._forecasts))]

    def started(self, decided: Iterable[Decision], now: float) -> None:
        """Compare the allocations that start now with their first forecasts."""
        for decision in decided:
            told = self._forecasts.pop(decision.uid, None) if decision.kind is DecisionKind.ADMIT else None
            if told is not None:
                side = "late" if now > told else "early"
                telemetry.FORESEEN_ERROR.labels(pool=self._pool, side=side).observe(abs(now - told))
