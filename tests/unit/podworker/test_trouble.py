"""What a launch reports and does when it cannot continue: refusals, waits, Stuck, a namespace that is being deleted."""

import functools

import pytest

from slipway.crd.meta import Condition
from slipway.errors import (
    ControlPlaneError,
    DeniedError,
    InvalidError,
    PermanentError,
    QuotaExceededError,
    StaleError,
    ThrottledError,
    TooLargeError,
    TransientError,
)
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, NAMESPACES, PODS, RESOURCE_POOLS
from slipway.model.lifecycle import Event
from slipway.model.times import format_time, parse_time
from slipway.podworker.status import set_condition
from tests.support.podworker_harness import PodWorkerHarness, ended_with, hint_for, run_with_harness
from tests.support.small_cluster import look

PODS_CREATE = (Verb.CREATE, "pods")


async def condition(harness: PodWorkerHarness) -> Condition:
    """The only condition of the allocation."""
    [found] = (await look(harness.kube)).status.conditions
    return found


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidError("spec.containers[0].image: bad"), "InvalidSpec"),
        (TooLargeError("request is too large"), "TooLarge"),
    ],
)
def test_what_the_server_refuses_for_good_is_said_in_its_own_words(error: ControlPlaneError, reason: str) -> None:
    """A permanent refusal is the condition Refused, with the server's message and the attempt; the hint is done and
    does not become a dead letter."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(error, PODS_CREATE)
        await harness.handle()
        found = await condition(harness)
        assert (found.type, found.status, found.reason, found.message) == ("Refused", "True", reason, str(error))
        assert found.observed_generation == 1
        assert (await look(harness.kube)).status.release is None

    run_with_harness(story)


def test_an_unsound_spec_is_refused_with_the_field() -> None:
    """An invalid spec is refused with the field, because the worker resolves the spec as the scheduler does."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(
            template={"spec": {"containers": [{"name": "main", "image": "i", "command": ["c"]}], "hostNetwork": True}}
        )
        await harness.handle()
        found = await condition(harness)
        assert (found.type, found.reason) == ("Refused", "InvalidSpec")
        assert "hostNetwork" in found.message

    run_with_harness(story)


@pytest.mark.parametrize("error", [QuotaExceededError("exceeded quota: gpus"), ThrottledError("slow down")])
def test_transient_trouble_is_retried_in_place_and_never_the_users_failure(error: TransientError) -> None:
    """A temporary failure is retried, and is never the user's failure; when it is over the launch continues."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail_with(
            lambda call, when: (
                error
                if when == "before"
                and harness.calls.seen[call] == PODS_CREATE
                and harness.calls.seen.count(PODS_CREATE) < 4
                else None
            )
        )
        await harness.handle()
        allocation = await look(harness.kube)
        assert allocation.status.release is not None
        assert allocation.status.conditions == []
        assert harness.calls.seen.count((Verb.CREATE, "configmaps")) == 1

    run_with_harness(story)


def test_a_waiting_hint_is_released_and_states_its_reason() -> None:
    """A hint that has to wait is returned after a while, so that other hints do not wait behind it; until it is
    delivered again, explain shows the reason."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(QuotaExceededError("exceeded quota: gpus"), PODS_CREATE)
        started_s = harness.clock.monotonic()
        assert isinstance(await ended_with(harness.handle()), QuotaExceededError)
        assert harness.clock.monotonic() - started_s <= 16
        found = await condition(harness)
        assert (found.type, found.status, found.reason) == ("Stuck", "Unknown", "QuotaExceeded")

    run_with_harness(story)


