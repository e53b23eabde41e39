"""An allocation that waits for others to end: how the watcher sees them, and what it records."""

from collections.abc import Mapping
from typing import Any

import pytest

from slipway.crd.dependencies import waits_for
from slipway.crd.meta import ANNOTATION_FORMER_IDS, TEARDOWN_FINALIZER
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.kube.statuses import put_status
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from slipway.watcher.dependencies import (
    SeenDependency,
    awaited_by,
    awaited_names,
    is_awaited,
    state_of,
    state_of_absent,
)
from tests.support.builders import NAMESPACE, AllocationStory, an_allocation
from tests.support.reductions import ending, once, settled
from tests.support.small_cluster import launch, look
from tests.support.watcher_harness import WatcherHarness, play

PREP_UID, OWN_UID, OTHER_UID = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "123")
PREP = "prep-11111111"


def prep(result: Result | None = None, *, uid: str = PREP_UID, **spec: Any) -> AllocationStory:
    """The dependency; with a result it has ended."""
    story = an_allocation(name="prep", uid=uid, **spec)
    return story if result is None else story.recorded(Event.TERMINATED, at_s=5, result=result)


def waiting(name: str = PREP, when: str = "succeeded", *, own: str = "train", **spec: Any) -> AllocationStory:
    return an_allocation(name=own, uid=OWN_UID, after=[{"allocation": name, "when": when}], **spec)


def seen_among(story: AllocationStory, *others: AllocationStory) -> SeenDependency | None:
    """The first dependency of `story` as the stores show it."""
    known = {(each.it.metadata.namespace, each.it.metadata.name): each.it for each in others}
    return state_of(story.it, awaited_by(story.it)[0], lambda space, name: known.get((space, name)))


def one(found: SeenDependency | None, name: str = PREP) -> Mapping[str, SeenDependency]:
    return {} if found is None else {name: found}


@pytest.mark.parametrize("name", [PREP, "prep"])
def test_it_is_named_by_its_id_or_its_name(name: str) -> None:
    assert seen_among(waiting(name), prep()) == SeenDependency(id=PREP)
    found = seen_among(waiting(name), prep(Result.FAILED))
    assert found == SeenDependency(id=PREP, has_ended=True, result=Result.FAILED)


def test_another_of_the_same_name_is_not_the_one_that_was_named() -> None:
    """An id contains the uid. A name keeps the meaning that it had at its first lookup."""
    later = prep(Result.SUCCEEDED, uid=OTHER_UID)
    assert seen_among(waiting(PREP), later) is None
    looked_up = AllocationStory(once(waiting("prep").it, awaited=one(SeenDependency(id=PREP), "prep")).allocation)
    assert seen_among(looked_up, later) is None


def test_one_that_was_restored_is_known_by_its_id_of_before() -> None:
    """A restored object gets a new uid, so its previous id is recognized too."""
    restored = prep(Result.SUCCEEDED, uid=OTHER_UID).with_metadata(annotations={ANNOTATION_FORMER_IDS: f"x,{PREP}"})
    found = seen_among(waiting(), restored)
    assert found is not None
    assert (found.has_ended, found.result) == (True, Result.SUCCEEDED)


def test_while_it_goes_on_nothing_is_written() -> None:
    assert not once(waiting().it, awaited=one(SeenDependency(id=PREP))).changed


def test_a_name_is_looked_up_once() -> None:
    """A name is looked up once: its id is recorded, without an event, because no phase has changed."""
    found = once(waiting("prep").it, awaited=one(SeenDependency(id=PREP), "prep"))
    assert [each.id for each in found.allocation.status.dependencies] == [PREP]
    assert (found.changed, found.allocation.status.seq) == (True, 0)
    assert not once(found.allocation, awaited=one(SeenDependency(id=PREP), "prep")).changed


