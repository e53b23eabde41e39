"""Reads one pod: how far its main container has got, how it ended, and whose fault that was.

Owns the mapping of a pod to a rank state, and of an exit to a reason. Pure; does not know allocations, gangs or
retries. Only the main container decides; init containers can fail a rank; sidecars neither decide nor block.

Invariants: an exit is read from a container status or from the phase Failed, never inferred from absence; an end by a
kill after a deletion was requested is not the container's own end.
"""

from math import floor

import msgspec

from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER, condition_of
from slipway.kube.objects import ContainerStatus, Pod, StateTerminated
from slipway.model.exitcodes import ended_text, is_start_interrupted
from slipway.model.lifecycle import RankState
from slipway.model.reasons import INFRASTRUCTURE, Reason
from slipway.model.times import parse_time
from slipway.pods.ended import has_ended
from slipway.pods.podspec import SETUP_FAILED

MAIN = "main"
MESSAGE_CHARS_MAX = 512

_LOST = ("ContainerStatusUnknown", "Unknown")
"""The reasons of the kubelet for a container that is gone, and of containerd for one whose machine has restarted."""
_SIGNALLED = (137, 143)
_NODE_LOST_REASONS = frozenset({"NodeLost", "DeletionByPodGC"})
_EVICTED_REASONS = frozenset(
    {
        "Evicted",
        "Preempting",
        "Shutdown",
        "NodeShutdown",
        "Terminated",
        "DeletionByTaintManager",
        "EvictionByEvictionAPI",
        "PreemptionByScheduler",
        "PreemptionByKubeScheduler",
        "TerminationByKubelet",
    }
)
_PULL_REFUSED = "InvalidImageName"
_PULL_WAITS = frozenset({"ImagePullBackOff", _PULL_REFUSED, "ErrImageNeverPull"})
_THROTTLED = ("toomanyrequests", "429 too many requests", "pull qps exceeded", "rate limit")
"""Words of registries and kubelets, in lower case, for too many pulls: the image itself is not wrong."""
_CREATE_WAITS = frozenset({"CreateContainerConfigError", "CreateContainerError"})
_PULL_TRIES = _PULL_WAITS | {"ErrImagePull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}
"""The reasons that a kubelet reports while it pulls an image, and between two tries."""
_ON_ITS_WAY = ("", "ContainerCreating", "PodInitializing")
HELD_UP_WORDS = _PULL_TRIES | _CREATE_WAITS | {"RunContainerError", "PostStartHookError", "CrashLoopBackOff"}
"""Reasons of waiting containers that name a problem."""


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank ended. `at` is epoch seconds (None: unknown); `killed`: it ended after its deletion was requested."""

    state: RankState
    code: int | None = None
    reason: Reason = Reason.NONE
    message: str = ""
    at: float | None = None
    killed: bool = False

    @property
    def is_infrastructure(self) -> bool:
        """Whether the infrastructure is the cause, not the program or its spec."""
        return self.reason in INFRASTRUCTURE


class BlockedStart(msgspec.Struct, frozen=True, kw_only=True):
    """A container that cannot start: since when (epoch seconds) and why; `word` is the reason that Kubernetes gives."""

    reason: Reason
    message: str
    since: float | None
    word: str = ""


def is_over(pod: Pod) -> bool:
    """Whether no container of the pod can run any more: it has ended, or its deletion was requested before it had a
    node.

    The API server refuses to bind a pod that is being deleted, and without a node no kubelet ever changes its phase.
    """
    return has_ended(pod) or (not is_bound(pod) and pod.metadata.deletion_timestamp is not None)


def is_bound(pod: Pod) -> bool:
    """Whether the pod has a node."""
    return bool(pod.spec.node_name)


def main_name(pod: Pod) -> str:
    """Return the name of the main container: the annotation's, else `main`, else the first."""
    names = [container.name for container in pod.spec.containers]
    named = pod.metadata.annotations.get(ANNOTATION_MAIN_CONTAINER, "")
    if named in names:
        return named
    return MAIN if MAIN in names or not names else names[0]


def main_status(pod: Pod) -> ContainerStatus | None:
    """Return the main container's status; None when the kubelet has not reported one."""
    name = main_name(pod)
    return next((status for status in pod.status.container_statuses if status.name == name), None)


def rank_state(pod: Pod) -> RankState:
    """Return the state of the pod's rank, by its main container and the phase of the pod."""
    exit_ = exit_of(pod)
    if exit_ is not None:
        return exit_.state
    match pod.status.phase:
        case "Pending" | "Running" if pod.metadata.deletion_timestamp is not None:
            return RankState.RELEASING
        case "Pending":
            return RankState.BOUND if is_bound(pod) else RankState.PENDING
        case "Running":
            return RankState.RUNNING if is_running(pod) else RankState.BOUND
        case _:
            return RankState.UNKNOWN


def is_running(pod: Pod) -> bool:
    """Whether the main container runs now."""
    main = main_status(pod)
    return main is not None and main.state.running is not None and not is_over(pod)


def has_started(pod: Pod) -> bool:
    """Whether the main container has ever run."""
    main = main_status(pod)
    if main is None:
        return False
    ended = main.state.terminated
    return main.state.running is not None or (ended is not None and ended.started_at is not None)


def started_at(pod: Pod) -> float | None:
    """Return when the main container started (epoch seconds); None when that is unknown."""
    main = main_status(pod)
    if main is None:
        return None
    running, ended = main.state.running, main.state.terminated
    return _epoch(running.started_at if running else ended.started_at if ended else None)


def is_pod_ready(pod: Pod) -> bool:
    """Whether the pod is ready by its readiness probes."""
    ready = condition_of(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True" and is_running(pod)


def exit_of(pod: Pod, *, decided_at: float | None = None) -> RankExit | None:
    """Return how the rank ended; None while it has not. `decided_at`: when its end was decided (epoch seconds)."""
    main = main_status(pod)
    ended = main.state.terminated if main else None
    if ended is not None:
        return _exit_of_main(pod, ended, decided_at)
    if pod.status.phase == "Succeeded":
        return RankExit(state=RankState.SUCCEEDED, code=0)
    if pod.status.phase == "Failed":
        return _exit_without_main(pod)
    if is_over(pod):
        asked_at = deletion_asked_at(pod)
        return RankExit(
            state=RankState.FAILED, reason=Reason.POD_DELETED, message="never ran", at=asked_at, killed=True
        )
    return None


def certain_loss(pod: Pod) -> RankExit | None:
    """Return the certain loss of an existing pod: its deletion was requested, or its node cannot start it any more."""
    if exit_of(pod) is not None:
        return None
    asked_at = deletion_asked_at(pod)
    if asked_at is None:
        return _lost_sandbox(pod)
    reason = _disruption(pod) or Reason.POD_DELETED
    return RankExit(state=RankState.FAILED, reason=reason, message=_disruption_message(pod), at=asked_at, killed=True)


def _lost_sandbox(pod: Pod) -> RankExit | None:
    """Return the loss of a pod whose sandbox ended before its program ran, for example because the node rebooted.

    A kubelet makes no second sandbox for a pod with restartPolicy Never that has had a container, and leaves the pod
    Pending for ever, without a reason. Source: kuberuntime computePodActions (v1.36).
    """
    sandbox = condition_of(pod.status.conditions, "PodReadyToStartContainers")
    if pod.status.phase != "Pending" or sandbox is None or sandbox.status != "False":
        return None
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    if not any(status.container_id for status in statuses):
        return None
    message = f"node {pod.spec.node_name} lost the pod before its program ran, and does not start it again"
    return RankExit(
        state=RankState.FAILED, reason=Reason.NODE_LOST, message=message, at=_epoch(sandbox.last_transition_time)
    )


def deletion_asked_at(pod: Pod) -> float | None:
    """Return when the pod's deletion was requested (epoch seconds): the deadline less the grace period."""
    deadline = _epoch(pod.metadata.deletion_timestamp)
    return None if deadline is None else deadline - (pod.metadata.deletion_grace_period_seconds or 0)


def blocked_start(pod: Pod) -> BlockedStart | None:
    """Return the first container that cannot start: its image cannot be pulled, or its configuration is missing."""
    if is_over(pod):
        return None
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is None:
            continue
        image = status.image or _image_of(pod, status.name)
        if waiting.reason in _PULL_WAITS:
            text = f"image {image} cannot be pulled ({waiting.reason}): {waiting.message}"
            is_throttled = any(word in waiting.message.lower() for word in _THROTTLED)
            reason = Reason.IMAGE_PULL_THROTTLED if is_throttled else Reason.IMAGE_PULL
            since = _waiting_since(pod, waiting.reason)
            return BlockedStart(reason=reason, message=_short(text), since=since, word=waiting.reason)
        if waiting.reason in _CREATE_WAITS:
            text = f"container {status.name} cannot be created ({waiting.reason}): {waiting.message}"
            since = _waiting_since(pod, "")
            return BlockedStart(reason=Reason.LAUNCH_REFUSED, message=_short(text), since=since, word=waiting.reason)
    return None


def start_obstacle(pod: Pod) -> BlockedStart | None:
    """Return the obstacle to the start of the pod as its containers report it, even while the kubelet still retries.

    Users see this obstacle at once; only `blocked_start` ends an attempt.
    """
    found = blocked_start(pod)
    if found is not None or is_over(pod):
        return found
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is None or waiting.reason in _ON_ITS_WAY:
            continue
        what = f"container {status.name} cannot start"
        if waiting.reason in _PULL_TRIES:
            what = f"image {status.image or _image_of(pod, status.name)} cannot be pulled"
        return BlockedStart(
            reason=Reason.IMAGE_PULL if waiting.reason in _PULL_TRIES else Reason.LAUNCH_REFUSED,
            message=_short(f"{what} ({waiting.reason}): {waiting.message}"),
            since=_waiting_since(pod, ""),
            word=waiting.reason,
        )
    return None


def has_limit(word: str) -> bool:
    """Whether `blocked_start` decides when an obstacle with this reason of Kubernetes ends the attempt."""
    return word in _PULL_TRIES or word in _CREATE_WAITS


def is_pull(word: str) -> bool:
    """Whether this reason of a waiting container is about its image."""
    return word in _PULL_TRIES


def _exit_of_main(pod: Pod, ended: StateTerminated, decided_at: float | None) -> RankExit:
    at = _epoch(ended.finished_at)
    killed = _was_killed(pod, ended, at, decided_at)
    if ended.reason in _LOST and killed:
        # A kubelet also reports this for a container that had not started when its pod was deleted: no node was lost.
        reason = _disruption(pod) or Reason.POD_DELETED
        message = _disruption_message(pod) or "the pod was deleted; how its container ended is not known"
        return RankExit(state=RankState.FAILED, reason=reason, message=message, at=at, killed=True)
    if ended.reason in _LOST:
        message = "the node lost the container; its exit is not known"
        return RankExit(state=RankState.FAILED, reason=Reason.NODE_LOST, message=message, at=at)
    if is_start_interrupted(ended.reason, ended.message):
        return RankExit(
            state=RankState.FAILED, reason=Reason.NODE_LOST, message=_interrupted_text(pod, ended), at=at, killed=killed
        )
    if ended.exit_code == 0:
        return RankExit(state=RankState.SUCCEEDED, code=0, at=at, killed=killed)
    reason = _disruption(pod)
    if reason is None and killed:
        reason = Reason.POD_DELETED
    if reason is None:
        reason = Reason.OUT_OF_MEMORY if ended.reason == "OOMKilled" else Reason.RANK_FAILED
        if reason is Reason.RANK_FAILED and ended.message.startswith(SETUP_FAILED):
            reason = Reason.SETUP_FAILED
    text = ended_text(ended.exit_code, said=ended.reason, message=ended.message)
    if _is_over_its_limits(pod):
        text = _status_text(pod)
    return RankExit(
        state=RankState.FAILED, code=ended.exit_code, reason=reason, message=_short(text), at=at, killed=killed
    )


def _exit_without_main(pod: Pod) -> RankExit:
    """Return the exit of a Failed pod whose main container never reported one."""
    disruption = _disruption(pod)
    if disruption is not None:
        return RankExit(state=RankState.FAILED, reason=disruption, message=_disruption_message(pod))
    text = _short(_status_text(pod))
    if _is_over_its_limits(pod):
        return RankExit(state=RankState.FAILED, reason=Reason.RANK_FAILED, message=text)
    for status in pod.status.init_container_statuses:
        ended = status.state.terminated
        if ended is not None and ended.exit_code != 0:
            if is_start_interrupted(ended.reason, ended.message):
                return RankExit(
                    state=RankState.FAILED,
                    reason=Reason.NODE_LOST,
                    message=_interrupted_text(pod, ended),
                    at=_epoch(ended.finished_at),
                )
            said = ended_text(ended.exit_code, said=ended.reason, message=ended.message)
            return RankExit(
                state=RankState.FAILED,
                code=ended.exit_code,
                reason=Reason.INIT_FAILED,
                message=_short(f"init container {status.name}: {said}"),
                at=_epoch(ended.finished_at),
            )
    if deletion_asked_at(pod) is not None:
        return RankExit(state=RankState.FAILED, reason=Reason.POD_DELETED, at=deletion_asked_at(pod), killed=True)
    if pod.status.reason == "DeadlineExceeded":
        return RankExit(state=RankState.FAILED, reason=Reason.RANK_FAILED, message=text)
    if pod.status.reason and not any(_has_run(status) for status in pod.status.container_statuses):
        return RankExit(state=RankState.FAILED, reason=Reason.REJECTED, message=text)
    return RankExit(
        state=RankState.FAILED, reason=Reason.UNKNOWN_EXIT, message=text or "the pod failed without an exit"
    )


def _interrupted_text(pod: Pod, ended: StateTerminated) -> str:
    return _short(f"node {pod.spec.node_name} interrupted the start of the container: {ended.message}")


def _status_text(pod: Pod) -> str:
    """Return the reason and message that the kubelet reports for the pod as a whole."""
    return ": ".join(part for part in (pod.status.reason, pod.status.message) if part)


def _is_over_its_limits(pod: Pod) -> bool:
    """Whether the kubelet evicted the pod because it exceeded a limit in its own spec: of an emptyDir, or of its
    containers' storage.

    An eviction because of pressure on the node has the condition DisruptionTarget, and an eviction at admission has no
    container statuses. The states in these statuses do not help: a kubelet that has removed a container before it
    writes the last status of the pod may report it as waiting, although it ran.
    Source: Kubernetes, pkg/kubelet/eviction/eviction_manager.go, `localStorageEviction` and `evictPod`; observed with
    kubelets v1.36.
    """
    target = condition_of(pod.status.conditions, "DisruptionTarget")
    is_disruption = target is not None and target.status == "True"
    return pod.status.reason == "Evicted" and not is_disruption and bool(pod.status.container_statuses)


def _has_run(status: ContainerStatus) -> bool:
    return status.state.running is not None or status.state.terminated is not None


def _was_killed(pod: Pod, ended: StateTerminated, at: float | None, decided_at: float | None) -> bool:
    """Whether the container ended after the pod's deletion was requested.

    The kubelet confirms the end with a last delete, which sets a new time, so the pod no longer shows when its deletion
    was first requested. Then the signal of its exit decides, or `decided_at`, the time at which its end was decided.

    Both times are whole seconds. An exit with 0 in the second of the deletion is treated as killed: programs often exit
    with 0 at once on SIGTERM, and rarely complete in just that second. Killed work that was treated as complete would
    never run again.
    """
    asked_at = deletion_asked_at(pod)
    if asked_at is None:
        return False
    if pod.metadata.deletion_grace_period_seconds == 0:
        if ended.exit_code in _SIGNALLED:
            return True
        asked_at = asked_at if decided_at is None else min(asked_at, decided_at)
    if at is None:
        return ended.exit_code != 0
    return floor(at) >= floor(asked_at)


def _disruption(pod: Pod) -> Reason | None:
    """Return the infrastructure's reason for the end of the pod; None without one."""
    if _is_over_its_limits(pod):
        return None
    target = condition_of(pod.status.conditions, "DisruptionTarget")
    words = {pod.status.reason}
    if target is not None and target.status == "True":
        words.add(target.reason or "Evicted")
    if words & _NODE_LOST_REASONS:
        return Reason.NODE_LOST
    return Reason.EVICTED if words & _EVICTED_REASONS else None


def _disruption_message(pod: Pod) -> str:
    target = condition_of(pod.status.conditions, "DisruptionTarget")
    return _short(pod.status.message or (target.message if target else ""))


def _waiting_since(pod: Pod, reason: str) -> float | None:
    """Return when the wait of a container began (epoch seconds): when the pod started or was scheduled.

    Return 0 for an invalid image name, which needs no wait at all.
    """
    if reason == _PULL_REFUSED:
        return 0.0
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    return _epoch(pod.status.start_time or (scheduled.last_transition_time if scheduled else None))


def _image_of(pod: Pod, name: str) -> str:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return next((container.image for container in containers if container.name == name), "")


def _epoch(stamp: str | None) -> float | None:
    return parse_time(stamp) if stamp else None


def _short(text: str) -> str:
    text = text.strip().rstrip(":")
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"
