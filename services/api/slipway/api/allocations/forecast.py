"""The forecast for a waiting allocation: the smallest change that lets it start, and the bounds of its start.

The planner makes the sentences and the times, in a separate process (`simulation.py`). When no forecast is available
now, the caller gets the explanation without it.
"""

from functools import partial

from slipway.api.allocations.seen_allocations import SeenAllocations
from slipway.api.cluster.simulation import Forecast, Simulator, past_work
from slipway.api.queues.queue_view import is_waiting
from slipway.api.schemas import ForeseenView, LikelyStart, StartView
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, PermanentError, ThrottledError
from slipway.model.times import format_time


async def forecast_of(
    simulator: Simulator, seen: SeenAllocations, allocation: Allocation, *, user: str
) -> ForeseenView | None:
    """Return the planner's forecast of `allocation` for `user`; None when it does not wait, or there is none."""
    if not is_waiting(allocation):
        return None
    meta = allocation.metadata
    try:
        key = f"{meta.namespace}/{meta.name}"
        said = await simulator.forecast(allocation.spec.pool, key, partial(past_work, seen), user=user)
    except (ThrottledError, InvalidError, PermanentError):
        return None
    return _view(said)


def _view(said: Forecast) -> ForeseenView:
    bounds, likely = said.estimated_start, said.estimated_start.likely
    return ForeseenView(
        code=said.code,
        message=said.message,
        reasons=said.reasons,
        ahead_slots=said.ahead_slots,
        change=said.change,
        helps=said.helps,
        estimated_start=StartView(
            earliest=_time(bounds.earliest),
            latest=_time(bounds.latest),
            likely=likely and LikelyStart(earliest=_time(likely.earliest), latest=_time(likely.latest)),
            likely_unknown=bounds.likely_unknown,
        ),
    )


def _time(at: float | None) -> str:
    return "" if at is None else format_time(at, "seconds")
