"""A world in which one loop of one service can be frozen, while the rest of the process runs on.

Owns how a loop is frozen: none of its tasks runs any more, so none ends, fails, or receives a cancellation. Also owns
the census: the loop of each task of a process. Must not know the purpose of any loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from slipway.runtime.liveness import CURRENT
from tests.support.faults import Process
from tests.support.loop import OWNER, SimLoop
from tests.support.world import Setup, World, run_world

T = TypeVar("T")


class FreezingLoop(SimLoop):
    """An event loop in which `freeze` stops the tasks of a loop of a service."""

    def __init__(self) -> None:
        super().__init__()
        self._frozen = ("", "")
        self._held: list[tuple[Context | None, Callable[..., Any], tuple[Any, ...]]] = []
        self._contexts: dict[asyncio.Task[Any], Context] = {}

    def freeze_loop(self, role: str, name: str) -> None:
        """Stop every task of the loop `name` (without its part) of a process."""
        self._frozen = (role, name)

    def tasks_of(self, role: str) -> list[tuple[str, str]]:
        """(the loop, or nothing; the function) of each task that a process has now"""
        found: list[tuple[str, str]] = []
        for task, context in self._contexts.items():
            owner, pulse = context.get(OWNER), context.get(CURRENT)
            if not task.done() and isinstance(owner, Process) and owner.role == role:
                code: Any = task.get_coro()
                found.append((pulse.loop.name if pulse else "", code.__qualname__))
        return found

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[T]":
        mine = context if context is not None else copy_context()
        task = super().create_task(coro, name=name, context=mine)
        self._contexts[task] = mine
        task.add_done_callback(self._forget)
        return task

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if isinstance(getattr(callback, "__self__", None), asyncio.Task):
            callback = partial(self._unless_frozen, context, callback)
        return super().call_soon(callback, *args, context=context)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._contexts.pop(task, None)

    def _sweep_up(self) -> None:
        """Unwind the frozen tasks with the rest."""
        self._frozen = ("", "")
        for context, callback, args in self._held:
            super().call_soon(callback, *args, context=context)
        super()._sweep_up()

    def _unless_frozen(self, context: Context | None, callback: Callable[..., Any], *args: Any) -> None:
        pulse, owner = CURRENT.get(), OWNER.get()
        is_frozen = (
            pulse is not None
            and isinstance(owner, Process)
            and (owner.role, pulse.loop.name.partition(":")[0]) == self._frozen
        )
        if not is_frozen:
            callback(*args)
        else:
            self._held.append((context, callback, args))


def play(story: Callable[[World, FreezingLoop], Awaitable[T]], setup: Setup) -> T:
    """Play one run."""
    loop = FreezingLoop()

    async def told(world: World) -> T:
        return await story(world, loop)

    found: T = run_world(told, setup, loop=loop)
    return found
