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
from slipway.model.times import format_time
from slipway.podworker.status import set_condition
from tests.support.podworker_desk import Desk, at_a_desk, ended_with, hint_for
from tests.support.small_cluster import look

PODS_CREATE = (Verb.CREATE, "pods")


async def condition(desk: Desk) -> Condition:
    """The only condition of the allocation."""
    [found] = (await look(desk.kube)).status.conditions
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

    async def story(desk: Desk) -> None:
        await desk.assign()
        desk.calls.fail(error, PODS_CREATE)
        await desk.handle()
        found = await condition(desk)
        assert (found.type, found.status, found.reason, found.message) == ("Refused", "True", reason, str(error))
        assert found.observed_generation == 1
        assert (await look(desk.kube)).status.release is None

    at_a_desk(story)


def test_an_unsound_spec_is_refused_with_the_field() -> None:
    """An invalid spec is refused with the field, because the worker resolves the spec as the scheduler does."""

    async def story(desk: Desk) -> None:
        await desk.assign(
            template={"spec": {"containers": [{"name": "main", "image": "i", "command": ["c"]}], "hostNetwork": True}}
        )
        await desk.handle()
        found = await condition(desk)
        assert (found.type, found.reason) == ("Refused", "InvalidSpec")
        assert "hostNetwork" in found.message

    at_a_desk(story)


@pytest.mark.parametrize("error", [QuotaExceededError("exceeded quota: gpus"), ThrottledError("slow down")])
def test_transient_trouble_is_retried_in_place_and_never_the_users_failure(error: TransientError) -> None:
    """A temporary failure is retried, and is never the user's failure; when it is over the launch continues."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        desk.calls.fail_with(
            lambda call, when: (
                error
                if when == "before" and desk.calls.seen[call] == PODS_CREATE and desk.calls.seen.count(PODS_CREATE) < 4
                else None
            )
        )
        await desk.handle()
        allocation = await look(desk.kube)
        assert allocation.status.release is not None
        assert allocation.status.conditions == []
        assert desk.calls.seen.count((Verb.CREATE, "configmaps")) == 1

    at_a_desk(story)


def test_a_hint_gives_up_its_place_and_says_what_it_waits_for() -> None:
    """A hint that has to wait is returned after a while, so that other hints do not wait behind it; until it is
    delivered again, explain shows the reason."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        desk.calls.fail(QuotaExceededError("exceeded quota: gpus"), PODS_CREATE)
        started_s = desk.clock.monotonic()
        assert isinstance(await ended_with(desk.handle()), QuotaExceededError)
        assert desk.clock.monotonic() - started_s <= 16
        found = await condition(desk)
        assert (found.type, found.status, found.reason) == ("Stuck", "Unknown", "QuotaExceeded")

    at_a_desk(story)


def test_the_release_takes_the_complaint_away() -> None:
    """The release removes the condition of the wait."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        desk.calls.fail(QuotaExceededError("exceeded quota: gpus"), PODS_CREATE)
        await ended_with(desk.handle())
        desk.calls.fail_with(lambda _call, _when: None)
        await desk.handle()
        assert (await look(desk.kube)).status.conditions == []
        assert (await desk.pods())[0].spec.node_name == "n0"

    at_a_desk(story)


def test_ten_minutes_of_trouble_are_stuck_and_one_dead_letter_over_all_restarts() -> None:
    """Ten minutes of failures, over all restarts, become Stuck and one dead letter: the time runs from the condition on
    the object, so a restart does not reset it."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        outcomes: list[type[ControlPlaneError] | None] = []
        for _ in range(25):
            worker, calls = desk.another_worker()
            calls.fail(QuotaExceededError("exceeded quota: gpus"), PODS_CREATE)
            error = await ended_with(desk.handle(worker=worker))
            outcomes.append(type(error) if error else None)
            await desk.clock.sleep(30)
        assert outcomes.count(PermanentError) == 1
        assert set(outcomes[outcomes.index(PermanentError) + 1 :]) == {None}
        found = await condition(desk)
        assert (found.status, found.reason) == ("True", "QuotaExceeded")
        await desk.handle()
        assert (await look(desk.kube)).status.conditions == []

    at_a_desk(story)


def test_trouble_that_a_wrong_clock_dated_counts_from_when_it_was_put_right() -> None:
    """A failure that a wrong clock dated counts from the correction of the clock; otherwise the launch would be given
    up too late."""

    async def story(desk: Desk) -> None:
        allocation = await desk.assign()
        told = functools.partial(
            set_condition, desk.kube, type_="Stuck", status="Unknown", reason="QuotaExceeded", message="full"
        )
        now = desk.clock.now()
        assert await told(allocation=allocation, now=now + 3600)
        assert await told(allocation=await look(desk.kube), now=now)
        assert (await condition(desk)).last_transition_time == format_time(now)
        assert not await told(allocation=await look(desk.kube), now=now + 1)

    at_a_desk(story)


