"""The forecast for one waiting allocation: the smallest change that lets it start, and the start that can be promised.

Owns neither: the words and the times are the planner's, which runs in a process of its own (`simulation.py`). A caller
who cannot be answered now gets the explanation without the forecast.
"""

from slipway.api.queue_view import is_waiting
from slipway.api.schemas import ForeseenView, StartView
from slipway.api.simulation import Foreseen, Simulator
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, PermanentError, ThrottledError
from slipway.model.times import format_time


async def foreseen(simulator: Simulator, allocation: Allocation, *, user: str) -> ForeseenView | None:
    """The planner's word on `allocation` for `user`; None when it does not wait (any more), or nobody can be asked."""
    if not is_waiting(allocation):
        return None
    meta = allocation.metadata
    try:
        said = await simulator.foresee(allocation.spec.pool, f"{meta.namespace}/{meta.name}", user=user)
    except (ThrottledError, InvalidError, PermanentError):
        return None
    return _view(said)


def _view(said: Foreseen) -> ForeseenView:
    bounds = said.estimated_start
    return ForeseenView(
        code=said.code,
        message=said.message,
        reasons=said.reasons,
        ahead_slots=said.ahead_slots,
        change=said.change,
        helps=said.helps,
        estimated_start=StartView(earliest=_time(bounds.earliest), latest=_time(bounds.latest)),
    )


def _time(at: float | None) -> str:
    return "" if at is None else format_time(at, "seconds")
