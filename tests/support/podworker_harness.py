"""A pod worker beside a small cluster: the harness of its tests."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import msgspec

from slipway.crd.meta import TEARDOWN_FINALIZER, RawObject
from slipway.crd.resolve import resolve
from slipway.crd.transitions import id_of, record
from slipway.crd.v1alpha1 import Admission, Allocation, Placement
from slipway.errors import ControlPlaneError
from slipway.kube.errors import Verb
from slipway.kube.objects import ConfigMap, Pod, Service
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, RESOURCE_POOLS, SERVICES
from slipway.model.lifecycle import Event
from slipway.model.times import format_time
from slipway.podworker.main import make_consumer, make_poller, make_worker
from slipway.podworker.poll import Poller
from slipway.podworker.ports import Pinger
from slipway.podworker.settings import Settings
from slipway.podworker.worker import Worker
from slipway.runtime.clock import SeededRandom
from slipway.streams.consumer import WorkConsumer
from slipway.streams.ports import Streams, WorkHint
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish, look
from tests.support.virtual_time import VirtualClock, run_virtual

SETTINGS = Settings(namespace="slipway-system", worker_patience_s=15.0, worker_stuck_after_s=600.0)
READS = frozenset({Verb.GET, Verb.LIST, Verb.WATCH, Verb.LOG})


class CrashError(BaseException):
    """The end of the process: no code catches it."""


class Calls:
    """Counts the calls of a client, and can make one of them fail before or after it took effect."""

    def __init__(self, kube: CoreKube) -> None:
        self.seen: list[tuple[Verb, str]] = []
        self.hook: Callable[[Verb, str], Awaitable[None]] | None = None
        """awaited before each call: the actions of other processes"""
        self._number: ContextVar[int] = ContextVar("number")
        self._fail: Callable[[int, str], BaseException | None] = lambda _number, _moment: None
        kube.before, kube.after = self._before, self._after

    @property
    def writes(self) -> list[tuple[Verb, str]]:
        return [call for call in self.seen if call[0] not in READS]

    def fail_with(self, error: Callable[[int, str], BaseException | None]) -> None:
        """Let each call raise `error(number of the call, "before" or "after")` unless that is None."""
        self._fail = error

    def fail(self, error: ControlPlaneError, *calls: tuple[Verb, str]) -> None:
        """Let every such call fail with `error`."""
        self._fail = lambda number, moment: error if moment == "before" and self.seen[number] in calls else None

    async def _before(self, verb: Verb, plural: str) -> None:
        if self.hook is not None:
            await self.hook(verb, plural)
        number = len(self.seen)
        self.seen.append((verb, plural))
        self._number.set(number)
        await asyncio.sleep(0)
        self._raise("before", number)

    async def _after(self, _verb: Verb, _plural: str) -> None:
        self._raise("after", self._number.get())

    def _raise(self, moment: str, number: int) -> None:
        error = self._fail(number, moment)
        if error is not None:
            raise error


class PodWorkerHarness:
    """A cluster and a worker: `kube` is the test's own client, `calls` records those of the worker's client."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.core = a_core(self.clock.now)
        self.kube = a_client(self.core)
        self.worker, self.calls = self.another_worker()

    def another_worker(self, settings: Settings = SETTINGS) -> tuple[Worker, Calls]:
        """A worker process with empty memory, and its calls; from now on `poller` belongs to it."""
        its = a_client(self.core, seed=2)
        worker = make_worker(its, settings, self.clock, SeededRandom(7))
        self._its = its
        self.poller = make_poller(its, worker, settings, self.clock, SeededRandom(8), None)
        return worker, Calls(its)

    def another_poller(self, pinger: Pinger) -> Poller:
        """A poller of the first worker that pings a Redis."""
        return make_poller(self._its, self.worker, SETTINGS, self.clock, SeededRandom(8), pinger)

    def a_body(self, name: str = "job", **spec: Any) -> RawObject:
        """A hand-written allocation of one rank."""
        return a_manifest(name, **spec)

    def a_consumer(self, streams: Streams, settings: Settings = SETTINGS) -> WorkConsumer:
        """The consumer that feeds the first worker."""
        return make_consumer(streams, self.worker, settings, self.clock)

    async def handle(self, name: str = "job", worker: Worker | None = None) -> None:
        """Let the worker handle one hint for the allocation."""
        allocation = await look(self.kube, name)
        await (worker or self.worker).handle(hint_for(allocation))

    async def assign(self, *nodes: str, name: str = "job", **spec: Any) -> Allocation:
        """Create an admitted allocation, one rank per node (`n0` alone when none is given)."""
        placed = nodes or ("n0",)
        await self.kube.create(ALLOCATIONS, a_manifest(name, ranks=len(placed), **spec), namespace="default")
        return await self.admit(*placed, name=name)

    async def admit(self, *nodes: str, name: str = "job") -> Allocation:
        """Write what the scheduler writes: the finalizer, then the admission."""
        await self.kube.patch(
            ALLOCATIONS, name, {"metadata": {"finalizers": [TEARDOWN_FINALIZER]}}, namespace="default"
        )
        allocation = await look(self.kube, name)
        pool = await self.kube.get(RESOURCE_POOLS, allocation.spec.pool)
        admission = Admission(
            decision_id=f"d{allocation.status.attempt}",
            epoch=1,
            attempt=allocation.status.attempt,
            at=format_time(self.clock.now()),
            spec_hash=resolve(allocation, pool).spec_hash,
            placements=[Placement(rank=rank, node=node) for rank, node in enumerate(nodes)],
        )
        return await self.write(name, Event.ASSIGNED, admission=admission)

    async def write(self, name: str, event: Event, **changes: Any) -> Allocation:
        """Commit a transition as another service."""
        allocation = record(await look(self.kube, name), event, now=self.clock.now(), **changes)
        return await self.kube.replace_status(ALLOCATIONS, allocation)

    async def set_status(self, name: str = "job", **changes: Any) -> Allocation:
        """Change fields of the status."""
        allocation = await look(self.kube, name)
        status = msgspec.structs.replace(allocation.status, **changes)
        return await self.kube.replace_status(ALLOCATIONS, msgspec.structs.replace(allocation, status=status))

    async def cancel(self, name: str = "job") -> None:
        """Cancel the allocation, as a user's kill does."""
        await self.kube.patch(ALLOCATIONS, name, {"spec": {"desired": "Stopped"}}, namespace="default")

    async def pods(self) -> list[Pod]:
        return (await self.kube.list(PODS, namespace="default")).items

    async def configmaps(self) -> list[ConfigMap]:
        return (await self.kube.list(CONFIG_MAPS, namespace="default", label_selector="slipway.dev/attempt")).items

    async def services(self) -> list[Service]:
        return (await self.kube.list(SERVICES, namespace="default")).items

    async def finish_deletes(self) -> None:
        """End the pods that are being deleted and remove their finalizers, as the kubelet and the watcher do."""
        for pod in await self.pods():
            if pod.metadata.deletion_timestamp is not None:
                gone: RawObject = {"metadata": {"finalizers": None}}
                await self.kube.patch(PODS, pod.metadata.name, gone, namespace="default")
        for pod in await self.pods():
            if pod.metadata.deletion_timestamp is not None:
                await self.kube.delete(PODS, pod.metadata.name, namespace="default", grace_s=0)


def hint_for(allocation: Allocation) -> WorkHint:
    """The hint that the scheduler or the watcher sends for the allocation."""
    return WorkHint(namespace=allocation.metadata.namespace, allocation=id_of(allocation))


def run_with_harness(test: Callable[[PodWorkerHarness], Coroutine[Any, Any, None]]) -> None:
    """Run `test` on virtual time beside a furnished cluster."""

    async def main() -> None:
        harness = PodWorkerHarness()
        await furnish(harness.kube)
        await test(harness)

    run_virtual(main)


async def ended_with(call: Awaitable[None]) -> ControlPlaneError | None:
    """The error of a call, or None."""
    try:
        await call
    except ControlPlaneError as error:
        return error
    return None
