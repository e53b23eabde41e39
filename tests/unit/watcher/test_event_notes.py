"""The story of an allocation as Events of Kubernetes: which steps, in which words, and each of them once."""

from typing import Any

import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, UnavailableError
from slipway.kube.resources import EVENTS, STORY_EVENTS, Resource
from slipway.model.lifecycle import Event
from slipway.runtime.clock import SeededRandom
from slipway.watcher.event_recorder import (
    BATCH_MAX,
    NOTE_BYTES_MAX,
    PAUSE_S,
    RECENT_S,
    RETRY_S,
    EventRecorder,
    body_of,
    notes_of,
)
from slipway.watcher.informers import Informers
from tests.support.builders import AllocationStory, a_pod, an_allocation
from tests.support.clock import FakeClock
from tests.support.kube_core import CoreKube
from tests.support.reductions import a_running, settled
from tests.support.small_cluster import a_client, a_core, furnish, launch


def events_of(allocation: Allocation) -> list[tuple[str, str]]:
    """(reason, text) of each Event, oldest first."""
    return [(note.reason, note.text) for note in notes_of(allocation)]


# --- the Events


def test_a_success_is_told_from_the_queue_to_the_end() -> None:
    """The Events of a success tell the queue, the nodes and the ranks, from the queue to the end; none is a warning."""
    ended = settled(
        an_allocation(2).assigned("n0", "n0").released().running().it, a_pod(0).exited(0), a_pod(1).exited(0)
    )
    notes = notes_of(ended)
    assert [note.reason for note in notes] == ["Queued", "Admitted", "Running", "Succeeded"]
    assert not any(note.is_warning for note in notes)
    assert [note.at for note in notes] == sorted(note.at for note in notes)


def test_a_failure_is_a_warning_that_leads_to_the_pod() -> None:
    """A failure is a warning with the message of the status, which names the rank."""
    ended = settled(a_running().it, a_pod().exited(7))
    note = notes_of(ended)[-1]
    assert (note.reason, note.is_warning) == ("Failed", True)
    assert ended.status.message in note.text
    assert note.related is not None
    assert (note.related["kind"], note.related["name"]) == ("Pod", a_pod().it.metadata.name)


def test_the_places_are_told_and_not_a_list_without_end() -> None:
    """The Event of the placement lists the first nodes with their ranks, and the number of further nodes."""
    story = an_allocation().recorded(Event.ASSIGNED, at_s=1, data={"nodes": {f"n{index}": 2 for index in range(9)}})
    assert events_of(story.it)[-1] == (
        "Admitted",
        "attempt 1 is placed on n0 (2 ranks), n1 (2 ranks), n2 (2 ranks), 6 more",
    )


@pytest.mark.parametrize(("by", "is_named"), [("team/big", True), ("other/big", False)])
def test_who_displaces_it_is_named_within_its_workspace_only(by: str, is_named: bool) -> None:
    """The displacing allocation is named only within its workspace, because readers of the Events of one namespace may
    not know the names in another."""
    story = a_running().recorded(Event.PREEMPTING, at_s=5, reason="Preempted", data={"by": by})
    note = notes_of(story.it)[-1]
    assert note.reason == "Preempting"
    assert ("big" in note.text, note.related is not None) == (is_named, is_named)


def test_a_restart_is_told_with_its_cause() -> None:
    """The Event of a restart has its cause: a decision of the scheduler is no warning, a failure is one."""
    failed = begun_again(a_running(maxRestarts=3), exit_code=1)
    assert [(note.reason, note.is_warning) for note in notes_of(failed)][-1] == ("Requeued", True)
    assert "RankFailed" in notes_of(failed)[-1].text
    moved = begun_again(a_running().stopped("Preempted", requeue=True), exit_code=143)
    assert [(note.reason, note.is_warning) for note in notes_of(moved)][-1] == ("Requeued", False)


def test_what_can_never_start_says_so() -> None:
    """An allocation that can never start has an Event with the explanation, as long as it waits."""
    waits = an_allocation().condition("Stalled", "NoFit", "can never start with the pool's current nodes")
    assert events_of(waits.it)[-1] == ("CannotStart", "can never start with the pool's current nodes")
    assert "CannotStart" not in [reason for reason, _ in events_of(waits.assigned().it)]


def test_an_event_is_as_kubernetes_wants_it() -> None:
    """An Event has the format of Kubernetes: times to the microsecond, a note of at most a thousand bytes."""
    story = an_allocation().condition("Stalled", "NoFit", "ü" * 2000)
    body = body_of(story.it, notes_of(story.it)[-1], "watcher-0")
    assert len(body["note"].encode()) <= NOTE_BYTES_MAX
    assert body["eventTime"].endswith("Z")
    assert len(body["eventTime"].rpartition(".")[2]) == len("000000Z")


# --- their writes


