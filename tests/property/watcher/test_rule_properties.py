"""The end of an attempt does not depend on when a watcher reads its pods."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from tests.support.builders import T0, AllocationStory, PodStory, a_pod
from tests.support.reductions import a_running, once, settled

RANKS = 4
CODES = [0, 1, 3, 42]
FIRST_S = 10
KILLED = 143

ACTIONS = ["fail", "retry", "ignore", "notCounted"]
EXIT_CODES: list[list[int | str]] = [[], [1], [3], [42], [1, 42], ["1-3"]]
TARGETS: list[dict[str, Any]] = [
    *({"role": "worker", "count": count + 1} for count in range(RANKS)),
    *({"role": "worker", "indexes": [index]} for index in range(RANKS)),
]


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """A failure policy, a success policy, both or none, as in a launch."""
    spec: dict[str, Any] = {}
    if draw(st.booleans()):
        rules = [
            {"action": draw(st.sampled_from(ACTIONS)), "exitCodes": draw(st.sampled_from(EXIT_CODES))}
            for _ in range(draw(st.integers(1, 3)))
        ]
        spec["failurePolicy"] = {"rules": rules, "maxUncountedRestarts": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        targets = draw(st.lists(st.sampled_from(TARGETS), min_size=1, max_size=2))
        spec["successPolicy"] = {"operator": draw(st.sampled_from(["All", "Any"])), "targets": targets}
    return spec


@st.composite
def stories(draw: st.DrawFn) -> AllocationStory:
    """A running gang with policies."""
    spec: dict[str, Any] = {"maxRestarts": draw(st.integers(0, 1))}
    spec |= draw(st.sampled_from([{}, {"restart": "rank"}, {"minAvailable": 2}, {"minAvailable": 3}]))
    spec |= draw(policies())
    return a_running(RANKS, **spec)


def seen_at(second: int, ends: dict[int, tuple[int, int]], told_s: int | None) -> list[PodStory]:
    """The pods at `second`. `ends` is {rank: (when it ends by itself, its exit code)}; from `told_s` on the others
    are killed."""
    pods: list[PodStory] = []
    for rank, (at_s, code) in ends.items():
        pod = a_pod(rank)
        if at_s <= second and (told_s is None or at_s < told_s):
            pods.append(pod.exited(code, at_s=at_s))
        elif told_s is not None:
            pods.append(pod.exited(KILLED, at_s=told_s).deleted(at_s=told_s))
        else:
            pods.append(pod.running())
    return pods


def watched(story: AllocationStory, ends: dict[int, tuple[int, int]], looks: list[int]) -> Allocation:
    """The allocation after a watcher has reduced it in each of these seconds."""
    allocation, told_s = story.it, None
    for second in looks:
        allocation = once(allocation, *seen_at(second, ends, told_s), now=T0 + second + 0.9).allocation
        if allocation.status.phase is Phase.TERMINATING:
            told_s = second + 1
            break
        if allocation.status.phase is not Phase.RUNNING:
            break
    last = FIRST_S + RANKS + 1
    return settled(allocation, *seen_at(last, ends, told_s), now=T0 + last + 1)


def decided(allocation: Allocation) -> tuple[Any, ...]:
    status = allocation.status
    said = status.message.split(": ", 1)[0] if status.phase is Phase.TERMINATED else ""
    return status.phase, status.result, status.reason, status.restarts, status.uncounted_restarts, said


@given(stories(), st.permutations(range(RANKS)), st.lists(st.sampled_from(CODES), min_size=RANKS, max_size=RANKS))
def test_a_watcher_that_was_away_decides_as_one_that_was_there(
    story: AllocationStory, order: list[int], codes: list[int]
) -> None:
    """One watcher reads after each end, another when all ranks have ended: both record the same end, counted alike,
    for the same rank."""
    ends = {rank: (FIRST_S + place, codes[rank]) for rank, place in enumerate(order)}
    present = watched(story, ends, list(range(FIRST_S, FIRST_S + RANKS)))
    absent = watched(story, ends, [])
    assert decided(present) == decided(absent)
