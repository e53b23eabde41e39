"""Repeats the step of a loop: for tests that need the loop and not the service around it."""

from collections.abc import Awaitable, Callable


async def over_and_over(step: Callable[[], Awaitable[object]]) -> None:
    """Repeat the step until cancelled, as the loop of a service does."""
    while True:
        await step()
