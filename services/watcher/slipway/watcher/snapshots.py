"""Makes snapshots of the cluster feed, so that a scheduler that starts in a large cluster needs no LIST.

Owns when a snapshot is made, and that it does not slow down other work. The LIST of a small cluster is quicker, so
there is no snapshot of it. A snapshot of a large cluster is made page by page, in at most a twentieth of the time.
`streams/snapshot.py` explains how a snapshot is read, and why objects may change while it is made.

Invariant: a page shows the stores at a moment no earlier than the snapshot's position in the feed. The stores had every
fact before the feed published it.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

from slipway.errors import ControlPlaneError, InvariantError
from slipway.kube.factpages import FactRow, encode_page
from slipway.kube.facts import Fact, object_key
from slipway.kube.wire import metadata_of
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams import keys
from slipway.streams.feed import FeedPublisher
from slipway.streams.ports import Feed
from slipway.streams.snapshot import SnapshotPosition, SnapshotWriter
from slipway.watcher.informers import Informers

PAGE_OBJECTS = 250
"""The number of facts that are made without a pause: some milliseconds of the event loop."""
APPENDS_MAX = keys.CLUSTER.length_max * 3 // 8
"""A new snapshot is made after so many appends, well before the feed drops the entries after its position."""
AGE_MAX_S = keys.SNAPSHOT.ttl_s / 2
REST = 20
"""The pause after a snapshot is so many times as long as it took to make."""
PAUSE_S = 5.0
"""The least pause, for a snapshot that failed or was made at once."""

_log = log.get_logger(__name__)

FactOf = Callable[[Any], Fact | None]
"""Returns the fact that the feed would publish of an object now; None for an object that it leaves out."""


class Snapshots:
    """Makes snapshots, one after the other, while a publisher runs. `objects_min`:
    the least number of objects for that."""

    def __init__(self, feed: Feed, informers: Informers, clock: Clock, fact_of: FactOf, *, objects_min: int) -> None:
        self._feed = feed
        self._informers = informers
        self._clock = clock
        self._fact_of = fact_of
        self._objects_min = objects_min
        self._slot = 0
        self._made: SnapshotPosition | None = None
        self._appends = 0
        """the publisher's count of appends at the position of the last snapshot"""
        self._made_at_s = -math.inf
        self._not_before_s = -math.inf
        self._task: asyncio.Task[None] | None = None

    def look(self, publisher: FeedPublisher, tasks: TaskGroup) -> None:
        """Begin a snapshot if one is due."""
        stands, now_s = publisher.stands, self._clock.monotonic()
        if self._task is not None or stands is None or now_s < self._not_before_s:
            return
        is_known = self._made is not None and self._made.epoch == stands.epoch
        is_good = is_known and publisher.appends - self._appends < APPENDS_MAX and now_s - self._made_at_s < AGE_MAX_S
        if is_good or sum(len(store) for _, store in self._informers.stores()) < self._objects_min:
            return
        self._task = tasks.create_task(self._make(publisher, stands, publisher.appends))

    def stop(self) -> None:
        """Cancel the snapshot that is being made."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _make(self, publisher: FeedPublisher, stands: SnapshotPosition, appends: int) -> None:
        begun_s = self._clock.monotonic()
        try:
            if await self._write(publisher, stands):
                self._made, self._appends, self._made_at_s = stands, appends, begun_s
                # The next snapshot uses the other slot, because readers may still read this one.
                self._slot = (self._slot + 1) % keys.SNAPSHOT_SLOTS
        except InvariantError:
            raise
        except ControlPlaneError as error:
            _log.info("snapshot of the feed not written", error=str(error))
        finally:
            took_s = self._clock.monotonic() - begun_s
            self._not_before_s = self._clock.monotonic() + max(PAUSE_S, REST * took_s)
            self._task = None

    async def _write(self, publisher: FeedPublisher, stands: SnapshotPosition) -> bool:
        """Write the snapshot; return False if a new epoch has begun, so that it is invalid."""
        writer = SnapshotWriter(self._feed, self._slot, stands)
        count = 0
        for kind, told in self._pages():
            if publisher.epoch != stands.epoch:
                return False
            await writer.add(encode_page(kind, told))
            count += len(told)
        await writer.finish()
        _log.debug("snapshot of the feed written", epoch=stands.epoch, number=stands.number, objects=count)
        return True

    def _pages(self) -> Iterator[tuple[str, list[FactRow]]]:
        for resource, store in self._informers.stores():
            items = store.items()
            for start in range(0, len(items), PAGE_OBJECTS):
                told = [self._encoded(item) for item in items[start : start + PAGE_OBJECTS]]
                yield resource.plural, [each for each in told if each is not None]

    def _encoded(self, item: Any) -> FactRow | None:
        fact = self._fact_of(item)
        if fact is None:
            return None
        meta = metadata_of(item)
        return object_key(meta), meta.version, fact
