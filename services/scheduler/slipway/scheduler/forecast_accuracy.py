"""Measures the planner's forecasts: compares the first forecast of each queue head with a reservation to its start.

Owns the metric; decides nothing.
"""

from collections.abc import Iterable
from typing import Final

from slipway.model.ledger import Decision, DecisionKind
from slipway.runtime import telemetry
from slipway.scheduler.plan.state.plan_types import ReservedPlaces

TOLD_MAX: Final = 4_096


class Calibration:
    """The first start forecasts in one leadership of `pool`."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._told: dict[str, float] = {}

    def note(self, kept: Iterable[ReservedPlaces]) -> None:
        """Remember the first forecast of each allocation."""
        for each in kept:
            if each.start is not None and each.uid not in self._told:
                self._told[each.uid] = each.start
                if len(self._told) > TOLD_MAX:
                    del self._told[next(iter(self._told))]

    def started(self, decided: Iterable[Decision], now: float) -> None:
        """Compare the allocations that start now with their first forecasts."""
        for decision in decided:
            told = self._told.pop(decision.uid, None) if decision.kind is DecisionKind.ADMIT else None
            if told is not None:
                side = "late" if now > told else "early"
                telemetry.FORESEEN_ERROR.labels(pool=self._pool, side=side).observe(abs(now - told))
