"""The forecast for one waiting allocation: the smallest change that lets it start, the start that can be promised, and
the likely one.

Owns neither: the words and the times are the planner's, which runs in a process of its own (`simulation.py`). A caller
who cannot be answered now gets the explanation without the forecast.
"""

from functools import partial

from slipway.api.past_work import past_work
from slipway.api.queue_view import is_waiting
from slipway.api.schemas import ForeseenView, LikelyStart, StartView
from slipway.api.seen_allocations import SeenAllocations
from slipway.api.simulation import Foreseen, Simulator
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, PermanentError, ThrottledError
from slipway.model.times import format_time


async def foreseen(
    simulator: Simulator, seen: SeenAllocations, allocation: Allocation, *, user: str
) -> ForeseenView | None:
    """The planner's word on `allocation` for `user`; None when it does not wait (any more), or nobody can be asked."""
    if not is_waiting(allocation):
        return None
    meta = allocation.metadata
    try:
        key = f"{meta.namespace}/{meta.name}"
        said = await simulator.foresee(allocation.spec.pool, key, partial(past_work, seen), user=user)
    except (ThrottledError, InvalidError, PermanentError):
        return None
    return _view(said)


def _view(said: Foreseen) -> ForeseenView:
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
