"""Named retry policies; no other module knows tenacity.

This module decides when a call is retried, how long it waits and when it gives up. A policy is applied once, around the
outermost idempotent operation. It is never nested, and never applied to a call that must not be repeated.

Promises: only the errors that the policy names are retried. `retry_after_s` of a TransientError is respected. Both the
number of attempts and the total time are bounded. The original error is raised, with `attempts` set and a note. Each
retry is a span event and a count. Waits use the given clock, so virtual time works.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import tenacity

from slipway.errors import ControlPlaneError, TransientError
from slipway.runtime import liveness, telemetry
from slipway.runtime.clock import Clock, Random

T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of call is retried: with full jitter below `first_s * 2^n`, at most `cap_s` per wait."""

    name: str
    attempts_max: int
    total_s: float
    first_s: float
    cap_s: float
    on: tuple[type[ControlPlaneError], ...] = (TransientError,)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """One failed attempt that is about to be repeated after `delay_s`."""

    policy: RetryPolicy
    attempt: int
    delay_s: float
    error: ControlPlaneError


KUBE_WRITE = RetryPolicy(name="kube_write", attempts_max=100, total_s=600.0, first_s=0.2, cap_s=30.0)
"""For creates, deletes and bindings: ten minutes, after which the allocation is Stuck."""

KUBE_READ = RetryPolicy(name="kube_read", attempts_max=6, total_s=20.0, first_s=0.1, cap_s=5.0)
"""For reads: short, because a loop soon repeats the read anyway."""

REDIS = RetryPolicy(name="redis", attempts_max=4, total_s=5.0, first_s=0.05, cap_s=1.0)
"""For idempotent Redis calls. Redis is only transport, so give up early; the next LIST repairs the loss."""

QUICK = RetryPolicy(name="quick", attempts_max=3, total_s=1.0, first_s=0.02, cap_s=0.2)
"""For calls inside a request whose client waits."""


async def call(
    policy: RetryPolicy,
    fn: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    random: Random,
    on_retry: Callable[[Retry], None] | None = None,
) -> T:
    """Return the result of `fn`, retried by the policy. `fn` must be idempotent and have its own deadline.

    Raises:
        ControlPlaneError: the last error of `fn`, with `attempts` set to the number of attempts.
    """
    started_s = clock.monotonic()

    def wait(state: tenacity.RetryCallState) -> float:
        return _delay_s(policy, state.attempt_number, _error(state), random)

    def stop(state: tenacity.RetryCallState) -> bool:
        spent_s = clock.monotonic() - started_s
        return state.attempt_number >= policy.attempts_max or spent_s + state.upcoming_sleep > policy.total_s

    def before_sleep(state: tenacity.RetryCallState) -> None:
        retry = Retry(policy=policy, attempt=state.attempt_number, delay_s=state.upcoming_sleep, error=_error(state))
        _record(retry)
        liveness.beat(retry.delay_s)
        if on_retry is not None:
            on_retry(retry)

    # The first attempt runs outside tenacity, whose bookkeeping costs as much as a fast call.
    attempts = 1
    try:
        return await fn()
    except policy.on as error:
        first: ControlPlaneError | None = error

    async def attempt() -> T:
        nonlocal attempts, first
        if first is not None:
            replayed, first = first, None
            raise replayed
        attempts += 1
        return await fn()

    retrying = tenacity.AsyncRetrying(
        sleep=clock.sleep,
        stop=stop,
        wait=wait,
        retry=tenacity.retry_if_exception_type(policy.on),
        before_sleep=before_sleep,
        reraise=True,
    )
    try:
        return await retrying(attempt)
    except ControlPlaneError as error:
        error.attempts = attempts
        if isinstance(error, policy.on):
            error.add_note(f"gave up: policy {policy.name}, {attempts} attempts")
        raise


def _delay_s(policy: RetryPolicy, attempt: int, error: ControlPlaneError, random: Random) -> float:
    ceiling_s = min(policy.cap_s, policy.first_s * 2.0 ** min(attempt - 1, 60))
    if isinstance(error, TransientError) and error.retry_after_s is not None:
        # The jitter is added on top, because the server gave all clients the same time.
        return max(0.0, error.retry_after_s) + random.uniform(0.0, policy.first_s)
    return random.uniform(0.0, ceiling_s)


def _error(state: tenacity.RetryCallState) -> ControlPlaneError:
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, ControlPlaneError):
        raise TypeError(f"retried on {error!r}, which is not an error of Slipway")
    return error


def _record(retry: Retry) -> None:
    kind = type(retry.error).__name__
    telemetry.RETRIES.labels(policy=retry.policy.name, error=kind).inc()
    telemetry.add_event(
        "retry",
        {"policy": retry.policy.name, "attempt": retry.attempt, "delay_s": round(retry.delay_s, 3), "error": kind},
    )
