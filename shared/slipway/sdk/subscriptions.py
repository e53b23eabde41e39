"""`consume`: gives a program its own consumer group on the events of all allocations, read from Redis.

Owns how a program uses the group: the address of Redis, handlers that are functions or coroutines, signals, spans.
`slipway/streams/event_consumer.py` states the delivery promises. The extra `slipway-ai[consume]` installs Redis and
OpenTelemetry; they are imported when a subscription runs.
"""

import asyncio
import contextvars
import inspect
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload

from slipway.errors import FieldError, InvalidError, PermanentError, TransientError
from slipway.model.events import TYPE_PREFIX, AllocationEvent
from slipway.model.lifecycle import Event
from slipway.runtime import redis_url

if TYPE_CHECKING:
    from slipway.streams.event_consumer import ConsumerStatus, EventConsumer, EventConsumerSettings
    from slipway.streams.ports import DeadLetter, Streams

Handler = Callable[[AllocationEvent], Any]
StatusHook = Callable[["ConsumerStatus"], None]

_GROUP = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESERVED = ("webhooks", "podworker")
_LETTERS_PAGE = 100


class ConsumeOptions(TypedDict, total=False):
    """How events are filtered and handled; times are in seconds. `EventConsumerSettings` has the defaults."""

    redis: str
    types: Collection[Event | str]
    workspace: str
    consumer: str
    on_status: StatusHook
    concurrency: int
    prefetch: int
    block_s: float
    min_idle_s: float
    keep_s: float
    sweep_s: float
    retry_first_s: float
    retry_max_s: float
    deliveries_max: int
    remembered: int
    stop_s: float
    status_s: float