def test_a_missing_permission_of_ours_is_stuck_at_once_and_never_an_end() -> None:
    """A missing permission of the pod worker is Stuck at once and never ends the allocation, because the operator can
    repair it."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        desk.calls.fail(DeniedError('User "podworker" cannot create resource "pods"'), PODS_CREATE)
        await desk.handle()
        found = await condition(desk)
        assert (found.type, found.status, found.reason) == ("Stuck", "True", "Denied")

    at_a_desk(story)


def test_an_admission_given_to_other_pool_defaults_is_not_launched() -> None:
    """An admission under other pool defaults is not launched, because its hash differs; the placement is returned to
    the scheduler."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        toleration = {"key": "gpu", "operator": "Exists"}
        await desk.kube.patch(RESOURCE_POOLS, "default", {"spec": {"tolerations": [toleration]}})
        await desk.handle()
        found = await condition(desk)
        assert (found.type, found.status, found.reason) == ("Stuck", "True", "PoolChanged")
        assert await desk.pods() == []

    at_a_desk(story)


def test_a_pool_changed_since_it_was_remembered_is_read_again() -> None:
    """A pool that changed since it was cached is read again, so that the worker uses the version that the scheduler
    saw."""

    async def story(desk: Desk) -> None:
        await desk.assign(name="job")
        await desk.handle("job")
        toleration = {"key": "gpu", "operator": "Exists"}
        await desk.kube.patch(RESOURCE_POOLS, "default", {"spec": {"tolerations": [toleration]}})
        await desk.assign(name="next")
        await desk.handle("next")
        assert (await look(desk.kube, "next")).status.release is not None

    at_a_desk(story)


def test_in_a_namespace_on_its_way_out_everything_is_taken_back() -> None:
    """In a namespace that is being deleted nothing can be created: the created objects are deleted, and no failure is
    recorded."""

    async def story(desk: Desk) -> None:
        await desk.assign("n0", "n1")
        desk.calls.fail_with(
            lambda call, when: StaleError("") if desk.calls.seen[call] == (Verb.UPDATE, "allocations") else None
        )
        await ended_with(desk.handle())
        assert len(await desk.pods()) == 2
        await desk.kube.delete(NAMESPACES, "default")
        worker, _ = desk.another_worker()
        await desk.handle(worker=worker)
        assert all(pod.metadata.deletion_timestamp for pod in await desk.pods())
        assert (await look(desk.kube)).status.conditions == []

    at_a_desk(story)


def test_what_is_released_in_a_namespace_on_its_way_out_is_left_to_the_watcher() -> None:
    """A released allocation in a namespace that is being deleted is left to the watcher: no pod is bound, and there is
    no dead letter and no failure."""

    async def story(desk: Desk) -> None:
        await desk.assign("n0", "n1")
        desk.calls.fail(ThrottledError("later"), (Verb.BIND, "pods"))
        await ended_with(desk.handle())
        before = (await look(desk.kube)).status.conditions
        await desk.kube.delete(NAMESPACES, "default")
        worker, calls = desk.another_worker()
        await desk.handle(worker=worker)
        assert (Verb.BIND, "pods") in calls.seen
        assert (await look(desk.kube)).status.conditions == before

    at_a_desk(story)


def test_a_released_pod_that_was_deleted_by_hand_is_not_made_again() -> None:
    """When a released pod was deleted by hand, no more pods are bound and none is created under the old name; the
    watcher takes over."""

    async def story(desk: Desk) -> None:
        await desk.assign("n0", "n1")
        desk.calls.fail(ThrottledError("later"), (Verb.BIND, "pods"))
        await ended_with(desk.handle())
        victim = (await desk.pods())[0]
        await desk.kube.delete(PODS, victim.metadata.name, namespace="default")
        await desk.finish_deletes()
        worker, calls = desk.another_worker()
        await desk.handle(worker=worker)
        assert (Verb.BIND, "pods") not in calls.seen
        assert PODS_CREATE not in calls.seen
        found = await condition(desk)
        assert (found.type, found.status, found.reason) == ("Stuck", "True", "BindRefused")

    at_a_desk(story)


def test_a_failed_pod_is_never_bound() -> None:
    """A failed pod is never bound: the server would accept the binding, and the rank would count as failed."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        desk.calls.fail(ThrottledError("later"), (Verb.BIND, "pods"))
        await ended_with(desk.handle())
        [pod] = await desk.pods()
        stored = desk.core.get("pods", "default", pod.metadata.name)
        desk.core.update_status("pods", "default", pod.metadata.name, {**stored, "status": {"phase": "Failed"}})
        worker, calls = desk.another_worker()
        await desk.handle(worker=worker)
        assert (Verb.BIND, "pods") not in calls.seen

    at_a_desk(story)


def test_an_allocation_that_is_gone_leaves_nothing_to_do() -> None:
    """A deleted allocation needs no work: the garbage collector and the watcher delete its objects."""

    async def story(desk: Desk) -> None:
        allocation = await desk.assign()
        await desk.kube.patch(ALLOCATIONS, "job", {"metadata": {"finalizers": None}}, namespace="default")
        await desk.kube.delete(ALLOCATIONS, "job", namespace="default")
        await desk.worker.handle(hint_for(allocation))
        assert desk.calls.seen == [(Verb.GET, "allocations")]

    at_a_desk(story)


def test_an_old_hint_does_nothing_to_a_new_object_of_that_name() -> None:
    """V8: an old hint does nothing to a new object of that name, because the hint has the uid."""

    async def story(desk: Desk) -> None:
        old = await desk.assign()
        await desk.kube.patch(ALLOCATIONS, "job", {"metadata": {"finalizers": None}}, namespace="default")
        await desk.kube.delete(ALLOCATIONS, "job", namespace="default")
        await desk.assign()
        await desk.worker.handle(hint_for(old))
        assert desk.calls.writes == []

    at_a_desk(story)
