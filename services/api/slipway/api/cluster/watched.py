"""A view of all objects of one kind, kept in memory by a watch, for the many reads of requests and loops of the api.

Owns when the view answers, when an answer is marked as old, and when a read is refused. Must not know what the objects
mean. The reflector (`slipway.kube.reflector`) makes the first LIST and the watch.

Promises
- A read makes no call of Kubernetes. All objects are LISTed once, when the process starts, and again only when the
  resource version of the watch has expired.
- A read before the first LIST is complete waits for it, up to `SYNC_S`; then it raises UnavailableError, as a failed
  LIST would.
- After `wrote`, reads wait until the watch has shown that write, at most `OWN_WRITE_S`.
- While the watch is interrupted, reads return the objects as last observed, and `age_s` is the age of that
  observation. Beyond `OLD_MAX_S` reads raise UnavailableError.

Not promised: to be current. Writes of other processes arrive with the delay of the watch, usually some milliseconds; a
connection that died silently is noticed within the silence limit of the client (`Timeouts.silence_s`). Code that
deletes or ends an object reads the API server.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from slipway.api.ports import WatchingKube
from slipway.errors import UnavailableError
from slipway.kube.reflector import Reflector
from slipway.kube.resources import Resource
from slipway.kube.scope import StopSignal
from slipway.kube.store import Indexer, ObjectStore
from slipway.kube.wire import metadata_of
from slipway.runtime.clock import Clock, Random

T = TypeVar("T")

SYNC_S = 5.0
"""How long a read waits for the first LIST."""
OWN_WRITE_S = 1.0
"""How long a read waits for the watch to show a write of this process."""
LOOK_S = 0.005
OLD_MAX_S = 300.0
"""A read of a view that is older is refused, because nodes may have been added and deleted since."""
OWN_WRITES_MAX = 1_000
RETRY_S = 1.0


class WatchedObjects(Generic[T]):
    """See the module's promises. `run` keeps it filled."""

    def __init__(
        self,
        kube: WatchingKube,
        resource: Resource[T],
        clock: Clock,
        random: Random,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        indexers: Mapping[str, Indexer[T]] | None = None,
    ) -> None:
        self.store = ObjectStore[T](indexers)
        self._resource = resource
        self._clock = clock
        self._reflector = Reflector(
            kube, resource, self.store, clock=clock, random=random, namespace=namespace, label_selector=label_selector
        )
        self._written: dict[str, float] = {}
        """{uid: until when reads wait, monotonic} of own writes that the watch has not shown yet"""

    @property
    def plural(self) -> str:
        """The plural name of the resource."""
        return self._resource.plural

    @property
    def age_s(self) -> float:
        """The age of the view in seconds while its watch is interrupted; 0 while the watch runs."""
        return self._reflector.silent_s if self._reflector.interruption else 0.0

    @property
    def is_running(self) -> bool:
        """Whether there is a view and its watch is not interrupted."""
        return self._reflector.synced and not self._reflector.interruption

    @property
    def is_away(self) -> bool:
        """Whether there is no view and the last attempt at one failed, so that a read would wait and probably fail."""
        return not self._reflector.synced and bool(self._reflector.interruption)

    async def run(self, stop: StopSignal) -> None:
        """Watch until `stop` is set."""
        await self._reflector.run(stop)

    async def items(self) -> list[T]:
        """Return all objects, in no promised order.

        Raises:
            UnavailableError: there is no view yet, or it is older than `OLD_MAX_S`.
        """
        await self.ready()
        return self.store.items()

    async def ready(self) -> None:
        """Wait until the view can be read. Raises as `items` does."""
        if not self._reflector.synced:
            with suppress(TimeoutError):
                async with asyncio.timeout(SYNC_S):
                    await self._reflector.wait_synced()
        if not self._reflector.synced:
            why = self._reflector.interruption or f"no answer within {SYNC_S:g} s"
            raise UnavailableError(f"the {self.plural} are not known yet: {why}", retry_after_s=RETRY_S)
        if self.age_s > OLD_MAX_S:
            raise UnavailableError(
                f"there has been no news of the {self.plural} for {self.age_s:.0f} s: {self._reflector.interruption}",
                retry_after_s=RETRY_S,
            )
        if self._written:
            await self._await_own_writes()

    def wrote(self, obj: T) -> None:
        """Note that the API server answered a write of this process with this object."""
        meta = metadata_of(obj)
        self.store.expect(meta.uid, meta.version)
        if not self.store.is_current(meta.uid) and len(self._written) < OWN_WRITES_MAX:
            self._written[meta.uid] = self._clock.monotonic() + OWN_WRITE_S

    def warnings(self) -> list[str]:
        """Return a warning about the age of an answer; empty while the watch runs."""
        if not self.age_s:
            return []
        return [
            f"the {self.plural} are shown as they were {self.age_s:.0f} s ago, because their watch is interrupted: "
            f"{self._reflector.interruption}"
        ]

    async def _await_own_writes(self) -> None:
        while True:
            now = self._clock.monotonic()
            self._written = {
                uid: until for uid, until in self._written.items() if until > now and not self.store.is_current(uid)
            }
            if not self._written:
                return
            await self._clock.sleep(LOOK_S)
