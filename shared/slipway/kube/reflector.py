"""Fills a store with the objects of one resource by LIST and WATCH, for as long as the process runs.

Owns the position in the watch history, the diff of a relist, and the backoff. Must not know what the objects mean, nor
the HTTP library: it works with any `KubeReader`, on real or virtual time.

Promises
- The reflector starts with one consistent LIST and watches from the version of that LIST; from then on `synced` is
  True.
- Watch events and bookmarks move the position. The items of a LIST never do, because their versions are not positions
  in the history.
- A watch that ends is opened again from the position. An expired position (410) leads to a new LIST; objects that the
  LIST no longer contains are reported as deleted, with unknown final state.
- The reflector never gives up. After errors it waits 0.8 s to 30 s with jitter; two minutes without errors reset the
  backoff.
- Each response of the server (an event, an end, a refusal) is reported as progress of its loop (`runtime/liveness.py`).
- A watch that neither brings an event nor ends within the silence limit is broken: the reader raises an error.
- A LIST below the highest version seen, which a lagging replica may return, is refused and requested again: the store
  never goes back in time. When the LIST is below for the third consecutive time, the server has another history (etcd
  was restored from an older copy), and the store starts again with that LIST.
- After a broken watch, or minutes without even a bookmark, the history is checked in parallel to the next watch. This
  is needed because a server that has gone back in time accepts a watch from a future version and then sends nothing.
  The check never delays the watch.

Not promised
- Every intermediate state, or any change within a time limit: code that must not act on an old view reads from the API.
- Detection of a server that lost history and has since passed the highest version seen: only a restart of the process
  helps.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Generic, TypeVar, cast

from slipway.errors import (
    ControlPlaneError,
    ExpiredError,
    InvariantError,
    StaleError,
    ThrottledError,
    TransientError,
)
from slipway.kube.ports import KubeReader, WatchEvent, WatchType
from slipway.kube.resources import Resource
from slipway.kube.scope import StopSignal, raise_only, run_until
from slipway.kube.store import ObjectStore
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.tasks import TaskGroup

T = TypeVar("T")

BACKOFF_MIN_S = 0.8
BACKOFF_MAX_S = 30.0
BACKOFF_RESET_S = 120.0
AWAITED_MAX = 10_000
"""Maximum number of own writes whose arrival in the watch is timed."""
SHORT_WATCH_S = 1.0
"""A watch that ends sooner and without a change is treated as an error, so that the loop cannot spin."""

BELOW_MAX = 3
"""Number of consecutive LISTs below the highest version seen that prove that the server has gone back in time."""
DOUBT_S = 300.0
"""A server that has sent neither a change nor a bookmark for this many seconds may have gone back in time."""
CAUSE_REWOUND = "rewound"
"""Metric label of a restart on an older history."""

_log = log.get_logger(__name__)


class Backoff:
    """Delays that double from the minimum to the maximum, with jitter in the upper half; a time without errors resets
    them."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._next_s = BACKOFF_MIN_S
        self._last_at = clock.monotonic()

    def next_s(self) -> float:
        """Return the seconds to wait before the next attempt."""
        now = self._clock.monotonic()
        if now - self._last_at >= BACKOFF_RESET_S:
            self._next_s = BACKOFF_MIN_S
        base, self._next_s = self._next_s, min(self._next_s * 2, BACKOFF_MAX_S)
        delay_s = base * self._random.uniform(0.5, 1.0)
        self._last_at = now + delay_s
        return delay_s


