"""Which objects are orphans, and which ended allocations are deleted by retention. Pure."""

import msgspec
import pytest

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, TRACKING_FINALIZER, ObjectMeta
from slipway.crd.v1alpha1 import Allocation, RankStatus
from slipway.kube.objects import Pod, PodStatus
from slipway.kube.resources import PODS
from slipway.model.lifecycle import Event, RankState
from slipway.model.reasons import Result
from slipway.model.times import format_time
from slipway.watcher.sweep import Orphan, expired, orphans
from tests.support.builders import T0, UID, AllocationStory, an_allocation, at

NOW = T0 + 100


def an_object(*, attempt: int = 1, uid: str = UID, leaving: bool = False, held: bool = False) -> Orphan:
    meta = ObjectMeta(
        name="x",
        uid="x",
        labels={LABEL_ALLOCATION_UID: uid, LABEL_ATTEMPT: str(attempt)},
        deletion_timestamp=at(50) if leaving else None,
        finalizers=[TRACKING_FINALIZER] if held else [],
    )
    return Orphan(resource=PODS, meta=meta)


def an_end(seconds: float, *, name: str = "run", uid: str = UID) -> AllocationStory:
    story = an_allocation(name=name, uid=uid)
    return story.recorded(
        Event.TERMINATED, at_s=seconds, result=Result.SUCCEEDED, ended_at=format_time(T0 + seconds)
    ).with_metadata(finalizers=[])


def an_ended_pod(*, held: bool) -> Orphan:
    item = an_object(held=held)
    return msgspec.structs.replace(item, pod=Pod(metadata=item.meta, status=PodStatus(phase="Failed")))


def an_end_on_record(seconds: float) -> AllocationStory:
    """An allocation that has recorded the end of the pod of `an_object`."""
    status = RankStatus(pod_uid="x", phase=RankState.FAILED)
    story = an_end(seconds)
    return AllocationStory(
        msgspec.structs.replace(story.it, status=msgspec.structs.replace(story.it.status, ranks=[status]))
    )


@pytest.mark.parametrize(
    ("item", "owner", "goes"),
    [
        (an_object(), None, True),
        (an_object(leaving=True), None, False),
        (an_object(leaving=True, held=True), None, True),
        (an_object(), an_allocation().assigned().it, False),
        (an_object(attempt=0), an_allocation().assigned().it, True),
        (an_object(attempt=0), an_allocation().assigned(at_s=99).it, False),
        (an_object(attempt=2), an_allocation().assigned().it, False),
        (an_object(), an_end(10).it, True),
        (an_object(), an_end(99).it, False),
        (an_object(), an_end(3699).it, True),
        (an_object(leaving=True, held=True), an_end(10).it, False),
        (an_ended_pod(held=True), an_end_on_record(10).it, False),
        (an_ended_pod(held=False), an_end_on_record(10).it, True),
        (an_ended_pod(held=True), an_end(10).it, True),
    ],
)
def test_an_orphan_has_no_owner_or_an_owner_that_is_past_it(item: Orphan, owner: Allocation | None, goes: bool) -> None:
    """An orphan has no owner, or an owner that no longer needs it. Recent changes are left to the pod worker. A
    deletion that is under way is left alone, unless our finalizer holds it up. The pod of a recorded end is left to the
    reader of its log while it has its finalizer."""
    owners = {} if owner is None else {UID: owner}
    assert bool(orphans([item], owners, now=NOW)) is goes


def test_old_and_surplus_ends_are_forgotten_oldest_first() -> None:
    """Ended allocations are deleted by age, and by number in each workspace, oldest first."""
    ends = [an_end(second, name=f"run-{second}", uid=f"u{second}").it for second in (30, 10, 20)]
    assert [item.metadata.name for item in expired(ends, now=NOW, age_s=75, count_max=9)] == ["run-10", "run-20"]
    assert [item.metadata.name for item in expired(ends, now=NOW, age_s=999, count_max=1)] == ["run-10", "run-20"]
    other = msgspec.structs.replace(
        ends[0], metadata=msgspec.structs.replace(ends[0].metadata, namespace="other", name="far")
    )
    assert expired([ends[0], other], now=NOW, age_s=999, count_max=1) == []


@pytest.mark.parametrize(
    "story",
    [
        an_allocation(),
        an_end(1).with_metadata(finalizers=["slipway.dev/teardown"]),
        an_end(1).deleted(),
    ],
)
def test_what_lives_or_is_not_torn_down_is_kept(story: AllocationStory) -> None:
    """An allocation that lives, or is not torn down yet, is kept."""
    assert expired([story.it], now=NOW, age_s=1, count_max=0) == []