class Subscription:
    """A handler and its consumer group. Calling the subscription calls the handler, which helps tests of a program."""

    def __init__(self, group: str, handler: Handler, **options: Unpack[ConsumeOptions]) -> None:
        self.group = _checked_group(group)
        self.handler = handler
        self._redis = options.pop("redis", "")
        self._workspace = options.pop("workspace", "")
        self._types = frozenset(_event_type(each) for each in options.pop("types", ()))
        own_name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._consumer_name = options.pop("consumer", "") or own_name
        self._on_status = options.pop("on_status", None)
        self._settings = _settings_of(dict(options))
        self._consumer: EventConsumer | None = None
        self._stopping: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __call__(self, event: AllocationEvent) -> Any:
        return self.handler(event)

    @property
    def status(self) -> "ConsumerStatus | None":
        """What the subscription has done, and how far it lags behind; None before it runs."""
        return self._consumer.status if self._consumer is not None else None

    def run(self) -> "ConsumerStatus":
        """Handle events until SIGTERM, SIGINT or `stop`; then finish the current events, and return the final status.

        Signals reach the main thread only; in another thread, call `stop`.

        Raises:
            PermanentError: Redis refuses the account, or the extra `slipway-ai[consume]` is not installed.
        """
        return asyncio.run(self.run_async())

    async def run_async(self, *, stop: asyncio.Event | None = None) -> "ConsumerStatus":
        """Like `run`, in a running event loop. With `stop`, setting it ends the run, and the caller handles signals."""
        from slipway.streams.event_consumer import EventConsumer

        loop = asyncio.get_running_loop()
        ending = stop if stop is not None else asyncio.Event()
        pool = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="slipway-consume")
        async with self._streams() as (streams, clock, random):
            consumer = self._consumer = EventConsumer(
                streams.event_group(self.group, self._consumer_name),
                _awaited(self.handler, pool),
                clock=clock,
                random=random,
                settings=self._settings,
                wants=self._wants,
                around=self._span,
                told=self._on_status or (lambda _: None),
            )
            self._stopping = loop, ending
            undo = _on_signals(loop, ending) if stop is None else None
            try:
                await consumer.run(ending)
            except BaseExceptionGroup as group:
                raise _first_of(group) from group
            finally:
                self._stopping = None
                pool.shutdown(wait=False, cancel_futures=True)
                if undo is not None:
                    undo()
        return consumer.status

    def stop(self) -> None:
        """Stop the subscription, from any thread; it finishes the current events."""
        if self._stopping is not None:
            loop, ending = self._stopping
            loop.call_soon_threadsafe(ending.set)

    def dead_letters(self, *, limit: int = 100) -> "list[DeadLetter]":
        """Return the oldest dead letters, each with its `cause`."""

        async def look() -> "list[DeadLetter]":
            async with self._streams() as (streams, _, _random):
                return await streams.event_group(self.group, self._consumer_name).letters(limit=limit)

        return asyncio.run(look())

    def handle_dead_letters(self) -> tuple[int, int]:
        """Pass each dead letter to the handler again; return (succeeded and removed, failed and kept)."""
        return asyncio.run(self._handle_dead_letters())

    async def _handle_dead_letters(self) -> tuple[int, int]:
        from slipway.streams.codec import decode_event

        pool = ThreadPoolExecutor(1, thread_name_prefix="slipway-consume")
        handle, after = _awaited(self.handler, pool), None
        succeeded = failed = 0
        try:
            async with self._streams() as (streams, _, _random):
                group = streams.event_group(self.group, self._consumer_name)
                while page := await group.letters(after=after, limit=_LETTERS_PAGE):
                    for letter in page:
                        after = letter.id
                        fields = {name: value.encode() for name, value in letter.fields.items()}
                        [error] = await asyncio.gather(_handled(decode_event, fields, handle), return_exceptions=True)
                        if isinstance(error, BaseException):
                            failed += 1
                            continue
                        await group.drop_letter(letter.id)
                        succeeded += 1
        finally:
            pool.shutdown(wait=False)
        return succeeded, failed

    def _wants(self, event: AllocationEvent) -> bool:
        if self._workspace and event.namespace != self._workspace:
            return False
        return not self._types or event.type in self._types

    def _span(self, event: AllocationEvent, delivery: int) -> AbstractContextManager[object]:
        from slipway.runtime.linked_spans import linked_span

        attributes: dict[str, str | int] = {
            "messaging.system": "redis",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": self.group,
            "messaging.message.id": event.event_id,
            "slipway.allocation.id": event.allocation_id,
            "slipway.event.type": event.type.value,
            "slipway.delivery": delivery,
        }
        return linked_span(f"process {TYPE_PREFIX}{event.type.value}", event.traceparent, attributes)

    @asynccontextmanager
    async def _streams(self) -> "AsyncGenerator[tuple[Streams, Any, Any]]":
        from slipway.runtime.clock import SystemClock, SystemRandom

        try:
            from slipway.streams.client import RedisSettings
            from slipway.streams.redis_streams import connect
        except ImportError as error:
            raise PermanentError(f"{error.name} is not installed: pip install 'slipway-ai[consume]'") from error
        clock, random = SystemClock(), SystemRandom()
        settings = RedisSettings(url=_url_of(self._redis), name="slipway-consume")
        streams = connect(settings, clock=clock, random=random)
        try:
            yield streams, clock, random
        finally:
            await streams.aclose()