def test_the_release_clears_the_stuck_condition() -> None:
    """The release removes the condition of the wait."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(QuotaExceededError("exceeded quota: gpus"), PODS_CREATE)
        await ended_with(harness.handle())
        harness.calls.fail_with(lambda _call, _when: None)
        await harness.handle()
        assert (await look(harness.kube)).status.conditions == []
        assert (await harness.pods())[0].spec.node_name == "n0"

    run_with_harness(story)


def test_ten_minutes_of_trouble_are_stuck_and_one_dead_letter_over_all_restarts() -> None:
    """Ten minutes of failures, over all restarts, become Stuck and one dead letter: the time runs from the condition on
    the object, so a restart does not reset it."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        outcomes: list[type[ControlPlaneError] | None] = []
        for _ in range(25):
            worker, calls = harness.another_worker()
            calls.fail(QuotaExceededError("exceeded quota: gpus"), PODS_CREATE)
            error = await ended_with(harness.handle(worker=worker))
            outcomes.append(type(error) if error else None)
            await harness.clock.sleep(30)
        assert outcomes.count(PermanentError) == 1
        assert set(outcomes[outcomes.index(PermanentError) + 1 :]) == {None}
        found = await condition(harness)
        assert (found.status, found.reason) == ("True", "QuotaExceeded")
        await harness.handle()
        assert (await look(harness.kube)).status.conditions == []

    run_with_harness(story)


def test_trouble_that_a_wrong_clock_dated_counts_from_when_it_was_put_right() -> None:
    """A failure that a wrong clock dated counts from the correction of the clock; otherwise the launch would be given
    up too late."""

    async def story(harness: PodWorkerHarness) -> None:
        allocation = await harness.assign()
        told = functools.partial(
            set_condition, harness.kube, type_="Stuck", status="Unknown", reason="QuotaExceeded", message="full"
        )
        now = harness.clock.now()
        assert await told(allocation=allocation, now=now + 3600)
        assert await told(allocation=await look(harness.kube), now=now)
        assert (await condition(harness)).last_transition_time == format_time(now)
        assert not await told(allocation=await look(harness.kube), now=now + 1)

    run_with_harness(story)


@pytest.mark.parametrize(
    ("phase", "call", "reason"),
    [(None, PODS_CREATE, "QuotaExceeded"), (Event.TERMINATED, (Verb.DELETE, "configmaps"), "TeardownFailed")],
)
def test_a_failed_try_corrects_the_date_of_a_wrong_clock(
    phase: Event | None, call: tuple[Verb, str], reason: str
) -> None:
    """When the condition Stuck begins in the future, the next failed try of a launch or of a teardown lets it begin
    now."""

    async def story(harness: PodWorkerHarness) -> None:
        allocation = await harness.assign()
        if phase is not None:
            await harness.handle()
            allocation = await harness.write("job", phase)
        ahead = harness.clock.now() + 3600
        await set_condition(harness.kube, allocation, "Stuck", "Unknown", reason=reason, message="full", now=ahead)
        harness.calls.fail(QuotaExceededError("exceeded quota: gpus"), call)
        await ended_with(harness.handle())
        [found] = [each for each in (await look(harness.kube)).status.conditions if each.type == "Stuck"]
        assert (found.status, found.reason) == ("Unknown", reason)
        assert found.last_transition_time is not None
        assert parse_time(found.last_transition_time) <= harness.clock.now()

    run_with_harness(story)


def test_a_missing_permission_of_ours_is_stuck_at_once_and_never_an_end() -> None:
    """A missing permission of the pod worker is Stuck at once and never ends the allocation, because the operator can
    repair it."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(DeniedError('User "podworker" cannot create resource "pods"'), PODS_CREATE)
        await harness.handle()
        found = await condition(harness)
        assert (found.type, found.status, found.reason) == ("Stuck", "True", "Denied")

    run_with_harness(story)


def test_an_admission_given_to_other_pool_defaults_is_not_launched() -> None:
    """An admission under other pool defaults is not launched, because its hash differs; the placement is returned to
    the scheduler."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        toleration = {"key": "gpu", "operator": "Exists"}
        await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"tolerations": [toleration]}})
        await harness.handle()
        found = await condition(harness)
        assert (found.type, found.status, found.reason) == ("Stuck", "True", "PoolChanged")
        assert await harness.pods() == []

    run_with_harness(story)


