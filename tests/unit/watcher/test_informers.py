"""What the stores of the watcher show at a quick look."""

import pytest

from slipway.watcher.informers import Informers
from tests.support.builders import AllocationStory, PodStory, a_pod, an_allocation

WAITS = an_allocation(2)
ASSIGNED = an_allocation(2).assigned().released()
RUNS = an_allocation(2).assigned().released().running()


@pytest.mark.parametrize(
    ("story", "pods", "is_unsettled"),
    [
        (WAITS, [], False),
        (WAITS, [a_pod(0)], True),
        (ASSIGNED, [a_pod(0).bound(), a_pod(1)], False),
        (ASSIGNED, [a_pod(0).running(), a_pod(1)], True),
        (RUNS, [a_pod(0).running(), a_pod(1).running()], False),
        (RUNS, [a_pod(0).running(), a_pod(1).exited(1)], True),
        (RUNS, [], True),
        (RUNS.killed(), [a_pod(0).running(), a_pod(1).running()], True),
    ],
)
def test_what_may_have_changed_while_no_watcher_ran(
    story: AllocationStory, pods: list[PodStory], *, is_unsettled: bool
) -> None:
    """A start looks first at allocations whose pods show more than their record, and at those that have to stop."""
    informers = Informers()
    informers.allocations.put(story.it)
    for pod in pods:
        informers.pods.put(pod.it)
    assert informers.is_unsettled(story.it.metadata.uid) is is_unsettled


def test_pods_without_an_allocation_are_looked_at_first() -> None:
    """An unknown uid is unsettled: its pods may have to be deleted."""
    assert Informers().is_unsettled("gone")
