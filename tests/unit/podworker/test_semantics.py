"""The promises of the pod worker about creates and deletes, one per test. Virtual time throughout.

Tests of one worker run it beside a small cluster (`PodWorkerHarness`); tests of the final state run the whole system.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from slipway.errors import ControlPlaneError, InvalidError, QuotaExceededError, ThrottledError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, SERVICES, Resource
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Result
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.kubelet import Script
from tests.support.podworker_harness import READS, SETTINGS, PodWorkerHarness, ended_with, hint_for, run_with_harness
from tests.support.small_cluster import look
from tests.support.world import Setup, World, run_world

PODS_CREATE, PODS_DELETE = (Verb.CREATE, "pods"), (Verb.DELETE, "pods")
CONFIGMAP_CREATE = (Verb.CREATE, "configmaps")
COUNT = 15


# --- one worker -------------------------------------------------------------------------------------------------------


class FailingCalls:
    """Makes the first calls of one kind fail, and records when each was made."""

    def __init__(self, harness: PodWorkerHarness, call: tuple[Verb, str], *errors: ControlPlaneError) -> None:
        self.at_s: list[float] = []
        left = list(errors)

        def fail(number: int, moment: str) -> BaseException | None:
            if moment != "before" or harness.calls.seen[number] != call:
                return None
            self.at_s.append(harness.clock.monotonic())
            return left.pop(0) if left else None

        harness.calls.fail_with(fail)

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.at_s, self.at_s[1:], strict=False)]


async def ended_attempt(harness: PodWorkerHarness) -> None:
    """Create a launched allocation whose attempt must be torn down."""
    await harness.assign()
    await harness.handle()
    await harness.cancel()
    await harness.write("job", Event.TERMINATING)


@pytest.mark.parametrize("kind", ["create", "delete"])
def test_creates_and_deletes_are_retried_with_jitter_and_retry_after(kind: str) -> None:
    """Creates and deletes are retried with random pauses below a doubling limit; Retry-After of the server is the
    minimum."""

    async def story(harness: PodWorkerHarness) -> None:
        call = PODS_CREATE if kind == "create" else PODS_DELETE
        away = UnavailableError("away")
        if kind == "create":
            await harness.assign()
        else:
            await ended_attempt(harness)
        failing = FailingCalls(harness, call, away, away, away, ThrottledError("slow down", retry_after_s=7.0))
        await harness.handle()
        assert len(failing.at_s) == 5
        for number, pause in enumerate(failing.pauses[:3]):
            assert 0.0 <= pause <= 0.2 * 2**number
        assert len(set(failing.pauses[:3])) == 3
        assert 7.0 <= failing.pauses[3] <= 7.2
        [pod] = await harness.pods()
        assert (pod.metadata.deletion_timestamp is not None) is (kind == "delete")

    run_with_harness(story)


def test_a_delete_cancels_a_pending_create_without_a_call_to_kubernetes() -> None:
    """When an allocation is cancelled before its hint is handled, no create or delete is sent. Before the admission it
    costs one read."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        await harness.cancel()
        await harness.handle()
        assert harness.calls.writes == []
        harness.calls.seen.clear()
        await harness.kube.create(ALLOCATIONS, harness.a_body("other"), namespace="default")
        await harness.cancel("other")
        await harness.handle("other")
        assert harness.calls.seen == [(Verb.GET, "allocations")]
        assert (await harness.pods(), await harness.configmaps()) == ([], [])

    run_with_harness(story)


def test_a_delete_cancels_a_create_that_waits_for_its_next_try() -> None:
    """A launch with a temporary refusal reads the allocation before each try: after the cancel it sends nothing
    more."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(UnavailableError("away"), PODS_CREATE)
        waiting = asyncio.ensure_future(harness.handle())
        await harness.clock.sleep(3)
        tried = harness.calls.seen.count(PODS_CREATE)
        await harness.cancel()
        await waiting
        assert harness.calls.seen.count(PODS_CREATE) == tried
        assert (await harness.pods(), await harness.configmaps()) == ([], [])

    run_with_harness(story)


def test_a_delete_during_a_create_waits_for_it() -> None:
    """A cancel during the create of a pod waits: the create is finished, then the pod is deleted."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        order: list[str] = []
        is_creating = asyncio.Event()

        async def meanwhile(verb: Verb, plural: str) -> None:
            if (verb, plural) == PODS_CREATE:
                order.append("create begins")
                is_creating.set()
                await harness.clock.sleep(2.0)
                order.append("create ends")
            elif verb is Verb.DELETE:
                order.append("delete")

        harness.calls.hook = meanwhile
        creating = asyncio.ensure_future(harness.handle())
        await is_creating.wait()
        await harness.cancel()
        deleting = asyncio.ensure_future(harness.handle())
        await asyncio.gather(creating, deleting)
        await harness.finish_deletes()
        assert order.index("delete") > max(at for at, what in enumerate(order) if what == "create ends")
        assert (await harness.pods(), await harness.configmaps()) == ([], [])

    run_with_harness(story)


