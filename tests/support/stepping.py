"""The step of a loop, again and again: for tests that need the loop and not the service around it."""

from collections.abc import Awaitable, Callable


async def over_and_over(step: Callable[[], Awaitable[object]]) -> None:
    """What a loop of a service does with its step, until cancelled."""
    while True:
        await step()
