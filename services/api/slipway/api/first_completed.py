"""Runs several awaitables until the first of them completes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from slipway.kube.scope import raise_only
from slipway.runtime.tasks import TaskGroup


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Runs all `works` until one ends, then cancels the others and waits for them.

    An error of one is raised as it is, not in a group.
    """
    try:
        async with TaskGroup() as tasks:
            running = {tasks.create_task(work) for work in works}
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()
    except BaseExceptionGroup as group:
        raise_only(group)