def test_a_duplicate_create_is_ignored() -> None:
    """After a second hint, at the same time or later, in this process or another, each object is still created once."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        await asyncio.gather(harness.handle(), harness.handle(), harness.handle())
        assert (harness.calls.seen.count(CONFIGMAP_CREATE), harness.calls.seen.count(PODS_CREATE)) == (1, 2)
        harness.calls.seen.clear()
        await harness.handle()
        assert harness.calls.seen == [(Verb.GET, "allocations")]
        rival, calls = harness.another_worker()
        await harness.handle(worker=rival)
        assert calls.writes == []

    run_with_harness(story)


def test_a_five_way_pool_never_exceeds_its_concurrency() -> None:
    """Forty launches at once, then forty teardowns, on a server that takes half a second a call: five creates, bindings
    or deletes are under way at any time, and no fewer while there is work."""

    async def story(harness: PodWorkerHarness) -> None:
        settings = msgspec.structs.replace(SETTINGS, worker_calls=5, worker_patience_s=600.0)
        worker, calls = harness.another_worker(settings)
        under_way, most = 0, 0

        async def slowly(verb: Verb, _plural: str) -> None:
            nonlocal under_way, most
            if verb in READS or verb is Verb.UPDATE:
                return
            under_way += 1
            most = max(most, under_way)
            await harness.clock.sleep(0.5)
            under_way -= 1

        names = [f"job{number}" for number in range(40)]
        for name in names:
            await harness.assign(name=name)
        calls.hook = slowly
        started_s = harness.clock.monotonic()
        await asyncio.gather(*(harness.handle(name, worker=worker) for name in names))
        assert most == 5
        # ConfigMap, pod and binding of each, five at a time.
        assert harness.clock.monotonic() - started_s == pytest.approx(40 * 3 * 0.5 / 5, abs=2.0)
        for name in names:
            await harness.cancel(name)
            await harness.write(name, Event.TERMINATING)
        most = 0
        await asyncio.gather(*(harness.handle(name, worker=worker) for name in names))
        assert most == 5
        assert all(pod.metadata.deletion_timestamp for pod in await harness.pods())

    run_with_harness(story)


def test_a_configmap_created_and_a_pod_refused_leave_nothing() -> None:
    """After a permanent refusal of the pod the watcher ends the allocation with the server's message, and the ConfigMap
    is deleted with the end."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        harness.calls.fail(InvalidError("spec.containers[0].image: bad"), PODS_CREATE)
        await harness.handle()
        assert len(await harness.configmaps()) == 1
        await harness.write("job", Event.TERMINATED, result=Result.INVALID)
        harness.calls.fail_with(lambda _call, _moment: None)
        await harness.handle()
        assert (await harness.pods(), await harness.configmaps(), await harness.services()) == ([], [], [])

    run_with_harness(story)