class NarratorHarness:
    """A cluster, and a narrator that has seen nothing of it yet."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.core = a_core(self.clock.now)
        self.kube = a_client(self.core)
        self.world = Informers()
        self.narrator = self.another(self.kube)

    def another(self, kube: CoreKube) -> EventRecorder:
        """A narrator of another process, which knows nothing of this one."""
        return EventRecorder(kube, self.world, self.clock, instance="watcher-0")

    async def events(self) -> dict[str, Any]:
        """{reason: the Event}, as kubectl reads them."""
        return {event.reason: event for event in (await self.kube.list(EVENTS)).items}


@pytest.fixture
async def harness() -> NarratorHarness:
    """A furnished harness."""
    found = NarratorHarness()
    await furnish(found.kube)
    return found


async def test_a_step_is_written_once(harness: NarratorHarness) -> None:
    """A step is written once: another look, and a new leader, find its Event."""
    job = await launch(harness.kube, "job")
    for narrator in (harness.narrator, harness.narrator, harness.another(harness.kube)):
        narrator.offer(job)
        assert await narrator.flush() == PAUSE_S
    events = await harness.events()
    assert list(events) == ["Queued"]
    about = events["Queued"].involved_object
    assert (about.kind, about.name, about.uid) == ("Allocation", "job", job.metadata.uid)
    assert events["Queued"].series is None


async def test_repeated_events_are_counted_by_the_leader(harness: NarratorHarness) -> None:
    """Repeats of the same cause have one Event per hour; the leader writes its count each time that it has doubled."""
    story = AllocationStory(await launch(harness.kube, "job", maxRestarts=100))
    for attempt in range(1, 6):
        story = restarted(story.assigned(at_s=10.0 * attempt), at_s=10.0 * attempt + 5)
        harness.clock.advance(10)
        narrator = harness.another(harness.kube) if attempt == 3 else harness.narrator
        narrator.offer(story.it)
        await narrator.flush()
        if attempt == 3:
            harness.narrator = narrator
    requeued = (await harness.events())["Requeued"]
    assert requeued.series is not None
    assert requeued.series.count == 4


async def test_an_old_history_is_not_published_again(harness: NarratorHarness) -> None:
    """A new leader does not write Events of steps that happened long ago."""
    job = await launch(harness.kube, "job")
    harness.clock.advance(RECENT_S + 1)
    harness.narrator.offer(job)
    await harness.narrator.flush()
    assert await harness.events() == {}


async def test_what_is_refused_is_left_and_what_is_away_is_tried_again(harness: NarratorHarness) -> None:
    """A refused Event is dropped, and one whose server is away is retried; nothing waits for Events or fails by
    them."""
    kube = RefusingKube(harness.core, random=SeededRandom(1))
    narrator = harness.another(kube)
    job = await launch(harness.kube, "job")
    harness.world.allocations.put(job)
    kube.error = UnavailableError("away")
    narrator.offer(job)
    assert await narrator.flush() == RETRY_S
    kube.error = DeniedError("no such right")
    assert await narrator.flush() == PAUSE_S
    assert await harness.events() == {}
    kube.error = None
    narrator.offer(job)
    await narrator.flush()
    assert await harness.events() == {}, "it was given up, until there is more to tell"


async def test_a_count_that_could_not_be_written_is_written_later(harness: NarratorHarness) -> None:
    """A count whose write failed is written later, and no repeat is counted twice."""
    kube = RefusingKube(harness.core, random=SeededRandom(1))
    narrator = harness.another(kube)
    story = restarted(AllocationStory(await launch(harness.kube, "job", maxRestarts=9)).assigned(at_s=1), at_s=2)
    narrator.offer(story.it)
    await narrator.flush()
    again = restarted(story.assigned(at_s=3), at_s=4)
    kube.error = UnavailableError("away")
    narrator.offer(again.it)
    assert await narrator.flush() == RETRY_S
    kube.error = None
    assert await narrator.flush() == PAUSE_S
    events = await harness.events()
    for reason in ("Admitted", "Requeued"):
        series = events[reason].series
        assert series is not None, reason
        assert series.count == 2


async def test_what_is_deleted_before_its_events_are_written_leaves_nothing_in_memory(harness: NarratorHarness) -> None:
    """The last Events of an allocation are written although it was deleted meanwhile; nothing of it is remembered."""
    narrator = harness.narrator
    job = await launch(harness.kube, "job")
    harness.world.allocations.put(job)
    narrator.offer(job)
    harness.world.allocations.remove(job)
    assert await narrator.flush() == PAUSE_S
    assert list(await harness.events()) == ["Queued"]
    assert narrator._seen == {}  # pyright: ignore[reportPrivateUsage]


async def test_many_are_told_in_batches(harness: NarratorHarness) -> None:
    """Many Events are written in batches with pauses between them."""
    for index in range(BATCH_MAX + 3):
        harness.narrator.offer(await launch(harness.kube, f"job-{index}"))
    await harness.narrator.flush()
    assert len((await harness.kube.list(EVENTS)).items) == BATCH_MAX
    await harness.narrator.flush()
    assert len((await harness.kube.list(EVENTS)).items) == BATCH_MAX + 3


class RefusingKube(CoreKube):
    """Refuses every Event with `error` while that is set."""

    error: Exception | None = None

    async def create(self, resource: Resource[Any], body: Any, **options: Any) -> Any:
        if self.error is not None and resource is STORY_EVENTS:
            raise self.error
        return await super().create(resource, body, **options)

    async def patch(self, resource: Resource[Any], name: str, patch: Any, **options: Any) -> Any:
        if self.error is not None and resource is STORY_EVENTS:
            raise self.error
        return await super().patch(resource, name, patch, **options)


def restarted(story: AllocationStory, *, at_s: float) -> AllocationStory:
    """The story with a recorded restart: the next attempt waits."""
    return story.recorded(Event.RESTARTED, at_s=at_s, reason="RankFailed")


def begun_again(story: AllocationStory, *, exit_code: int) -> Allocation:
    """The allocation after its attempt has ended; the next one waits."""
    return settled(story.it, a_pod().exited(exit_code))


def test_names_are_in_the_order_of_a_life() -> None:
    """The names of the Events sort in the order of the steps, because kubectl describe lists them by name."""
    ended = settled(
        an_allocation(2).assigned("n0", "n0").released().running().it, a_pod(0).exited(0), a_pod(1).exited(0)
    )
    names = [note.name for note in notes_of(ended)]
    assert names == sorted(names)
