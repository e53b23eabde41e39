"""Foreseen starts are compared with the real ones."""

from slipway.model.ledger import Decision, DecisionKind
from slipway.runtime import telemetry
from slipway.scheduler import gauges
from slipway.scheduler.gauges import ForecastAccuracy
from slipway.scheduler.plan.state.plan_types import ReservedPlaces


def kept(uid: str, start: float | None) -> ReservedPlaces:
    return ReservedPlaces(allocation=f"default/{uid}", uid=uid, start=start, placements={})


def admits(uid: str, kind: DecisionKind = DecisionKind.ADMIT) -> list[Decision]:
    return [Decision(id="1-1-0", epoch=1, allocation=f"default/{uid}", uid=uid, attempt=1, kind=kind)]


def seen(pool: str, side: str) -> tuple[float, float]:
    """(how many, the sum of their seconds)"""
    labels = {"pool": pool, "side": side}
    count, total = (
        telemetry.REGISTRY.get_sample_value(f"slipway_foreseen_start_error_seconds_{name}", labels)
        for name in ("count", "sum")
    )
    return count or 0.0, total or 0.0


def test_the_first_forecast_is_measured() -> None:
    """The first forecast counts, and a later one changes nothing. Late and early starts are told apart; each start
    counts once."""
    figures = ForecastAccuracy("first-word")
    figures.note([kept("a", 100.0), kept("b", 200.0), kept("c", None)])
    figures.note([kept("a", 130.0)])
    figures.started(admits("a"), 110.0)
    figures.started(admits("a"), 120.0)
    figures.started(admits("b"), 150.0)
    figures.started(admits("c"), 150.0)
    assert (seen("first-word", "late"), seen("first-word", "early")) == ((1.0, 10.0), (1.0, 50.0))


def test_only_a_started_allocation_is_measured() -> None:
    """A nomination is no start; the number of forecasts that are remembered has a limit."""
    figures = ForecastAccuracy("limits")
    figures.note([kept("a", 100.0)])
    figures.started(admits("a", DecisionKind.NOMINATE), 100.0)
    figures.note([kept(f"u{number}", 1.0) for number in range(gauges.FORECASTS_MAX)])
    figures.started(admits("a"), 100.0)
    assert seen("limits", "late") == seen("limits", "early") == (0.0, 0.0)
