"""Which ranks an attempt has: those of its admission, without those that left, and those that it grew by."""

import msgspec
import pytest

from slipway.crd.members import below_count, departed_ranks, members, pod_uids, positions, restarting, unreleased
from slipway.crd.policies import RestartUnit
from slipway.crd.rules import violations
from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Allocation, Growth, Placement, RankRestart, RankStatus, Shrink
from slipway.facts.custom_resources import allocation_fact
from slipway.model.lifecycle import Event, RankState
from tests.support.builders import AllocationStory, an_allocation, as_json


def a_gang(ranks: int = 4, started: int = 3) -> AllocationStory:
    """A running gang of four whose minimum is one; the first three ranks were launched."""
    story = an_allocation(ranks, minAvailable=1).assigned().released().running()
    admission, release = story.it.status.admission, story.it.status.release
    assert admission is not None
    assert release is not None
    return story.with_status(
        admission=msgspec.structs.replace(admission, placements=admission.placements[:started], elastic=True),
        release=msgspec.structs.replace(release, pod_uids=[f"first-{rank}" for rank in range(started)]),
    )


def grown(
    story: AllocationStory, *ranks: int, pods: int = 0, left: tuple[int, ...] = (), n: int = 1
) -> AllocationStory:
    """The story after a growth by `ranks`, of which the first `pods` are released."""
    return story.with_status(
        growth=Growth(
            n=n,
            attempt=1,
            placements=[Placement(rank=rank, role="worker", node="n") for rank in ranks],
            pod_uids=[f"added-{rank}" for rank in ranks[:pods]],
            left=list(left),
        )
    )


def uids(allocation: Allocation) -> dict[int, str]:
    return {member.rank: member.pod_uid for member in members(allocation)}


def test_an_added_rank_stands_beside_its_own_pod() -> None:
    """An added rank has its own pod; the ranks of the release keep theirs, and a rank without a pod yet has an empty
    uid."""
    found = grown(a_gang(), 3).it
    assert uids(found) == {0: "first-0", 1: "first-1", 2: "first-2", 3: ""}
    assert [member.rank for member in unreleased(found)] == [3]
    assert uids(grown(a_gang(), 3, pods=1).it)[3] == "added-3"


def test_a_rank_that_left_is_there_again_once_it_was_added() -> None:
    """A rank that left and was added again has its old number and the new pod; its previous pod was released too."""
    found = grown(a_gang(), 1, 3, pods=2, left=(1, 2)).it
    assert uids(found) == {0: "first-0", 1: "added-1", 3: "added-3"}
    assert pod_uids(found) == {"first-0", "first-1", "first-2", "added-1", "added-3"}


def test_a_growth_of_another_attempt_says_nothing() -> None:
    """A growth of another attempt is ignored."""
    story = grown(a_gang(), 3, pods=1)
    again = record(story.it, Event.RESTARTED, now=0.0)
    assert again.status.growth is None
    assert members(again) == []


def test_preempted_ranks_have_left_once_all_of_them_are_recorded() -> None:
    """Ranks that made room have left only when all of them are reported, because before that their nodes may still be
    in use."""
    shrink = Shrink(ranks=[1, 2], attempt=1, told=0)
    assert departed_ranks(a_gang().with_status(shrink=shrink).it) == ()
    done = a_gang().with_status(shrink=msgspec.structs.replace(shrink, told=2))
    assert departed_ranks(done.it) == (1, 2)
    assert allocation_fact(done.it, None).left_ranks == (1, 2)


def test_no_two_ranks_get_the_same_position() -> None:
    """No two ranks get the same position: a launched rank keeps its own when others join or leave."""
    story = a_gang()
    admission = story.it.status.admission
    assert admission is not None
    places = [admission.placements[0], admission.placements[2]]
    story = story.with_status(admission=msgspec.structs.replace(admission, placements=places))
    assert positions(story.it) == {0: 0, 2: 1, 1: 2, 3: 3}
    assert positions(grown(story, 1, 3).it) == positions(story.it)


def test_what_a_rank_was_before_it_came_back_is_not_its_end() -> None:
    """The earlier end of a rank that came back is not its current end; otherwise the planner would give its place to
    others."""
    ranks = [
        RankStatus(pod_uid="first-0", phase=RankState.RUNNING),
        RankStatus(pod_uid="first-1", phase=RankState.FAILED, exit_code=143),
        RankStatus(pod_uid="added-3", phase=RankState.FAILED, exit_code=1),
    ]
    story = grown(a_gang(started=2), 1, 2, pods=1, left=(1,)).with_status(ranks=ranks)
    assert allocation_fact(story.it, None).ended_ranks == ()


