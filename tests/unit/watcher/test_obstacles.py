"""An obstacle to the start of a rank is reported at the first look at its pod, in one condition, and ends the attempt
in time."""

from typing import Any

import pytest

from slipway.crd.meta import condition_of
from slipway.crd.transitions import CONDITION_BLOCKED
from slipway.crd.v1alpha1 import Allocation, Stop
from slipway.facts.custom_resources import deadlines_of
from slipway.kube.objects import KubeEvent
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from slipway.watcher.podwarnings import PodWarnings
from tests.support.builders import T0, PodStory, a_pod, an_allocation
from tests.support.reductions import NOW, ending, once, settled

SECRET = 'secret "missing" not found'
TOLD = f"rank 0 on n0: container main cannot be created (CreateContainerConfigError): {SECRET}"
MOUNT = 'MountVolume.SetUp failed for volume "c" : configmap "missing" not found'


def starting(ranks: int | None = None, **spec: Any) -> Allocation:
    return an_allocation(ranks, **spec).assigned().released().started().it


def said_of(allocation: Allocation) -> tuple[str, str]:
    """(reason, message) of the condition; empty without one."""
    found = condition_of(allocation.status.conditions, CONDITION_BLOCKED)
    return (found.reason, found.message) if found is not None else ("", "")


def an_event(pod: PodStory, reason: str, message: str, *, type_: str = "Warning") -> KubeEvent:
    about = {"kind": "Pod", "name": pod.it.metadata.name, "uid": pod.it.metadata.uid}
    body = {"metadata": {"name": "e", "uid": "e"}, "involvedObject": about, "reason": reason, "message": message}
    import msgspec

    return msgspec.convert(body | {"type": type_}, KubeEvent)


def noted(*events: KubeEvent) -> PodWarnings:
    warnings = PodWarnings()
    for event in events:
        warnings.note(event, event.message)
    return warnings


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("CreateContainerConfigError", SECRET),
        ("CreateContainerError", "no such device"),
        ("ErrImagePull", "manifest unknown"),
        ("ImagePullBackOff", "Back-off"),
        ("RunContainerError", "read-only"),
        ("SomethingNew", "that a later kubelet says"),
    ],
)
def test_a_container_that_waits_for_a_reason_is_told_at_once(word: str, message: str) -> None:
    """Every reason of a waiting container is reported at once, except the reasons of an ordinary start."""
    blocked = once(starting(), a_pod().waiting(word, message)).allocation
    reason, told = said_of(blocked)
    assert reason == word
    assert told.startswith("rank 0 on n0: ")
    assert message in told
    assert blocked.status.transitions[-1].type is Event.UPDATED
    for calm in ("ContainerCreating", "PodInitializing"):
        assert said_of(once(starting(), a_pod().waiting(calm)).allocation) == ("", "")


def test_the_same_obstacle_is_reported_once() -> None:
    """An obstacle is reported once: another try of the kubelet, the wait between tries, and other numbers in the same
    text are not new."""
    first = once(starting(), a_pod().waiting("ErrImagePull", "not found")).allocation
    assert not once(first, a_pod().waiting("ImagePullBackOff", "Back-off pulling image")).changed
    first = once(starting(), a_pod().waiting("CreateContainerError", "timeout after 1.2s (id 0a1b2c3d)")).allocation
    assert not once(first, a_pod().waiting("CreateContainerError", "timeout after 3s (id ffffffff)")).changed
    other = once(first, a_pod().waiting("CreateContainerError", "no such device")).allocation
    assert "no such device" in said_of(other)[1]


def test_a_resolved_obstacle_is_not_reported() -> None:
    """An obstacle is removed when its rank has started, also while others have not, and when all have started."""
    first = once(starting(2), a_pod(0).waiting("CreateContainerConfigError", SECRET), a_pod(1).bound()).allocation
    assert said_of(first) == ("CreateContainerConfigError", TOLD)
    assert not once(first, a_pod(0).bound(), a_pod(1).bound()).changed, "an older view is no evidence"
    on = once(first, a_pod(0).running(), a_pod(1).bound(), now=NOW + 5).allocation
    assert (said_of(on), on.status.phase) == (("", ""), Phase.STARTING)
    running = once(first, a_pod(0).running(), a_pod(1).running(), now=NOW + 5).allocation
    assert (said_of(running), running.status.phase) == (("", ""), Phase.RUNNING)
    assert "start" not in running.status.deadlines