@pytest.mark.parametrize(
    ("when", "result", "starts"),
    [
        ("succeeded", Result.SUCCEEDED, True),
        ("succeeded", Result.PREEMPTED, False),
        ("failed", Result.TIMED_OUT, True),
        ("failed", Result.SUCCEEDED, False),
        ("ended", Result.CANCELED, True),
    ],
)
def test_an_end_is_recorded_and_decides(when: str, result: Result, starts: bool) -> None:
    """When the dependency ended as required, the allocation waits in its queue like any other. Otherwise it is canceled
    in the same write."""
    found = settled(waiting(when=when).it, awaited=one(SeenDependency(id=PREP, has_ended=True, result=result)))
    assert (waits_for(found), found.status.dependencies[0].result) == ((), result)
    told = [entry.data for entry in found.status.transitions if entry.type is Event.UPDATED]
    assert told == [{"after": {PREP: result.value}}]
    if starts:
        assert found.status.phase is Phase.PENDING
    else:
        assert ending(found) == (Phase.TERMINATED, Result.CANCELED, Reason.DEPENDENCY)
        assert found.status.message.startswith(f"{PREP} ended with {result.value}; ")


def test_a_cancel_goes_before_what_its_dependency_came_to() -> None:
    """A cancel by the user stays the reason, also when the dependency has failed."""
    seen_ = one(SeenDependency(id=PREP, has_ended=True, result=Result.FAILED))
    assert ending(once(waiting().killed().it, awaited=seen_).allocation)[2] == Reason.KILLED


def test_what_is_held_is_canceled_too_when_it_can_never_start() -> None:
    seen_ = one(SeenDependency(id=PREP, has_ended=True, result=Result.FAILED))
    assert ending(once(waiting(hold=True).it, awaited=seen_).allocation)[2] == Reason.DEPENDENCY


def test_many_ends_at_once_are_one_write() -> None:
    """An allocation with many dependencies is written once when they end together, and its event stays small."""
    names = [f"p{number}-11111111" for number in range(100)]
    story = an_allocation(after=[{"allocation": name} for name in names])
    ends = {name: SeenDependency(id=name, has_ended=True, result=Result.SUCCEEDED) for name in names}
    done = once(story.it, awaited=ends).allocation
    assert (waits_for(done), len(done.status.dependencies), done.status.seq) == ((), 100, 2)
    assert len(done.status.transitions[-1].data["after"]) == 4


def test_an_id_of_nothing_was_deleted_and_a_name_of_nothing_is_invalid() -> None:
    """An unknown id means a deleted object, because its uid existed once. An unknown name in an applied object is
    likely a mistake, and is reported at once."""
    gone = state_of_absent(waiting().it, awaited_by(waiting().it)[0])
    assert gone == SeenDependency(id=PREP, has_ended=True)
    assert ending(once(waiting().it, awaited=one(gone)).allocation)[2] == Reason.DEPENDENCY
    assert once(waiting(when="ended").it, awaited=one(gone)).allocation.status.phase is Phase.PENDING
    story = waiting("perp")
    done = once(story.it, awaited=one(state_of_absent(story.it, awaited_by(story.it)[0]), "perp")).allocation
    assert ending(done) == (Phase.TERMINATED, Result.INVALID, Reason.INVALID_SPEC)
    assert done.status.message == (
        f"spec.after[0].allocation: workspace {NAMESPACE} has no allocation perp; create that one first"
    )


def test_a_dependency_cycle_is_invalid() -> None:
    """A circle of dependencies is invalid, because none of its allocations could start. Only names can make one, since
    an id does not exist before its object."""
    first = prep(after=[{"allocation": "middle"}])
    middle = an_allocation(name="middle", uid=OTHER_UID, after=[{"allocation": "train"}])
    found = seen_among(waiting("prep"), first, middle, waiting("prep"))
    assert found is not None
    assert "waits for this allocation" in found.problem
    itself = seen_among(waiting("train"), waiting("train"))
    assert itself is not None
    assert itself.problem
    chain = seen_among(waiting("prep"), prep(after=[{"allocation": "middle"}]), prep().with_metadata(name="middle"))
    assert chain == SeenDependency(id=PREP)


def test_who_waits_is_found_by_the_name_of_the_other() -> None:
    """The index contains only waiting allocations, under each name that a text may mean, so an end does not scan all
    allocations."""
    assert set(awaited_names(waiting().it)) == {f"{NAMESPACE}/prep", f"{NAMESPACE}/{PREP}"}
    assert set(awaited_names(waiting("prep").it)) == {f"{NAMESPACE}/prep"}
    assert not list(awaited_names(waiting().assigned().it))
    done = once(waiting().it, awaited=one(SeenDependency(id=PREP, has_ended=True, result=Result.SUCCEEDED)))
    assert not list(awaited_names(done.allocation))


