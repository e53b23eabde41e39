"""One step of a launch or teardown as spans and metrics see it."""

import contextlib
from collections.abc import Generator

from slipway.runtime import telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.telemetry import ActiveSpan


@contextlib.contextmanager
def step(name: str, clock: Clock, **attributes: str | int) -> Generator[ActiveSpan]:
    """Records the time inside as a span `podworker.<name>` and in the step histogram."""
    started_s = clock.monotonic()
    with telemetry.span(f"podworker.{name}", attributes=attributes) as span:
        try:
            yield span
        finally:
            telemetry.LAUNCH_STEP.labels(step=name).observe(clock.monotonic() - started_s)