def test_a_rank_that_starts_again_stands_beside_its_next_pod() -> None:
    """A rank that starts again has no pod until its next one is committed; its placement and the other ranks do not
    change."""
    waiting = a_gang().with_status(restarted_ranks=[RankRestart(rank=1, n=1)])
    assert uids(waiting.it) == {0: "first-0", 1: "", 2: "first-2"}
    assert [member.rank for member in restarting(waiting.it)] == [1]
    there = a_gang().with_status(restarted_ranks=[RankRestart(rank=1, n=1, pod_uid="next-1")])
    assert uids(there.it) == {0: "first-0", 1: "next-1", 2: "first-2"}
    assert restarting(there.it) == []
    assert pod_uids(there.it) == {"first-0", "first-1", "first-2", "next-1"}
    assert [each.placement for each in members(there.it)] == [each.placement for each in members(a_gang().it)]


@pytest.mark.parametrize("uid", ["", "next-1"], ids=["waiting", "made"])
def test_a_failed_rank_that_may_start_again_keeps_its_place(uid: str) -> None:
    """A failed rank that may start again keeps its place until its attempt is over; a rank that succeeded does not."""
    ranks = [
        RankStatus(pod_uid="first-0", phase=RankState.SUCCEEDED, exit_code=0),
        RankStatus(pod_uid="first-1", phase=RankState.FAILED, exit_code=1),
        RankStatus(pod_uid="first-2", phase=RankState.FAILED, exit_code=1),
    ]
    story = a_gang().with_spec(restart=RestartUnit.RANK).with_status(ranks=ranks)
    story = story.with_status(restarted_ranks=[RankRestart(rank=1, n=1, pod_uid=uid)])
    fact = allocation_fact(story.it, None)
    assert (fact.ended_ranks, fact.told_ends) == ((0,), (0, 1, 2))
    over = allocation_fact(story.recorded(Event.TERMINATING, at_s=9).it, None)
    assert over.ended_ranks == (0, 2)


def test_a_gang_below_its_count_says_what_it_waits_for() -> None:
    """A gang below its count has a sentence about what it waits for; a complete gang has none."""
    assert below_count(a_gang().it, [2, 2, 2, 2]) == "3 of 4 ranks; grows when 2 more GPUs are free"
    assert below_count(a_gang().it) == "3 of 4 ranks; grows when there is room for 1 more"
    assert below_count(grown(a_gang(), 3, pods=1).it) == ""


def test_a_growth_that_failed_says_until_when_it_waits() -> None:
    """A failed growth has a message with the reason and the end of its wait."""
    growth = Growth(n=2, attempt=1, not_before="2026-01-01T00:10:00Z", reason="rank 3 on n: no such image")
    said = below_count(a_gang().with_status(growth=growth).it)
    assert said.endswith("not before 2026-01-01T00:10:00Z (rank 3 on n: no such image)")


def messages(now: AllocationStory, before: AllocationStory) -> list[str]:
    found = violations("Allocation", as_json(now.it), as_json(before.it))
    return [each.message for each in found if not each.pointer.startswith("/spec")]


def test_a_growth_is_not_forgotten() -> None:
    """A writer that does not know the field of a growth is refused, so that the growth is not lost."""
    story = grown(a_gang(), 3, pods=1)
    assert any("growth" in message for message in messages(a_gang(), story))
    assert any("growth" in message for message in messages(grown(a_gang(), 3), story))
    assert messages(grown(a_gang(), n=2), story) == []


def test_no_rank_is_added_to_what_is_stopped() -> None:
    """No rank is added to a stopped allocation: after a cancel the pods of a growth cannot be named."""
    before = grown(a_gang(), 3).killed()
    assert any("no more ranks" in message for message in messages(grown(a_gang(), 3, pods=1).killed(), before))
    assert messages(before, grown(a_gang(), 3)) == []


def test_only_a_growth_returns_preempted_ranks() -> None:
    """Only a growth removes ranks from the list of those that made room; otherwise the list only gets longer."""
    story = a_gang().with_status(shrink=Shrink(ranks=[2], attempt=1, told=1))
    assert any("ranks in shrink stay there" in message for message in messages(a_gang(), story))
    assert messages(grown(a_gang(), 2, left=(2,)), story) == []


def test_an_exit_is_followed_by_another_pod_only_with_a_growth() -> None:
    """A recorded exit is followed by another pod only with a growth, and is never rewritten."""
    ended = [RankStatus(pod_uid="first-0", phase=RankState.FAILED, exit_code=143)]
    other = [RankStatus(pod_uid="added-0", phase=RankState.RUNNING)]
    before = grown(a_gang(), 0, pods=1, left=(0,)).with_status(ranks=ended)
    assert messages(before.with_status(ranks=other), before) == []
    plain = a_gang().with_status(ranks=ended)
    assert messages(plain.with_status(ranks=other), plain) == ["the exit of a rank is written once"]
    rewritten = [RankStatus(pod_uid="first-0", phase=RankState.FAILED, exit_code=0)]
    assert messages(before.with_status(ranks=rewritten), before) == ["the exit of a rank is written once"]
