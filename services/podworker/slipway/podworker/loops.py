"""The loops of the pod worker, and how long each may make no progress.

Owns the table. `runtime/liveness.py` explains what a bound means.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from slipway.runtime.liveness import Loop
from slipway.streams import consumer
from slipway.streams.ports import WorkHint
from slipway.streams.producer import WRITE_BEHIND

STILL_S = 120.0
"""If a hint is delayed here, another process claims it after its idle time, so no launch waits for this process."""

POLL = Loop(name="poll", bound_s=STILL_S, moves="each check for work, and each progress of a hint that it found")
HINT = Loop(name="hint", bound_s=STILL_S, moves="each write of a launch or teardown, and each failed attempt")

Watch = Callable[[WorkHint], AbstractContextManager[object]]
"""Returns the context in which a hint is handled, so that a standstill is noticed."""


def unwatched(_hint: WorkHint) -> AbstractContextManager[object]:
    """Return the context of a pass that ends by itself, where nothing is watched."""
    return nullcontext()


LOOPS = (POLL, HINT, *consumer.LOOPS, WRITE_BEHIND)
