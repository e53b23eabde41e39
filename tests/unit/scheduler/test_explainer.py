"""When the reasons of waits are written: a new gate soon, new numbers now and then, and never in the way of
decisions."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from slipway.crd.meta import TEARDOWN_FINALIZER, condition_of
from slipway.crd.transitions import key_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError
from slipway.facts.custom_resources import allocation_fact
from slipway.kube.resources import ALLOCATIONS, Resource
from slipway.model.facts import AllocationFact
from slipway.model.ledger import Decision
from slipway.model.reasons import NEVER, Gate
from slipway.runtime.clock import SeededRandom
from slipway.scheduler.apply import Applier
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.explainer import (
    GATES_BURST,
    GATES_PER_S,
    INTERVAL_MAX_S,
    INTERVAL_S,
    TEXTS_BURST,
    WRITES_MAX,
    Explainer,
    ExplainResult,
)
from slipway.scheduler.plan.explanation.explanations import Explanations
from slipway.scheduler.plan.state.pending import PendingWork
from slipway.scheduler.plan.state.plan_types import Explanation
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_core, furnish, launch, look
from tests.support.virtual_time import VirtualClock, run_virtual

REFUSED = "refused"


class CountingKube(CoreKube):
    """A client that counts its reads, and refuses to write a status of `refused`."""

    reads = 0

    async def get(self, resource: Resource[Any], name: str, *, namespace: str | None = None) -> Any:
        self.reads += 1
        return await super().get(resource, name, namespace=namespace)

    async def replace_status(self, resource: Resource[Any], body: Any) -> Any:
        if body["metadata"]["name"] == REFUSED:
            raise DeniedError("forbidden")
        return await super().replace_status(resource, body)


class ExplainerHarness:
    """An explainer beside a cluster in which everything waits for what the test says."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        core = a_core(self.clock.now)
        self.kube = CountingKube(core, random=SeededRandom(1))
        self.cluster = Cluster(self.clock.now)
        self.explainer = Explainer("default", Applier(self.kube, self.clock), self.clock, self.cluster)
        self.backlog = PendingWork()

    async def add(self, *names: str) -> None:
        """Launch these allocations; each of them waits."""
        for name in names:
            self.observe(f"default/{name}", await launch(self.kube, name))

    def observe(self, key: str, allocation: Allocation | None, _known: AllocationFact | None = None) -> None:
        """Store the allocation in the tables and the backlog, as a cycle does."""
        assert allocation is not None
        assert key == key_of(allocation)
        fact = allocation_fact(allocation, None)
        self.cluster.allocations.put(key, fact, allocation.metadata.version)
        self.backlog.put(fact, self.clock.now())

    async def say(self, message: str, gate: Gate = Gate.NO_FIT, *, is_deciding: bool = False) -> ExplainResult:
        """Run the explainer after a tick in which all allocations wait for `gate`."""
        own = {fact.key: Explanation(gate=gate, message=message) for fact in self.cluster.allocations.values()}
        explained = Explanations(self.backlog, {}, (), own)
        return await self.explainer.write(explained, self.observe, is_deciding=is_deciding)

    async def text(self, name: str) -> tuple[str, str]:
        """(gate, message) of the condition Admitted; empty without the condition."""
        waiting = condition_of((await look(self.kube, name)).status.conditions, "Admitted")
        return (waiting.reason, waiting.message) if waiting is not None else ("", "")