def test_a_pool_changed_since_it_was_remembered_is_read_again() -> None:
    """A pool that changed since it was cached is read again, so that the worker uses the version that the scheduler
    saw."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(name="job")
        await harness.handle("job")
        toleration = {"key": "gpu", "operator": "Exists"}
        await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"tolerations": [toleration]}})
        await harness.assign(name="next")
        await harness.handle("next")
        assert (await look(harness.kube, "next")).status.release is not None

    run_with_harness(story)


def test_in_a_namespace_on_its_way_out_everything_is_taken_back() -> None:
    """In a namespace that is being deleted nothing can be created: the created objects are deleted, and no failure is
    recorded."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        harness.calls.fail_with(
            lambda call, when: StaleError("") if harness.calls.seen[call] == (Verb.UPDATE, "allocations") else None
        )
        await ended_with(harness.handle())
        assert len(await harness.pods()) == 2
        await harness.kube.delete(NAMESPACES, "default")
        worker, _ = harness.another_worker()
        await harness.handle(worker=worker)
        assert all(pod.metadata.deletion_timestamp for pod in await harness.pods())
        assert (await look(harness.kube)).status.conditions == []

    run_with_harness(story)


def test_what_is_released_in_a_namespace_on_its_way_out_is_left_to_the_watcher() -> None:
    """A released allocation in a namespace that is being deleted is left to the watcher: no pod is bound, and there is
    no dead letter and no failure."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        harness.calls.fail(ThrottledError("later"), (Verb.BIND, "pods"))
        await ended_with(harness.handle())
        before = (await look(harness.kube)).status.conditions
        await harness.kube.delete(NAMESPACES, "default")
        worker, calls = harness.another_worker()
        await harness.handle(worker=worker)
        assert (Verb.BIND, "pods") in calls.seen
        assert (await look(harness.kube)).status.conditions == before

    run_with_harness(story)


def test_a_released_pod_that_was_deleted_by_hand_is_not_made_again() -> None:
    """When a released pod was deleted by hand, no more pods are bound and none is created under the old name; the
    watcher takes over."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        harness.calls.fail(ThrottledError("later"), (Verb.BIND, "pods"))
        await ended_with(harness.handle())
        victim = (await harness.pods())[0]
        await harness.kube.delete(PODS, victim.metadata.name, namespace="default")
        await harness.finish_deletes()
        worker, calls = harness.another_worker()
        await harness.handle(worker=worker)
        assert (Verb.BIND, "pods") not in calls.seen
        assert PODS_CREATE not in calls.seen
        found = await condition(harness)
        assert (found.type, found.status, found.reason) == ("Stuck", "True", "BindRefused")

    run_with_harness(story)


def test_a_failed_pod_is_never_bound() -> None:
    """A failed pod is never bound: the server would accept the binding, and the rank would count as failed."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(ThrottledError("later"), (Verb.BIND, "pods"))
        await ended_with(harness.handle())
        [pod] = await harness.pods()
        stored = harness.core.get("pods", "default", pod.metadata.name)
        harness.core.update_status("pods", "default", pod.metadata.name, {**stored, "status": {"phase": "Failed"}})
        worker, calls = harness.another_worker()
        await harness.handle(worker=worker)
        assert (Verb.BIND, "pods") not in calls.seen

    run_with_harness(story)


def test_an_allocation_that_is_gone_leaves_nothing_to_do() -> None:
    """A deleted allocation needs no work: the garbage collector and the watcher delete its objects."""

    async def story(harness: PodWorkerHarness) -> None:
        allocation = await harness.assign()
        await harness.kube.patch(ALLOCATIONS, "job", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.kube.delete(ALLOCATIONS, "job", namespace="default")
        await harness.worker.handle(hint_for(allocation))
        assert harness.calls.seen == [(Verb.GET, "allocations")]

    run_with_harness(story)


def test_an_old_hint_does_nothing_to_a_new_object_of_that_name() -> None:
    """V8: an old hint does nothing to a new object of that name, because the hint has the uid."""

    async def story(harness: PodWorkerHarness) -> None:
        old = await harness.assign()
        await harness.kube.patch(ALLOCATIONS, "job", {"metadata": {"finalizers": None}}, namespace="default")
        await harness.kube.delete(ALLOCATIONS, "job", namespace="default")
        await harness.assign()
        await harness.worker.handle(hint_for(old))
        assert harness.calls.writes == []

    run_with_harness(story)