def test_an_end_is_awaited_until_it_is_recorded() -> None:
    ended = prep(Result.SUCCEEDED)
    assert is_awaited(ended.it, [waiting().it])
    assert not is_awaited(prep(Result.SUCCEEDED, uid=OTHER_UID).it, [waiting().it])
    done = once(waiting().it, awaited=one(SeenDependency(id=PREP, has_ended=True, result=Result.SUCCEEDED)))
    assert not is_awaited(ended.it, [done.allocation])


def has_recorded(allocation: Allocation) -> bool:
    return bool(allocation.status.dependencies and allocation.status.dependencies[0].recorded_at)


async def ends(harness: WatcherHarness, allocation: Allocation) -> None:
    """Cancel the allocation as its user, and wait for its end."""
    body = {"spec": {"desired": "Stopped"}}
    await harness.kube.patch(ALLOCATIONS, allocation.metadata.name, body, namespace=allocation.metadata.namespace)


def test_an_end_reaches_all_that_wait_for_it() -> None:
    """An end reaches all allocations that wait for it. When the ended one is being deleted and no status can be written
    for a while, its last finalizer stays."""

    async def story(harness: WatcherHarness) -> None:
        has_ended_at: list[float] = []

        async def refuse(verb: Verb, plural: str) -> None:
            """Refuse status writes from the end of the dependency on, for some seconds."""
            if (verb, plural) != (Verb.UPDATE, ALLOCATIONS.plural):
                return
            if not has_ended_at and (await look(harness.kube, "prep")).status.phase is Phase.TERMINATED:
                has_ended_at.append(harness.clock.now())
            if has_ended_at and harness.clock.now() < has_ended_at[0] + 5:
                raise UnavailableError("the API server is away")

        harness.its.before = refuse
        first = await launch(harness.kube, "prep")
        body = {"metadata": {"finalizers": [TEARDOWN_FINALIZER]}}
        first = await harness.kube.patch(ALLOCATIONS, "prep", body, namespace=first.metadata.namespace)
        for name, when in (("a", "ended"), ("b", "succeeded"), ("c", "failed")):
            await launch(harness.kube, name, after=[{"allocation": id_of(first), "when": when}])
        await harness.kube.delete(ALLOCATIONS, "prep", namespace=first.metadata.namespace, uid=first.metadata.uid)
        for name in ("a", "c"):
            done = await harness.until(has_recorded, "the record", name=name)
            assert (done.status.phase, done.status.dependencies[0].result) == (Phase.PENDING, Result.CANCELED)
        canceled = await harness.until(lambda found: found.status.result, "the end", name="b")
        assert ending(canceled) == (Phase.TERMINATED, Result.CANCELED, Reason.DEPENDENCY)

    play(story)


def test_who_is_launched_after_the_end_learns_it_too() -> None:
    """An allocation that is applied after the end, or the deletion, of its dependency gets the result too."""

    async def story(harness: WatcherHarness) -> None:
        first = await launch(harness.kube, "prep")
        await ends(harness, first)
        await harness.until(
            lambda found: TEARDOWN_FINALIZER not in found.metadata.finalizers, "nothing left", name="prep"
        )
        await launch(harness.kube, "a", after=[{"allocation": "prep", "when": "failed"}])
        done = await harness.until(has_recorded, "the record", name="a")
        assert (done.status.phase, done.status.dependencies[0].id) == (Phase.PENDING, id_of(first))
        await harness.kube.delete(ALLOCATIONS, "prep", namespace=first.metadata.namespace, uid=first.metadata.uid)
        await launch(harness.kube, "b", after=[{"allocation": id_of(first)}])
        gone = await harness.until(lambda found: found.status.result, "the end", name="b")
        assert ending(gone) == (Phase.TERMINATED, Result.CANCELED, Reason.DEPENDENCY)
        assert "its result is not known" in gone.status.message

    play(story)


def test_one_pass_is_enough() -> None:
    """One pass is enough: a run without watches uses its own writes."""

    async def story(harness: WatcherHarness) -> None:
        first = await launch(harness.kube, "prep")
        await launch(harness.kube, "a", after=[{"allocation": id_of(first), "when": "ended"}])
        stored = await look(harness.kube, "prep")
        await put_status(harness.kube, stored, stored.status)
        await ends(harness, stored)
        await harness.watcher.run_once()
        assert has_recorded(await look(harness.kube, "a"))

    play(story, watches=False)
