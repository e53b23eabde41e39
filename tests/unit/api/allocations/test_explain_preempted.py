"""The state of work that makes room for other work: what explain states of it, and for which work."""

from slipway.api.allocations.explain import state_sentence
from slipway.crd.v1alpha1 import Shrink
from slipway.model.lifecycle import Event
from tests.support.builders import an_allocation

RUNNING = an_allocation(3, minAvailable=1).assigned().released().running()
TOLD = RUNNING.stopped("Preempted", requeue=True, by="default/urgent")


def test_a_victim_says_until_when_and_for_whom() -> None:
    """The state of a victim names the time and the preemptor, in its grace period and while its pods end."""
    deadline = {"preemption": "2026-01-02T04:04:05Z"}
    told = TOLD.recorded(Event.PREEMPTING, at_s=6, reason="Preempted", deadlines=deadline)
    said = state_sentence(told.it)
    assert "asked to save its work by 2026-01-02T04:04:05Z (Preempted for default/urgent)" in said
    assert said.endswith("then it comes back as the next attempt")
    assert state_sentence(TOLD.it) == "stopping (Preempted for default/urgent): waiting for its pods to be gone"


def test_a_gang_that_shrinks_says_so_until_its_ranks_have_gone() -> None:
    """Ranks whose end is recorded already are not counted; after that it states how many ranks it has."""
    shrink = Shrink(ranks=[0, 1, 2], attempt=1, by="default/urgent", told=1)
    assert (
        state_sentence(RUNNING.with_status(shrink=shrink).it) == "running; 2 of its ranks make room for default/urgent"
    )
    one = Shrink(ranks=[2], attempt=1, by="default/urgent")
    assert state_sentence(RUNNING.with_status(shrink=one).it).endswith("one of its ranks makes room for default/urgent")
    gone = Shrink(ranks=[2], attempt=1, by="default/urgent", told=1)
    assert (
        state_sentence(RUNNING.with_status(shrink=gone).it) == "running; 2 of 3 ranks; the next attempt may have more"
    )
