"""When a watcher dies before, or right after, any of its writes, the next one finishes with the same result."""

import asyncio

import pytest

from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.errors import Verb
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.runtime.service import ServiceStop
from tests.support.watcher_harness import WatcherHarness, play

READS = (Verb.GET, Verb.LIST, Verb.WATCH, Verb.LOG)
WRITES = 12
"""Statuses (pulling and starting, running, terminating, restarted, ...), finalizers and leases of the story below."""


def is_let_go(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.TERMINATED and TEARDOWN_FINALIZER not in allocation.metadata.finalizers


class CrashAtWrite:
    """Stops one process for ever at its n-th write that is not a lease."""

    def __init__(self, number: int, moment: str) -> None:
        self._number = number
        self._moment = moment
        self._count = 0
        self.happened = asyncio.Event()

    async def before(self, verb: Verb, plural: str) -> None:
        await asyncio.sleep(0)
        if verb not in READS and plural != "leases":
            self._count += 1
            await self._at("before")

    async def after(self, verb: Verb, plural: str) -> None:
        if verb not in READS and plural != "leases":
            await self._at("after")

    async def _at(self, moment: str) -> None:
        if self._count == self._number and moment == self._moment:
            self.happened.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_the_next_watcher_finishes(number: int, moment: str) -> None:
    """The next watcher reaches the same end, exits, attempts and stream, wherever the first one died."""

    async def story(harness: WatcherHarness) -> None:
        crash = CrashAtWrite(number, moment)
        harness.its.before, harness.its.after = crash.before, crash.after
        harness.kubelet.runs_s, harness.kubelet.codes = {0: 1.0, 1: 1.0}, {1: 7}
        stop = ServiceStop()
        first = asyncio.ensure_future(harness.watcher.run(stop))
        await harness.launch("n0", "n1", maxRestarts=1)
        second: asyncio.Future[None] | None = None
        admitted = False
        for _ in range(2400):
            await asyncio.sleep(0.05)
            if crash.happened.is_set() and second is None:
                first.cancel()
                await asyncio.wait({first})
                harness.its.before, harness.its.after = WatcherHarness().its.before, WatcherHarness().its.after
                second = asyncio.ensure_future(harness.another("two").run(stop))
            found = await harness.until(lambda _: True, "a look")
            if found.status.attempt == 2 and not admitted:
                harness.kubelet.codes = {}
                await harness.worker_harness.admit("n0", "n1")
                admitted = True
            if is_let_go(found):
                break
        found = await harness.until(is_let_go, "the end")
        await asyncio.sleep(60)
        status = found.status
        assert (status.result, status.attempt, status.restarts) == (Result.SUCCEEDED, 2, 1)
        assert [rank.exit_code for rank in status.ranks or []] == [0, 0]
        assert [entry.seq for entry in status.transitions] == list(range(1, status.seq + 1))
        assert [stored.event.seq for stored in await harness.stream(found)] == list(range(1, status.seq + 1))
        assert await harness.pods() == []
        assert crash.happened.is_set()
        stop.set()
        await asyncio.wait({task for task in (first, second) if task is not None})

    play(story, watches=False)
