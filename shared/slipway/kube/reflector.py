"""LIST and WATCH of one resource into a Store, for as long as the process runs.

Owns the position in the history, the diff of a relist, the backoff. Must not know what the objects mean, nor the HTTP
library: any `KubeReader` will do, on real or virtual time.

Promises
- It starts with one consistent LIST and watches from that LIST's version; `synced` is True from then on.
- The position moves with watch events and bookmarks, and never with the items of a LIST, whose versions say nothing
  about the history.
- A watch that ends is opened again from the position; an expired position (410) means LIST again, and what the LIST
  no longer holds is told as deleted, its final state unknown.
- It never gives up. Errors back off from 0.8 s to 30 s with jitter; two good minutes reset that.
- Each answer of the server is a move of the loop that runs it (`runtime/liveness.py`): an event, an end, a refusal.
- A watch on which nothing came for the silence limit, its end included, counts as broken (the reader raises).
- A LIST below the highest version seen, as a lagging replica serves, is refused and asked for again: no time travel.
  When it is below for the third time running, the history is another one (etcd was put back to an older copy): the
  store begins anew with that LIST.
- After a watch that broke, or minutes on which not even a bookmark came, the history is looked at beside the next
  watch: a server that has gone back in time lets a watch from the future begin, and is silent on it. The look never
  delays the watch.

Not promised
- Every intermediate state, or any change within a bound of time: what may not act on an old view asks the API.
- To notice that the server lost history and has since counted beyond the highest version seen: a restart of the
  process begins anew.
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
"""Own writes whose arrival is timed."""
SHORT_WATCH_S = 1.0
"""A watch that ends sooner and brought nothing counts as an error, so that it cannot spin."""

BELOW_MAX = 3
"""A LIST that is below the highest version seen so many times running shows that the server has gone back in time."""
DOUBT_S = 300.0
"""A server that has told neither a change nor a bookmark for so long may have gone back in time."""
CAUSE_REWOUND = "rewound"
"""The restart that begins anew on an older history."""

_log = log.get_logger(__name__)


class Backoff:
    """Delays that double from the first to the last, each drawn from its upper half; good times reset them."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._next_s = BACKOFF_MIN_S
        self._last_at = clock.monotonic()

    def next_s(self) -> float:
        """How long to wait before the next attempt, in seconds."""
        now = self._clock.monotonic()
        if now - self._last_at >= BACKOFF_RESET_S:
            self._next_s = BACKOFF_MIN_S
        base, self._next_s = self._next_s, min(self._next_s * 2, BACKOFF_MAX_S)
        delay_s = base * self._random.uniform(0.5, 1.0)
        self._last_at = now + delay_s
        return delay_s


class Reflector(Generic[T]):
    """See the module's promises. `restarts` counts, by cause, the watches and LISTs that had to begin again."""

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
        """LISTs running that were below the highest version"""
        self._is_doubted = False
        """whether the last watch broke: the server may have gone back in time"""
        self._heard_at = clock.monotonic()
        self._told_at = self._heard_at
        """when the last change, bookmark or LIST came"""
        self.interruption = ""
        """why the last LIST or watch failed, where no other has begun since; empty while all is well"""
        self._has_synced = asyncio.Event()
        plural = resource.plural
        self._seen = {type_: telemetry.WATCH_EVENTS.labels(resource=plural, type=type_) for type_ in WatchType}
        self._held = telemetry.STORE_OBJECTS.labels(resource=plural)
        self._lag = telemetry.WATCH_LAG.labels(resource=plural)
        self._written: dict[str, float] = {}
        """{uid: when its own write was answered, where the watch has not shown it}"""
        store.on_expected, store.on_observed = self._await, self._arrived

    @property
    def plural(self) -> str:
        """Of the resource."""
        return self._resource.plural

    @property
    def synced(self) -> bool:
        """Whether a first LIST has been taken in."""
        return self._has_synced.is_set()

    @property
    def silent_s(self) -> float:
        """Seconds since the server last told us anything: how old the view may be."""
        return self._clock.monotonic() - self._heard_at

    async def wait_synced(self) -> None:
        """Returns once the first LIST has been taken in; bound it with `asyncio.timeout`."""
        await self._has_synced.wait()

    async def run(self, stop: StopSignal) -> None:
        """Keeps the store filled until `stop`. Raises InvariantError only."""
        await run_until(stop, self._run())

    async def _run(self) -> None:
        telemetry.WATCH_HEARD.labels(resource=self.plural)  # only now: a watch that never runs is not late
        backoff = Backoff(self._clock, self._random)
        while True:
            try:
                if not self._position:
                    await self._list()
                started = self._clock.monotonic()
                changes = await self._watch_in_doubt() if self._is_doubted else await self._watch()
                # The server ended it as it was asked to: until now there was nothing to tell.
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
        """Like `_watch`, while the history is looked at beside it. Raises ExpiredError when the server has not reached
        the position: its history is another one, and such a watch is silent."""
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
        """Asks until the server says how far its history reaches; sets `is_lost` when that is below what was seen."""
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
            self.interruption = ""  # the watch beside this look has begun, and where nothing changes it is silent

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
        self._written.clear()  # what comes by a LIST says nothing of the watch
        self.store.replace(listing.items, version)
        self._held.set(len(self.store))
        self._move(listing.resource_version)
        self._has_synced.set()

    def _begin_anew(self, version: int) -> None:
        """Forget every version: the LIST that follows is the truth, whatever was newer."""
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
        """Takes in one watch until the server ends it; the number of changes that it brought."""
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
            self._written.clear()  # of most of these the watch will show a later version only, or nothing
        self._written[uid] = self._clock.monotonic()

    def _arrived(self, uid: str) -> None:
        written_at = self._written.pop(uid, None)
        if written_at is not None:
            self._lag.observe(self._clock.monotonic() - written_at)

    def _restarted(self, cause: str) -> None:
        self.restarts[cause] += 1
        telemetry.WATCH_RESTARTS.labels(resource=self._resource.plural, reason=cause).inc()


def _is_answered(error: ControlPlaneError) -> bool:
    """Whether the server has refused, in its own words, or has said when to come again: another process would hear
    the same."""
    return not isinstance(error, TransientError) or isinstance(error, ThrottledError) or bool(error.retry_after_s)


def _number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdigit() else 0


def _cause_of(error: ControlPlaneError) -> str:
    """A word for a metric label: `unavailable` for UnavailableError."""
    return type(error).__name__.removesuffix("Error").lower()


AnyReflector = Reflector[Any]
