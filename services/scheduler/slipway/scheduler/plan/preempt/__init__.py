"""Making room: which running work goes so that other work can be placed."""

from slipway.scheduler.plan.preempt.moving import hold_places, let_go
from slipway.scheduler.plan.preempt.room import make_room

__all__ = ["hold_places", "let_go", "make_room"]
