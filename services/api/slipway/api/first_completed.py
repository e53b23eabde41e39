"""Runs several awaitables until the first of them completes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from slipway.kube.scope import raise_only
from slipway.runtime.tasks import TaskGroup


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run all `works` until one ends, then cancel the others and wait for them.

    A single error is raised as it is, not in a group.
    """
    try:
        async with TaskGroup() as tasks:
            running = {tasks.create_task(work) for work in works}
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()
    except BaseExceptionGroup as group:
        raise_only(group)