def run_with_harness(test: Callable[[ExplainerHarness], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        harness = ExplainerHarness()
        await furnish(harness.kube)
        await test(harness)

    run_virtual(main)


def test_many_are_told_over_several_ticks() -> None:
    """A tick writes `WRITES_MAX` reasons at most, and asks for the next tick until all are written."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add(*(f"job-{number}" for number in range(2 * WRITES_MAX + 5)))
        said = [await harness.say("no place") for _ in range(4)]
        assert [each.written for each in said] == [WRITES_MAX, WRITES_MAX, 5, 0]
        assert [each.again_at is None for each in said] == [False, False, True, True]

    run_with_harness(test)


def test_while_work_is_decided_few_are_told() -> None:
    """Ticks follow one another then, and each write delays them. In the end all reasons are written."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add(*(f"job-{number}" for number in range(GATES_BURST + 50)))
        written = 0
        for _ in range(40):
            written += (await harness.say("no place", is_deciding=True)).written
            await harness.clock.sleep(0.05)
        assert GATES_BURST < written <= GATES_BURST + 2 * GATES_PER_S
        await harness.clock.sleep(2)
        for _ in range(3):
            written += (await harness.say("no place")).written
        assert written == GATES_BURST + 50

    run_with_harness(test)


def test_numbers_are_told_again_after_longer_and_longer() -> None:
    """A text that changes all the time is written a few times; when it stops changing, the last text is written."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add("job")
        written = 0
        for second in range(round(INTERVAL_MAX_S)):
            written += (await harness.say(f"{second} in use", Gate.WAITING_FOR_QUOTA)).written
            await harness.clock.sleep(1)
        assert written <= 7
        said = await harness.say("100 in use", Gate.WAITING_FOR_QUOTA)
        assert said.again_at is not None
        await harness.clock.sleep(said.again_at - harness.clock.now())
        await harness.say("100 in use", Gate.WAITING_FOR_QUOTA)
        assert await harness.text("job") == ("WaitingForQuota", "100 in use")

    run_with_harness(test)


def test_numbers_of_many_are_told_again_few_at_a_time() -> None:
    """Few are written at a time, however many wait for the same reason."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add(*(f"job-{number}" for number in range(30)))
        for _ in range(2):
            await harness.say("1 in use")
        await harness.clock.sleep(2 * INTERVAL_S)
        assert [(await harness.say("2 in use")).written for _ in range(3)] == [TEXTS_BURST, 0, 0]

    run_with_harness(test)


def test_another_gate_is_told_at_once() -> None:
    """The gate is also written right after another write, and when new numbers would still have to wait."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add("job")
        for second in range(20):
            await harness.say(f"{second} in use", Gate.WAITING_FOR_QUOTA)
            await harness.clock.sleep(1)
        await harness.say("no place", Gate.NO_FIT)
        assert await harness.text("job") == ("NoFit", "no place")

    run_with_harness(test)


def test_what_may_not_be_written_is_tried_again_later_and_nobody_waits_for_it() -> None:
    """Other reasons are written, and the explainer does not run in a loop."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add(REFUSED, "job")
        said = await harness.say("no place")
        assert said.written == 1
        assert said.again_at is not None
        assert said.again_at >= harness.clock.now() + INTERVAL_S - 0.001
        assert await harness.text("job") == ("NoFit", "no place")

    run_with_harness(test)


def test_what_the_api_has_made_is_told_without_a_read() -> None:
    """The fact has the whole status, so the first and the second reason need no read."""

    async def test(harness: ExplainerHarness) -> None:
        made = await launch(harness.kube, "job")
        patch = {"metadata": {"finalizers": [TEARDOWN_FINALIZER]}}
        made = await harness.kube.patch(ALLOCATIONS, "job", patch, namespace="default")
        harness.observe("default/job", made)
        await harness.say("no place")
        await harness.say("too little", Gate.WAITING_FOR_QUOTA)
        assert harness.kube.reads == 0
        assert await harness.text("job") == ("WaitingForQuota", "too little")

    run_with_harness(test)


def test_a_wait_that_nothing_ends_is_stalled() -> None:
    """The same write sets the condition Stalled, with the gate and the message. It ends with the gate, and at
    admission."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add("job")
        await harness.say(f"{NEVER} with the pool's current nodes: even when empty, the pool has room for 1 of 4 ranks")
        stalled = condition_of((await look(harness.kube, "job")).status.conditions, "Stalled")
        assert stalled is not None
        assert (stalled.status, stalled.reason, stalled.message) == (
            "True",
            "NoFit",
            f"{NEVER} with the pool's current nodes: even when empty, the pool has room for 1 of 4 ranks",
        )
        await harness.clock.sleep(INTERVAL_MAX_S)
        await harness.say(f"{NEVER} with the pool's current nodes: even when empty, the pool has room for 2 of 4 ranks")
        again = condition_of((await look(harness.kube, "job")).status.conditions, "Stalled")
        assert again is not None
        assert "2 of 4" in again.message
        assert again.last_transition_time == stalled.last_transition_time
        await harness.clock.sleep(INTERVAL_MAX_S)
        await harness.say("no room now")
        assert condition_of((await look(harness.kube, "job")).status.conditions, "Stalled") is None

    run_with_harness(test)


def test_what_is_admitted_is_not_stalled() -> None:
    """Nodes came, and the next tick admitted the work before another gate was written."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add("job")
        await harness.say(
            f"{NEVER} with the pool's current nodes: even when empty, the pool has no place for a rank like this"
        )
        found = await look(harness.kube, "job")
        admit = Decision(
            id="1-1-0", epoch=1, allocation="default/job", uid=found.metadata.uid, attempt=1, placements=(0,)
        )
        await Applier(harness.kube, harness.clock).decision(admit, ("n0",))
        conditions = (await look(harness.kube, "job")).status.conditions
        assert [each.type for each in conditions] == ["Admitted"]

    run_with_harness(test)


@pytest.mark.parametrize("gate", [Gate.INVALID, Gate.NOT_ENOUGH_PODS, Gate.EXCEEDS_MAX_QUOTA])
def test_gates_that_no_wait_opens_are_stalled(gate: Gate) -> None:
    """The name of such a gate alone states that no wait helps."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add("job")
        await harness.say("more than it can ever get", gate)
        assert condition_of((await look(harness.kube, "job")).status.conditions, "Stalled") is not None

    run_with_harness(test)


@pytest.mark.parametrize(
    "gate", [Gate.NO_FIT, Gate.WAITING_FOR_QUOTA, Gate.UNKNOWN_QUEUE, Gate.UNKNOWN_POOL, Gate.HELD, Gate.BACKOFF]
)
def test_what_waits_for_others_is_not_stalled(gate: Gate) -> None:
    """Such work waits for its turn, for a place, or for an object that may be created later."""

    async def test(harness: ExplainerHarness) -> None:
        await harness.add("job")
        await harness.say("not yet", gate)
        assert condition_of((await look(harness.kube, "job")).status.conditions, "Stalled") is None

    run_with_harness(test)
