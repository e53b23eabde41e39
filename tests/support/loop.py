"""An event loop for simulations: virtual time, one order per seed, and processes that can be killed or frozen.

Owns time, the order in which ready callbacks run, and which process a callback belongs to. When nothing is ready the
time jumps to the next timer; when there is no timer either, nothing can ever happen again and the run fails. No
sockets, threads or signals: only what asyncio's tasks, futures, events and timeouts need.

Every callback runs in the context in which it was scheduled, and a context names its `Owner`. The callbacks of a dead
owner do not run again, as after `kill -9`: no `finally`, no `except CancelledError`. Those of a frozen owner wait and
all become ready when it thaws, timers included, as after SIGSTOP and SIGCONT. When the run is over everything is
unwound, the dead included; the world has closed its ports to them by then (`on_close`).

Invariant: equal programs with equal seeds run equally. Seed 0 keeps the order in which callbacks became ready.
"""

import asyncio
import random
import sys
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = 1_700_000_000.0
CLOSING_TURNS_MAX = 100
STILL_TURNS = 1_000
TICK_S = 1e-6


class DeadlockError(AssertionError):
    """Every task waits for something that cannot happen."""


class Owner:
    """A process, as the loop sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.held: list[_Handle] = []
        self.corpses: set[asyncio.Task[Any]] = set()
        """Tasks of a dead owner: kept, because a collected task would run its `finally` blocks."""


OWNER: ContextVar[Owner | None] = ContextVar("OWNER", default=None)


class _Handle:
    """A callback and its context, with the methods of `TimerHandle` that asyncio needs. It is small, because a run
    creates thousands."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled")

    def __init__(self, when: float, callback: Callable[..., Any], args: Any, context: Context | None) -> None:
        self._when = when
        self.callback = callback
        self.args = args
        self.context = context if context is not None else copy_context()
        self.is_cancelled = False

    def cancel(self) -> None:
        """Let the callback not run."""
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        """Whether the callback was cancelled."""
        return self.is_cancelled

    def when(self) -> float:
        """The loop time at which the callback is due."""
        return self._when


def _nothing() -> None:
    return None


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Task(asyncio.Task[Any]):
    """A task whose hash is a number instead of an address, so that sets of tasks have the same order in each run."""

    counter = 0

    def __hash__(self) -> int:
        try:
            return self._place
        except AttributeError:
            _Task.counter += 1
            self._place = _Task.counter
            return self._place


class _Future(asyncio.Future[Any]):
    """A future whose hash is a number, as for `_Task`."""

    counter = 0

    def __hash__(self) -> int:
        try:
            return self._place
        except AttributeError:
            _Future.counter += 1
            self._place = _Future.counter
            return self._place


class SimLoop(asyncio.AbstractEventLoop):
    """The loop; `time()` starts at 0."""

    def __init__(self, seed: int = 0) -> None:
        _Task.counter = _Future.counter = 0
        self._now = 0.0
        self._chance = random.Random(seed) if seed else None
        self._draw = self._chance.getrandbits if self._chance is not None else None
        self._ready: list[_Handle] = []
        self._timers: list[tuple[float, float, int, _Handle]] = []
        self._count = 0
        self._closed = False
        self._is_closing = False
        self._factory: Any = None
        self.turns = 0
        self._told_at: float = 0.0
        self.errors: list[BaseException] = []
        """The exceptions of callbacks and abandoned tasks."""
        self.on_close: Callable[[], None] = lambda: None
        self._owners: list[Owner] = []

    # --- time and callbacks -----------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        handle = _Handle(self._now, callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # pyright: ignore[reportAssignmentType]

    def call_later(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        handle = _Handle(when, callback, args, context)
        self._count += 1
        order = self._chance.random() if self._chance is not None else 0.0
        heappush(self._timers, (when, order, self._count, handle))
        return handle

    async def sleep(self, seconds: float) -> None:
        """Like `asyncio.sleep`, but cheaper: a run mostly waits."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.Future(loop=self)
        timer = self.call_at(self._now + seconds, _wake, waiter)
        try:
            await waiter
        except BaseException:
            timer.cancel()
            raise

    # --- what tasks need --------------------------------------------------------------------------------------------

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(loop=self)

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: str | None = None, context: Any = None
    ) -> "asyncio.Task[T]":
        return _Task(coro, loop=self, name=name, context=context)  # pyright: ignore[reportArgumentType]

    def get_task_factory(self) -> Any:
        return self._factory

    def set_task_factory(self, factory: Any) -> None:
        self._factory = factory

    get_debug = bool  # pyright: ignore[reportAssignmentType] - asked for each future: that it is not, without a frame

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.errors.append(error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # --- processes --------------------------------------------------------------------------------------------------

    def kill(self, owner: Owner) -> None:
        """Let nothing of `owner` run from now on."""
        owner.is_dead = True
        owner.corpses = asyncio.all_tasks(self)
        self._owners.append(owner)

    def freeze(self, owner: Owner) -> None:
        """Let nothing of `owner` run until it thaws."""
        owner.is_frozen = True
        self._owners.append(owner)

    def thaw(self, owner: Owner) -> None:
        """Let `owner` run again: all callbacks that became due while it was frozen are ready now."""
        owner.is_frozen = False
        if owner.is_dead and not self._is_closing:
            return
        held, owner.held = owner.held, []
        self._ready.extend(held)

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, then cancel all other tasks."""
        hooks = sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        try:
            task = self.create_task(main)
            try:
                turn = self._turn
                while not task.done():
                    turn()
            finally:
                self._sweep_up()
            return task.result()
        finally:
            self._closed = True
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(None)

    def _turn(self) -> None:
        self.turns += 1
        if self.turns % STILL_TURNS == 0:
            # Time passes while callbacks run. Without this, a wait shorter than the precision of a float would never
            # end.
            if self._now < self._told_at + TICK_S:
                self._now += TICK_S
            self._told_at = self._now
        timers = self._timers
        while timers and timers[0][3].is_cancelled:
            heappop(timers)
        if not self._ready:
            if not timers:
                raise DeadlockError("all tasks wait and no timer is set")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heappop(timers)[3])
        batch, self._ready = self._ready, []
        if self._draw is not None and len(batch) > 1:
            _shuffle(batch, self._draw)
        for handle in batch:
            if handle.is_cancelled:
                continue
            owner = handle.context.get(OWNER)
            if owner is not None and (owner.is_dead or owner.is_frozen) and not self._is_closing:
                owner.held.append(handle)
                continue
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as every event loop does
                self.errors.append(error)

    def _sweep_up(self) -> None:
        """Cancel all remaining tasks, those of dead processes included; their ports refuse their calls by now."""
        self._is_closing = True
        self.on_close()
        for owner in self._owners:
            self.thaw(owner)
        for _ in range(CLOSING_TURNS_MAX):
            left = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            while self._ready:
                self._turn()
        self._ready.clear()
        self._timers.clear()

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed and not self._is_closing:
            self.call_soon(lambda: self.create_task(_close(generator)))


def _shuffle(batch: list[_Handle], draw: Callable[[int], int]) -> None:
    """Like `Random.shuffle`, with the same draws, but cheaper: it runs in nearly every turn."""
    for last in range(len(batch) - 1, 0, -1):
        bits = (last + 1).bit_length()
        other = draw(bits)
        while other > last:
            other = draw(bits)
        batch[last], batch[other] = batch[other], batch[last]


async def _close(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def owned(owner: Owner | None) -> Context:
    """A context whose callbacks belong to `owner`."""
    context = copy_context()
    context.run(OWNER.set, owner)
    return context
