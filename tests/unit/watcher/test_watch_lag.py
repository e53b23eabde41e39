"""Released pods that the watch has not shown yet: the watcher waits for a moment, then reads them."""

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.lifecycle import Phase
from slipway.watcher.consistent_reads import AGAIN_S, LATE_S, PodWatchLag
from tests.support.builders import T0, an_allocation
from tests.support.clock import FakeClock


def a_gang() -> Allocation:
    return an_allocation(ranks=2).assigned("n0", "n1").released().it


def behind() -> int:
    """The version that the watch of pods has reached: it has shown nothing yet."""
    return 0


def uids_of(allocation: Allocation) -> list[str]:
    assert allocation.status.release is not None
    return allocation.status.release.pod_uids


def a_pod(uid: str) -> Pod:
    return msgspec.convert({"metadata": {"name": uid, "uid": uid}}, Pod)


async def test_what_was_never_seen_is_waited_for_and_then_read_now_and_then() -> None:
    """Unseen pods are waited for, and then read at intervals; looks for other reasons do not prolong the wait."""
    clock, gang = FakeClock(T0), a_gang()
    late, seen = PodWatchLag(clock, behind), [a_pod(uids_of(gang)[0])]
    assert late.wait_s(gang, seen, set()) == AGAIN_S
    clock.advance(LATE_S - AGAIN_S / 2)
    assert late.wait_s(gang, seen, set()) == pytest.approx(AGAIN_S / 2)
    clock.advance(AGAIN_S / 2)
    assert [late.wait_s(gang, seen, set()) for _ in range(2)] == [0, AGAIN_S]


async def test_a_watch_that_has_come_as_far_as_the_release_is_believed_enough_to_look() -> None:
    """A watch that has passed the version of the release should have shown the pods, so they are read at once."""
    gang = a_gang()
    assert PodWatchLag(FakeClock(T0), lambda: gang.metadata.version - 1).wait_s(gang, [], set()) > 0
    assert PodWatchLag(FakeClock(T0), lambda: gang.metadata.version).wait_s(gang, [], set()) == 0


async def test_what_was_seen_to_go_is_read_at_once() -> None:
    """A pod that the watch showed and then removed is read at once, because its absence is no delay of the watch."""
    gang = a_gang()
    assert PodWatchLag(FakeClock(T0), behind).wait_s(gang, [], {uids_of(gang)[1]}) == 0


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.TERMINATING])
async def test_no_wait_for_the_watch_once_it_runs_or_ends(phase: Phase) -> None:
    """There is no wait once the allocation runs or ends: then every pod was seen, or will be deleted."""
    gang = a_gang()
    later = msgspec.structs.replace(gang, status=msgspec.structs.replace(gang.status, phase=phase))
    assert PodWatchLag(FakeClock(T0), behind).wait_s(later, [], set()) == 0


async def test_forgotten_objects_leave_no_state() -> None:
    """A forgotten allocation has no state left: its next wait starts anew."""
    clock, gang = FakeClock(T0), a_gang()
    late = PodWatchLag(clock, behind)
    late.wait_s(gang, [], set())
    clock.advance(LATE_S)
    late.forget(gang.metadata.uid)
    assert late.wait_s(gang, [], set()) > 0
