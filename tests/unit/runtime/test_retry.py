"""A policy bounds attempts and time, honours Retry-After, retries only what it names, and raises the original."""

from collections.abc import Awaitable, Callable

import pytest

from slipway.errors import ControlPlaneError, InvariantError, NotFoundError, ThrottledError, UnavailableError
from slipway.runtime import retry, telemetry
from slipway.runtime.clock import SeededRandom
from slipway.runtime.retry import Retry, RetryPolicy
from tests.support.clock import FakeClock

_POLICY = RetryPolicy(name="test", attempts_max=4, total_s=100.0, first_s=1.0, cap_s=3.0)


def _failing(
    *errors: BaseException, clock: FakeClock | None = None, takes_s: float = 0.0
) -> Callable[[], Awaitable[str]]:
    queue = list(errors)

    async def fn() -> str:
        if clock is not None:
            clock.advance(takes_s)
        if queue:
            raise queue.pop(0)
        return "done"

    return fn


async def test_a_call_that_works_is_called_once():
    """A call that works is called once, without a wait and a count."""
    clock = FakeClock()
    assert await retry.call(_POLICY, _failing(), clock=clock, random=SeededRandom(1)) == "done"
    assert clock.slept == []


async def test_waits_grow_with_full_jitter_and_a_cap():
    """Each wait lies in [0, min(cap, first * 2^n)] and goes through the clock."""
    clock, seen = FakeClock(), list[Retry]()
    errors = [UnavailableError("1"), UnavailableError("2"), UnavailableError("3")]
    result = await retry.call(_POLICY, _failing(*errors), clock=clock, random=SeededRandom(1), on_retry=seen.append)
    assert result == "done"
    assert len(clock.slept) == 3
    assert all(0 <= slept <= most for slept, most in zip(clock.slept, (1.0, 2.0, 3.0), strict=True))
    assert [(event.attempt, event.error, event.delay_s) for event in seen] == [
        (number, error, slept) for number, (error, slept) in enumerate(zip(errors, clock.slept, strict=True), 1)
    ]


async def test_the_last_error_itself_is_raised_after_the_last_attempt():
    """Callers see the original error, its attempts and a note."""
    errors = [UnavailableError(str(number)) for number in range(9)]
    with pytest.raises(UnavailableError) as caught:
        await retry.call(_POLICY, _failing(*errors), clock=FakeClock(), random=SeededRandom(1))
    assert caught.value is errors[3]
    assert caught.value.attempts == 4
    assert caught.value.__notes__ == ["gave up: policy test, 4 attempts"]


async def test_the_total_time_counts_slow_calls_too():
    """No attempt starts after `total_s`."""
    clock = FakeClock()
    errors = [UnavailableError(str(number)) for number in range(9)]
    with pytest.raises(UnavailableError) as caught:
        await retry.call(_POLICY, _failing(*errors, clock=clock, takes_s=60.0), clock=clock, random=SeededRandom(1))
    assert caught.value.attempts == 2


async def test_retry_after_is_a_lower_bound_with_jitter_on_top():
    """Retry-After is a lower bound, with jitter added, so that callers do not retry at the same instant."""
    clock = FakeClock()
    fn = _failing(ThrottledError("slow down", retry_after_s=20.0))
    assert await retry.call(_POLICY, fn, clock=clock, random=SeededRandom(1)) == "done"
    assert 20.0 <= clock.slept[0] <= 21.0


async def test_a_retry_after_beyond_the_budget_gives_up_at_once():
    """A Retry-After beyond the time budget gives up at once, because no further attempt is allowed."""
    clock = FakeClock()
    with pytest.raises(ThrottledError) as caught:
        await retry.call(
            _POLICY, _failing(ThrottledError("x", retry_after_s=1000)), clock=clock, random=SeededRandom(1)
        )
    assert clock.slept == []
    assert caught.value.attempts == 1


@pytest.mark.parametrize("error", [NotFoundError("x"), InvariantError("x"), KeyError("x")])
async def test_other_errors_pass_at_once(error: Exception):
    """Only what the policy names is retried, also in the middle of retrying."""
    clock = FakeClock()
    with pytest.raises(type(error)) as caught:
        await retry.call(_POLICY, _failing(error), clock=clock, random=SeededRandom(1))
    assert caught.value is error
    assert clock.slept == []
    with pytest.raises(type(error)):
        await retry.call(_POLICY, _failing(UnavailableError("x"), error), clock=clock, random=SeededRandom(1))
    assert len(clock.slept) == 1
    if isinstance(error, ControlPlaneError):
        assert not hasattr(error, "__notes__")


async def test_retries_are_counted_and_become_span_events():
    """Every retry shows in the metric and in the trace."""
    spans: list[dict[str, object]] = []

    class Sink:
        def offer(self, allocation_id: str, span: dict[str, object]) -> None:
            spans.append(span)

    count = telemetry.RETRIES.labels(policy="test", error="UnavailableError")
    before = count._value.get()  # pyright: ignore
    telemetry.setup("test", sink=Sink())
    try:
        with telemetry.span("outer", allocation_id="a-1"):
            await retry.call(_POLICY, _failing(UnavailableError("x")), clock=FakeClock(), random=SeededRandom(1))
    finally:
        telemetry.shutdown()
    assert count._value.get() == before + 1  # pyright: ignore
    assert '"retry"' in str(spans[0]["events"]).replace("'", '"')


@pytest.mark.parametrize("policy", [retry.KUBE_WRITE, retry.KUBE_READ, retry.REDIS, retry.QUICK])
async def test_ready_made_policies_end_within_their_budget(policy: RetryPolicy):
    """Every ready-made policy ends within its budget against a server that never answers."""
    clock = FakeClock()

    async def never() -> None:
        raise UnavailableError("down")

    with pytest.raises(UnavailableError):
        await retry.call(policy, never, clock=clock, random=SeededRandom(1))
    assert clock.monotonic() <= policy.total_s