class Reflector(Generic[T]):
    """The reflector; the module lists its promises. `restarts` counts, by cause, the watches and LISTs that started
    again."""

    def __init__(
        self,
        api: KubeReader,
        resource: Resource[T],
        store: ObjectStore[T],
        *,
        clock: Clock,
        random: Random,
        namespace: str | None = None,
        label_selector: str = "",
    ) -> None:
        self.store = store
        self.restarts: Counter[str] = Counter()
        self._api = api
        self._resource = resource
        self._clock = clock
        self._random = random
        self._namespace = namespace
        self._label_selector = label_selector
        self._position = ""
        self._highest = 0
        self._below = 0
        """number of consecutive LISTs below the highest version"""
        self._is_doubted = False
        """whether the last watch broke: the server may have gone back in time"""
        self._heard_at = clock.monotonic()
        self._told_at = self._heard_at
        """when the last change, bookmark or LIST arrived, on the monotonic clock"""
        self.interruption = ""
        """why the last LIST or watch failed, if none has started since; empty when there is no failure"""
        self._has_synced = asyncio.Event()
        plural = resource.plural
        self._seen = {type_: telemetry.WATCH_EVENTS.labels(resource=plural, type=type_) for type_ in WatchType}
        self._held = telemetry.STORE_OBJECTS.labels(resource=plural)
        self._lag = telemetry.WATCH_LAG.labels(resource=plural)
        self._written: dict[str, float] = {}
        """{uid: time of the response to our write}, for writes that the watch has not shown yet"""
        store.on_expected, store.on_observed = self._await, self._arrived

    @property
    def plural(self) -> str:
        """The plural of the resource."""
        return self._resource.plural

    @property
    def synced(self) -> bool:
        """Whether a first LIST is in the store."""
        return self._has_synced.is_set()

    @property
    def silent_s(self) -> float:
        """Seconds since the last message of the server: the maximum age of the view."""
        return self._clock.monotonic() - self._heard_at

    async def wait_synced(self) -> None:
        """Return when the first LIST is in the store; limit the wait with `asyncio.timeout`."""
        await self._has_synced.wait()

    async def run(self, stop: StopSignal) -> None:
        """Keep the store up to date until `stop`. Raises InvariantError only."""
        await run_until(stop, self._run())

    async def _run(self) -> None:
        # The metric is created only now, so that a watch that never runs is not late.
        telemetry.WATCH_HEARD.labels(resource=self.plural)
        backoff = Backoff(self._clock, self._random)
        while True:
            try:
                if not self._position:
                    await self._list()
                started = self._clock.monotonic()
                changes = await self._watch_in_doubt() if self._is_doubted else await self._watch()
                # The server ended the watch as requested, so the view is current up to now.
                self._hear()
                self._is_doubted = self._clock.monotonic() - self._told_at >= DOUBT_S
                if changes or self._clock.monotonic() - started >= SHORT_WATCH_S:
                    self._restarted("ended")
                    continue
                cause, wait_s = "short", backoff.next_s()
            except ExpiredError as error:
                self._position, self.interruption = "", str(error)
                cause, wait_s = "expired", backoff.next_s()
            except InvariantError:
                raise
            except ControlPlaneError as error:
                self._is_doubted = True
                self.interruption = str(error)
                cause, wait_s = _cause_of(error), backoff.next_s()
                if isinstance(error, TransientError) and error.retry_after_s:
                    wait_s = max(wait_s, error.retry_after_s)
                if _is_answered(error):
                    liveness.beat(wait_s)
                _log.warning(
                    "watch interrupted", resource=self._resource.plural, cause=cause, error=str(error), retry_s=wait_s
                )
            self._restarted(cause)
            await self._clock.sleep(wait_s)

    async def _watch_in_doubt(self) -> int:
        """Run `_watch` and check the history in parallel.

        Raises ExpiredError when the server has not reached the position: it has another history, and the watch would be
        silent.
        """
        is_lost = asyncio.Event()
        try:
            async with TaskGroup() as tasks:
                look = tasks.create_task(self._look_at_history(is_lost))
                changes = await run_until(is_lost, self._watch())
                look.cancel()
        except BaseExceptionGroup as group:
            raise_only(group)
        if changes is None:
            raise ExpiredError(f"the API server has not reached version {self._highest} of {self.plural}, seen before")
        return changes

    async def _look_at_history(self, is_lost: asyncio.Event) -> None:
        """Read the server's current version, with retries; set `is_lost` when it is below the highest version seen."""
        backoff = Backoff(self._clock, self._random)
        while True:
            try:
                page = await self._api.list(
                    self._resource, namespace=self._namespace, label_selector=self._label_selector, limit=1
                )
                break
            except TransientError as error:
                await self._clock.sleep(max(backoff.next_s(), error.retry_after_s or 0.0))
        self._is_doubted = False
        self._told_at = self._clock.monotonic()
        if 0 < _number(page.resource_version) < self._highest:
            is_lost.set()
        else:
            self.interruption = ""  # the parallel watch works: it is silent only while nothing changes

    async def _list(self) -> None:
        listing = await self._api.list(self._resource, namespace=self._namespace, label_selector=self._label_selector)
        version = _number(listing.resource_version)
        if 0 < version < self._highest:
            self._below += 1
            if self._below < BELOW_MAX:
                raise StaleError(
                    f"a LIST of {self._resource.plural} at {version} is below {self._highest}, seen before"
                )
            self._begin_anew(version)
        self._below = 0
        self._is_doubted = False
        self._hear()
        self._told_at = self._heard_at
        self._written.clear()  # writes that arrive in a LIST give no watch lag
        self.store.replace(listing.items, version)
        self._held.set(len(self.store))
        self._move(listing.resource_version)
        self._has_synced.set()

    def _begin_anew(self, version: int) -> None:
        """Forget every version: the following LIST replaces all objects, also newer ones."""
        _log.error(
            "the API server has gone back in time: everything is read anew",
            resource=self._resource.plural,
            version=version,
            seen=self._highest,
        )
        self._restarted(CAUSE_REWOUND)
        self._highest = 0
        self.store.rewind()

    async def _watch(self) -> int:
        """Process one watch until the server ends it; return the number of changes."""
        changes = 0
        stream = self._api.watch(
            self._resource,
            resource_version=self._position,
            namespace=self._namespace,
            label_selector=self._label_selector,
        )
        async with aclosing(cast("AsyncGenerator[WatchEvent[T], None]", stream)) as watch:
            async for event in watch:
                changes += event.object is not None
                self._take(event)
        return changes

    def _take(self, event: WatchEvent[T]) -> None:
        if 0 < _number(event.resource_version) < self._highest:
            raise StaleError(
                f"a watch of {self._resource.plural} is at {event.resource_version}, below {self._highest}, seen before"
            )
        self._hear()
        self._told_at = self._heard_at
        if event.object is not None:
            if event.type is WatchType.DELETED:
                self.store.remove(event.object)
            else:
                self.store.put(event.object)
        self._move(event.resource_version)
        self._seen[event.type].inc()
        self._held.set(len(self.store))

    def _move(self, resource_version: str) -> None:
        if not resource_version:
            return
        self._position = resource_version
        if resource_version.isdigit():
            self._highest = max(self._highest, int(resource_version))
            self.store.advance(self._highest)

    def _hear(self) -> None:
        self._heard_at = self._clock.monotonic()
        self.interruption = ""
        telemetry.WATCH_HEARD.labels(resource=self.plural).set(self._clock.now())
        liveness.beat()

    def _await(self, uid: str) -> None:
        if len(self._written) >= AWAITED_MAX:
            self._written.clear()  # limits the memory; the lag of these writes is not measured
        self._written[uid] = self._clock.monotonic()

    def _arrived(self, uid: str) -> None:
        written_at = self._written.pop(uid, None)
        if written_at is not None:
            self._lag.observe(self._clock.monotonic() - written_at)

    def _restarted(self, cause: str) -> None:
        self.restarts[cause] += 1
        telemetry.WATCH_RESTARTS.labels(resource=self._resource.plural, reason=cause).inc()


def _is_answered(error: ControlPlaneError) -> bool:
    """Whether the server itself refused the request or stated when to retry.

    Another process would get the same response, so a restart of this one would not help.
    """
    return not isinstance(error, TransientError) or isinstance(error, ThrottledError) or bool(error.retry_after_s)


def _number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdigit() else 0


def _cause_of(error: ControlPlaneError) -> str:
    """Return the metric label for an error, such as `unavailable` for UnavailableError."""
    return type(error).__name__.removesuffix("Error").lower()


AnyReflector = Reflector[Any]
