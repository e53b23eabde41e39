"""The finalizers of pods and of the allocation are removed once they are no longer needed."""

from slipway.model.lifecycle import Event, Phase
from tests.support.builders import AllocationStory, a_pod, an_allocation
from tests.support.reductions import NOW, a_running, once, settled


def test_a_finalizer_goes_with_the_write_that_holds_the_exit() -> None:
    """A pod's finalizer is removed after the write that stores its exit; a pod whose exit is not in the answer keeps
    it."""
    story = a_running(2)
    early = once(story.it, a_pod(0).exited(0), a_pod(1).running(), written_at=NOW)
    assert not early.changed
    assert early.drop_pod_finalizers == ()
    done = once(story.it, a_pod(0).exited(0), a_pod(1).running(), written_at=NOW - 1)
    assert done.changed
    assert [pod.metadata.name[-1] for pod in done.drop_pod_finalizers] == ["0"]


def test_an_exit_that_is_seen_is_recorded_also_in_a_namespace_that_is_going() -> None:
    """In a namespace that is being deleted, running pods lose their finalizer at once, and ended pods after the write
    that stores their exit."""
    story = settled(a_running(2).it, a_pod(0).running(), a_pod(1).running(), namespace_terminating=True)
    pods = a_pod(0).exited(0), a_pod(1).running()
    early = once(story, *pods, written_at=NOW, namespace_terminating=True)
    assert not early.changed
    assert [pod.metadata.name[-1] for pod in early.drop_pod_finalizers] == ["1"]
    done = once(story, *pods, written_at=NOW - 1, namespace_terminating=True)
    assert done.changed
    assert [pod.metadata.name[-1] for pod in done.drop_pod_finalizers] == ["0", "1"]


def test_a_bound_pod_that_no_release_names_is_kept_while_one_may_come() -> None:
    """A bound pod that no release names keeps its finalizer while a release may follow, because the watcher's view may
    be older. An unbound pod has never run and loses it."""
    story = an_allocation().assigned()
    assert once(story.it, a_pod().running().deleted()).drop_pod_finalizers == ()
    assert len(once(story.it, a_pod().deleted()).drop_pod_finalizers) == 1


def test_finalizers_of_pods_of_past_attempts_are_removed() -> None:
    """Pods of past attempts lose their finalizer, because their exits were recorded before the next attempt."""
    second = settled(a_running(maxRestarts=1).it, a_pod().exited(1))
    done = once(second, a_pod().exited(1), a_pod(0, attempt=3).exited(1))
    assert [pod.metadata.name for pod in done.drop_pod_finalizers] == ["run-0123abcd-1-0"]
    assert done.needs.hint


def test_a_pod_that_ended_by_itself_is_deleted_once_its_attempt_is_over() -> None:
    """A pod that ended by itself is deleted once its attempt is over, by a view that shows its end: an older view does
    not show which logs must be read."""
    one_down = once(a_running(2, maxRestarts=0).it, a_pod(0).exited(1), a_pod(1).running())
    assert one_down.allocation.status.phase is Phase.TERMINATING
    assert [pod.metadata.name[-1] for pod in one_down.deletes] == ["0"]
    assert once(one_down.allocation, a_pod(0).running(), a_pod(1).running()).deletes == ()
    assert once(one_down.allocation, a_pod(0).exited(1).deleted(), a_pod(1).running()).deletes == ()
    goes_on = once(a_running(2).it, a_pod(0).exited(0), a_pod(1).running(), written_at=NOW - 1)
    assert (goes_on.changed, goes_on.deletes) == (True, ())


def test_the_finalizer_of_the_allocation_is_removed_last() -> None:
    """The finalizer of the allocation is removed last: after its end, and when no pod is left."""
    ended = once(a_running().it, a_pod().exited(0)).allocation
    assert not once(ended, a_pod().exited(0)).drop_cr_finalizer
    assert once(ended).drop_cr_finalizer
    assert once(ended).needs.hint
    free = AllocationStory(ended).with_metadata(finalizers=[])
    assert not once(free.it).needs.hint
    assert not once(free.it).drop_cr_finalizer


def test_terminated_is_absorbing() -> None:
    """Terminated never changes, whatever is requested or observed afterwards."""
    ended = once(a_running().it, a_pod().exited(0)).allocation
    for story in (
        AllocationStory(ended).killed(),
        AllocationStory(ended).deleted(),
        AllocationStory(ended).stopped("MaxRuntime"),
    ):
        assert not once(story.it, a_pod().exited(1), now=NOW + 99, namespace_terminating=True).changed


def test_a_kill_in_a_hurry_shortens_the_grace_of_pods_that_are_leaving() -> None:
    """A kill with a shorter grace shortens that of pods that are being deleted, once. A pod with a grace as short, or
    one that is not being deleted yet, is left alone."""
    killed = (
        a_running(2, signals={"graceS": 1}, desired="Stopped").recorded(Event.TERMINATING, at_s=9, reason="Killed").it
    )
    slow, quick = a_pod(0).running().deleted(grace_s=600), a_pod(1).running().deleted(grace_s=1)
    assert [(pod.metadata.name[-1], grace_s) for pod, grace_s in once(killed, slow, quick).hurried] == [("0", 1)]
    assert once(killed, a_pod(0).running(), quick).hurried == ()
    calm = a_running(desired="Stopped").recorded(Event.TERMINATING, at_s=9, reason="Killed").it
    assert once(calm, slow).hurried == ()
