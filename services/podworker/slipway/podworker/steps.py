"""Measures one step of a launch or teardown for spans and metrics."""

import contextlib
from collections.abc import Generator

from slipway.runtime import telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.telemetry import ActiveSpan


@contextlib.contextmanager
def step(name: str, clock: Clock, **attributes: str | int) -> Generator[ActiveSpan]:
    """Record the time of the context as a span `podworker.<name>` and in the step histogram."""
    started_s = clock.monotonic()
    with telemetry.span(f"podworker.{name}", attributes=attributes) as span:
        try:
            yield span
        finally:
            telemetry.LAUNCH_STEP.labels(step=name).observe(clock.monotonic() - started_s)