@overload
def consume(
    group: str, handler: None = None, **options: Unpack[ConsumeOptions]
) -> Callable[[Handler], Subscription]: ...
@overload
def consume(group: str, handler: Handler, **options: Unpack[ConsumeOptions]) -> "ConsumerStatus": ...
def consume(
    group: str, handler: Handler | None = None, **options: Unpack[ConsumeOptions]
) -> "Callable[[Handler], Subscription] | ConsumerStatus":
    """Call `handler` for every event of every allocation, at least once, until SIGTERM: `consume("billing", bill)`.

    Without a handler, `consume` is a decorator that makes a `Subscription`: `@consume("billing")`, then `bill.run()`.
    The handler is a function, which runs in a thread, or a coroutine function. Its argument is an `AllocationEvent`. An
    event is acknowledged after the handler returned. The exception that the handler raises decides what follows:

    - any exception: the event is retried with growing pauses, then becomes a dead letter
    - `TransientError`: the event is retried until the handler succeeds (something that the handler needs is
      unavailable)
    - `PermanentError`: the event becomes a dead letter at once

    Options: `redis`, a URL (else SLIPWAY_REDIS_URL and its parts, else the local stack); `types`, such as
    `["terminated"]`, and `workspace` filter events; `on_status` is called with a `ConsumerStatus` every `status_s`
    seconds; `consumer`, the name of this process in the group; `concurrency`, `prefetch`, `deliveries_max`,
    `min_idle_s`, `retry_first_s`, `retry_max_s` and `stop_s`, as docs/integrating.md explains.

    Raises:
        InvalidError: there is no such option, or its value is not valid; `fields` names it.
        PermanentError: Redis refuses the account.
    """
    if handler is None:
        return lambda each: Subscription(group, each, **options)
    return Subscription(group, handler, **options).run()


async def async_consume(
    group: str, handler: Handler, *, stop: asyncio.Event | None = None, **options: Unpack[ConsumeOptions]
) -> "ConsumerStatus":
    """Run `consume` in a running event loop. Without `stop` it ends at SIGTERM; with `stop`, when that event is set."""
    return await Subscription(group, handler, **options).run_async(stop=stop)


def _url_of(named: str) -> str:
    if named:
        return named
    found = redis_url.from_environment(os.environ)
    if found:
        return found
    from slipway.local.layout import Layout, default_folder

    state = Layout(default_folder()).read_state()
    if state is not None and state.redis_url:
        return state.redis_url
    raise _invalid("redis", f'the address of Redis is missing: write redis="redis://HOST", or set {redis_url.URL}')


def _checked_group(group: str) -> str:
    if _GROUP.fullmatch(group) is None:
        raise _invalid("group", f"1 to 63 letters, digits, '-', '_' and '.', not {group[:64]!r}")
    if group in _RESERVED:
        raise _invalid("group", f"{group} is a group of Slipway itself; choose another name")
    return group


def _event_type(name: Event | str) -> Event:
    try:
        return Event(str(name).removeprefix(TYPE_PREFIX))
    except ValueError as error:
        raise _invalid("types", f"{name!r} is not an event; write one of {', '.join(Event)}") from error


def _settings_of(options: dict[str, Any]) -> "EventConsumerSettings":
    from slipway.streams.event_consumer import EventConsumerSettings

    known = EventConsumerSettings.__struct_fields__
    for name in options:
        if name not in known:
            raise _invalid(name, f"there is no such option; write one of {', '.join(known)}")
    return EventConsumerSettings(**options)


def _invalid(field: str, detail: str) -> InvalidError:
    return InvalidError(f"{field}: {detail}", fields=(FieldError(f"/{field}", detail),))


def _awaited(handler: Handler, pool: ThreadPoolExecutor) -> Callable[[AllocationEvent], Awaitable[None]]:
    """Return the handler as a coroutine function; a plain function runs in a thread, with the current span."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return handler

    async def handle(event: AllocationEvent) -> None:
        context = contextvars.copy_context()
        await asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(handler, event))

    return handle


async def _handled(
    decode: Callable[[Any], AllocationEvent],
    fields: dict[str, bytes],
    handle: Callable[[AllocationEvent], Awaitable[None]],
) -> None:
    await handle(decode(fields))


def _on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Callable[[], None]:
    """Set `stop` at SIGTERM and SIGINT; return the function that removes these signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    numbers = (signal.SIGTERM, signal.SIGINT)
    with suppress(NotImplementedError):  # Windows has no such handlers; there Ctrl-C raises KeyboardInterrupt
        for number in numbers:
            loop.add_signal_handler(number, stop.set)

    def undo() -> None:
        with suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)

    return undo


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to raise. Lost connections come last, because the consumer waits until Redis is back."""
    leaves = list(_leaves(group))
    return next((each for each in leaves if not isinstance(each, TransientError)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _leaves(each)