def test_a_quota_refusal_waits_is_explained_and_goes_on_when_the_quota_is_raised() -> None:
    """A quota refusal is never the user's failure: the condition has the server's message, and the same launch finishes
    when the quota has room."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(QuotaExceededError('pods "x" is forbidden: exceeded quota: slipway-quota'), PODS_CREATE)
        assert isinstance(await ended_with(harness.handle()), QuotaExceededError)
        allocation = await look(harness.kube)
        [told] = allocation.status.conditions
        assert (told.type, told.status, told.reason) == ("Stuck", "Unknown", "QuotaExceeded")
        assert "exceeded quota: slipway-quota" in told.message
        assert (allocation.status.phase, allocation.status.attempt) == (Phase.ASSIGNED, 1)
        harness.calls.fail_with(lambda _call, _moment: None)
        await harness.handle()
        allocation = await look(harness.kube)
        assert (allocation.status.conditions, allocation.status.attempt) == ([], 1)
        assert allocation.status.release is not None

    run_with_harness(story)


def test_an_invalid_answer_ends_with_the_servers_message() -> None:
    """422 is never retried: the server's message is on the allocation, and the watcher ends it with this message."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        words = 'Pod "x" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than limit'
        harness.calls.fail(InvalidError(words), PODS_CREATE)
        await harness.handle()
        assert harness.calls.seen.count(PODS_CREATE) == 1
        [told] = (await look(harness.kube)).status.conditions
        assert (told.type, told.status, told.reason, told.message) == ("Refused", "True", "InvalidSpec", words)

    run_with_harness(story)


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (
            'pods "x" is forbidden: error looking up service account team-a/reader: serviceaccount "reader" not found',
            "create it with `kubectl create serviceaccount reader --namespace team-a`, or name another one",
        ),
        (
            'pods "x" is forbidden: no PriorityClass with name urgent was found',
            "`kubectl get priorityclasses` lists what there is",
        ),
        (
            'pods "x" is forbidden: pod rejected: RuntimeClass "gvisor" not found',
            "`kubectl get runtimeclasses` lists what there is",
        ),
    ],
)
def test_what_a_pod_names_and_is_not_there_is_refused_with_the_next_step(words: str, step: str) -> None:
    """A pod that names a missing object is refused with the server's message and the next step."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(InvalidError(words), PODS_CREATE)
        await harness.handle()
        [told] = (await look(harness.kube)).status.conditions
        assert (told.reason, told.message) == ("InvalidSpec", f"{words}; {step}")

    run_with_harness(story)


def test_exhausted_retries_end_in_a_dead_letter_a_stuck_condition_and_an_admin_replay() -> None:
    """When the time for retries is over the hint becomes a dead letter and the allocation is Stuck. A replay of the
    letter sends the hint again, which finishes the launch."""

    async def story(harness: PodWorkerHarness) -> None:
        streams = MemoryStreams(MemoryServer(harness.clock))
        allocation = await harness.assign()
        harness.calls.fail(QuotaExceededError("exceeded quota: gpus"), PODS_CREATE)
        await streams.hints.send([hint_for(allocation)])
        async with asyncio.TaskGroup() as tasks:
            stop = asyncio.Event()
            tasks.create_task(harness.a_consumer(streams).run(stop))
            await harness.clock.sleep(SETTINGS.worker_stuck_after_s + 120)
            [letter] = await streams.dead.page()
            assert "gave up after 600 s: exceeded quota: gpus" in letter.cause
            [told] = (await look(harness.kube)).status.conditions
            assert (told.type, told.status, told.reason) == ("Stuck", "True", "QuotaExceeded")
            assert await streams.work_queue("x").backlog() == 0
            harness.calls.fail_with(lambda _call, _moment: None)
            await harness.clock.sleep(600)
            assert await harness.pods() == []
            assert await streams.dead.replay(letter.id)
            await harness.clock.sleep(5)
            assert (await look(harness.kube)).status.conditions == []
            assert [pod.spec.node_name for pod in await harness.pods()] == ["n0"]
            stop.set()

    run_with_harness(story)


# --- the whole system -------------------------------------------------------------------------------------------------


def play(story: Callable[[World], Awaitable[None]], *, latency_s: float = 0.002, **setup: Any) -> None:
    """Run a story on the whole system; each call takes up to `latency_s` to the server and back."""

    async def told(world: World) -> None:
        world.injector.latency_s = latency_s
        await story(world)
        assert world.broken == []

    run_world(told, Setup(**setup), seed=7)


async def ours(world: World) -> list[str]:
    """Every existing pod, ConfigMap and Service of an allocation."""
    found: list[str] = []
    kinds: list[Resource[Any]] = [PODS, CONFIG_MAPS, SERVICES]
    for kind in kinds:
        listed = await world.kube.list(kind, label_selector="slipway.dev/allocation-uid")
        found += [f"{kind.plural}/{item.metadata.name}" for item in listed.items]
    return found


async def create_and_delete(world: World) -> None:
    """Make fifteen launches, each cancelled at once."""
    names = [f"job{number}" for number in range(COUNT)]
    for name in names:
        await world.launch(name, ranks=2)
        await world.cancel(name)
    for name in names:
        ended = await world.when(lambda found: found.status.phase is Phase.TERMINATED, name=name)
        assert ended.status.result is Result.CANCELED
    await world.until(lambda: nothing(world), timeout_s=60)
    assert [each for each in world.kubelets.containers if each.ended_at is None] == []


async def nothing(world: World) -> bool:
    return await ours(world) == []


def test_fifteen_creates_and_fifteen_immediate_deletes_leave_nothing() -> None:
    """After fifteen creates and immediate deletes all allocations are Canceled; within a minute no object is left, and
    nothing runs."""
    play(create_and_delete)


def test_fifteen_creates_and_deletes_with_half_a_second_of_latency_leave_nothing() -> None:
    """Like the test above, with an API server that needs half a second on average for every call."""
    play(create_and_delete, latency_s=1.0)


def test_fifteen_deletes_in_the_middle_of_their_creates_leave_nothing() -> None:
    """With latency, fifteen allocations are cancelled as soon as their first pod exists; the late creates are found and
    deleted."""

    async def story(world: World) -> None:
        world.kubelets.script = lambda _attempt, _rank: Script()
        names = [f"job{number}" for number in range(COUNT)]
        for name in names:
            await world.launch(name, ranks=3, cpu="100m")

        async def cancel(name: str) -> None:
            await world.until(lambda: has_pod(world, name))
            await world.cancel(name)

        await asyncio.gather(*(cancel(name) for name in names))
        for name in names:
            await world.when(lambda found: found.status.phase is Phase.TERMINATED, name=name, timeout_s=300)
        await world.until(lambda: nothing(world), timeout_s=60)
        assert [each for each in world.kubelets.containers if each.ended_at is None] == []

    play(story, latency_s=1.0)


async def has_pod(world: World, name: str) -> bool:
    pods = await world.kube.list(PODS, namespace="default")
    return any(pod.metadata.name.startswith(f"{name}-") for pod in pods.items)
