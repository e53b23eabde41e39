"""A load for a cache that lasts until a test ends it."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from slipway.errors import ControlPlaneError


class SlowLoad:
    """Counts how many of its calls run at once; `ends` has one entry for each call that has begun, in order."""

    def __init__(self) -> None:
        self.running = 0
        self.ends: list[asyncio.Future[Any]] = []

    async def __call__(self) -> Any:
        self.running += 1
        self.ends.append(asyncio.get_running_loop().create_future())
        try:
            return await self.ends[-1]
        finally:
            self.running -= 1


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def outcome(call: Awaitable[Any]) -> Any:
    """What a call returned, or the error of the tree that it raised."""
    try:
        return await call
    except ControlPlaneError as error:
        return error
