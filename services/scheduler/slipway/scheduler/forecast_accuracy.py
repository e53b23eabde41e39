"""Measures the planner's forecasts: compares the first forecast of each queue head with a reservation to its start.

Owns the metric; decides nothing.
"""

from collections.abc import Iterable
from typing import Final

from slipway.model.ledger import Decision, DecisionKind
from slipway.runtime import telemetry
from slipway.scheduler.plan.state.plan_types import ReservedPlaces

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