def test_a_mount_that_fails_is_told_by_its_event() -> None:
    """A failed mount is reported from its event, because the pod shows nothing. The kubelet's general messages do not
    replace the cause; its progress removes it."""
    pod = a_pod().waiting("ContainerCreating")
    warnings = noted(an_event(pod, "FailedMount", MOUNT))
    uid = pod.it.metadata.uid
    blocked = once(starting(), pod, warnings=warnings.of([uid])).allocation
    assert said_of(blocked) == ("FailedMount", f"rank 0 on n0: {MOUNT}")
    general = "Unable to attach or mount volumes: unmounted volumes=[c]: timed out waiting for the condition"
    assert not warnings.note(an_event(pod, "FailedMount", general), general)
    assert not once(blocked, pod).changed, "a replica that reads no Events knows nothing of it"
    assert warnings.note(an_event(pod, "Pulling", 'Pulling image "x"', type_="Normal"), "")
    assert said_of(once(blocked, pod, warnings=warnings.of([uid])).allocation) == ("", "")


@pytest.mark.parametrize(
    ("message", "after_s", "end"),
    [(MOUNT, 300, Reason.LAUNCH_REFUSED), ("Multi-Attach error for volume x", 600, Reason.LAUNCH_STUCK)],
)
def test_a_start_is_given_up_also_when_only_events_say_why(message: str, after_s: int, end: Reason) -> None:
    """A start is given up also when only events show why: a name that does not exist is the user's fault; a volume that
    is not attached may work on another node."""
    pod = a_pod().waiting("ContainerCreating")
    known = noted(an_event(pod, "FailedMount", message)).of([pod.it.metadata.uid])
    blocked = once(starting(), pod, warnings=known).allocation
    early = once(blocked, pod, warnings=known, now=NOW + after_s - 1)
    assert not early.changed
    assert early.needs.recheck_at == NOW + after_s
    late = once(blocked, pod, now=NOW + after_s).allocation.status
    assert (late.phase, late.reason) == (Phase.TERMINATING, end)
    assert late.message == f"rank 0 on n0: {message}"


def test_an_obstacle_that_a_wrong_clock_wrote_is_given_up_in_time() -> None:
    """The watcher's clock was an hour ahead, and was corrected: the time for the obstacle then runs from the
    correction."""
    pod = a_pod().waiting("ContainerCreating")
    known = noted(an_event(pod, "FailedMount", MOUNT)).of([pod.it.metadata.uid])
    ahead = once(starting(), pod, warnings=known, now=NOW + 3600).allocation
    right = once(ahead, pod, warnings=known)
    assert right.changed
    assert right.needs.recheck_at == NOW + 600
    assert not once(right.allocation, pod, warnings=known, now=NOW + 1).changed
    assert once(right.allocation, pod, now=NOW + 600).allocation.status.phase is Phase.TERMINATING


def test_the_pending_timeout_bounds_a_start_that_is_kept_up() -> None:
    """The pending timeout runs from the admission and only while an obstacle exists: a slow pull is none. The end names
    the obstacle."""
    calm = starting(pendingTimeout="8s")
    assert "pending" not in deadlines_of(calm)
    pod = a_pod().waiting("CreateContainerConfigError", SECRET)
    blocked = once(calm, pod).allocation
    assert deadlines_of(blocked)["pending"] == T0 + 1 + 8
    import msgspec

    stop = Stop(reason="PendingTimeout", at="2023-11-14T22:13:40.000Z", attempt=1)
    stopped = msgspec.structs.replace(blocked, status=msgspec.structs.replace(blocked.status, stop=stop))
    ended = settled(stopped, pod.deleted().with_status(phase="Failed"))
    assert ending(ended) == (Phase.TERMINATED, Result.TIMED_OUT, Reason.PENDING_TIMEOUT)
    assert ended.status.message == TOLD
