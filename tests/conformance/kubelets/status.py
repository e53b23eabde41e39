"""The status of a pod as its kubelet writes it: a pure function of its life, and the patch that carries it.

Owns phase, conditions and container statuses. Fields that a kubelet does not write (qosClass, conditions of others) are
not in the patch, and a strategic merge leaves them unchanged.

Not written, unlike by a real kubelet: `resources`, `allocatedResources`, `user` and `volumeMounts` of containers.

Source: pkg/kubelet/kubelet_pods.go getPhase, pkg/kubelet/status/generate.go, status_manager.go (behaviour, v1.36).
"""

import hashlib
from functools import lru_cache
from typing import Any

import msgspec

from slipway.model.times import format_time
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.objects import Json, Pod
from tests.conformance.kubelets.states import HasEnded, IsRunning, IsWaiting, Role, SimulatedContainer

_OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
_encode = msgspec.json.encode


@lru_cache(maxsize=8192)
def _second(at: int) -> str:
    return format_time(at, "seconds")


def stamp(at: float) -> str:
    """A time in the format of statuses; cached, because many pods share a second."""
    return _second(int(at))


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Why a kubelet refuses a pod."""

    reason: str
    message: str


class Since:
    """When each condition of one pod got its present status."""

    def __init__(self, pod: Pod) -> None:
        self._since = {item.type: (item.status, item.last_transition_time) for item in pod.status.conditions}

    def of(self, condition: str, status: str, now: float) -> str:
        """The time of the last transition: now if `status` is new."""
        before = self._since.get(condition)
        if before is not None and before[0] == status and before[1]:
            return before[1]
        since = stamp(now)
        self._since[condition] = (status, since)
        return since


def patch_of(pod: Pod, status: Json) -> bytes:
    """A strategic merge patch of the status that applies to the pod with this uid only."""
    return _encode({"metadata": {"uid": pod.uid}, "status": status})


def rejected_status(pod: Pod, rejection: Rejection, now: float) -> Json:
    """The status of a refused pod: no containers, and none of a kubelet's conditions."""
    dropped = [item.type for item in pod.status.conditions if item.type in _OURS]
    status: Json = {
        "phase": "Failed",
        "reason": rejection.reason,
        "message": f"Pod was rejected: {rejection.message}",
        "startTime": pod.status.start_time or stamp(now),
    }
    if dropped:
        status["conditions"] = [{"$patch": "delete", "type": name} for name in dropped]
    return status


def status_of(life: Life, since: Since, *, pod_ip: str, host_ip: str, now: float) -> Json:
    """The whole status that the kubelet writes of the pod at that time."""
    pod, phase = life.pod, phase_of(life)
    inits = [box for box in life.boxes if box.role is not Role.MAIN]
    waiting = "PodInitializing" if inits else "ContainerCreating"
    status: Json = {
        "phase": phase,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": pod.status.start_time or stamp(life.admitted_at),
        "conditions": _conditions(life, phase, since, now),
        "containerStatuses": [_container(pod, box, waiting) for box in sorted(life.mains, key=lambda box: box.name)],
    }
    if life.generation:
        status["observedGeneration"] = life.generation
    if inits:
        status["initContainerStatuses"] = [_container(pod, box, waiting) for box in inits]
    if life.has_sandbox:
        status["podIP"] = pod_ip
        status["podIPs"] = [{"ip": pod_ip}]
    if life.verdict is not None and (life.is_ended or phase == "Failed"):
        status["reason"] = life.verdict.reason
        status["message"] = life.verdict.message
    return status


def phase_of(life: Life) -> str:
    """The phase; terminal only once nothing of the pod can run any more."""
    if not life.is_ended:
        began = any(box.has_run for box in life.mains)
        inits_over = all(box.end and box.end.code == 0 for box in life.boxes if box.role is Role.INIT)
        if not inits_over or any(not box.has_run for box in life.mains):
            return "Pending"
        return "Running" if began else "Pending"
    if life.verdict is not None:
        return "Failed"
    ends = [box.end for box in life.mains]
    return "Succeeded" if all(end is not None and end.code == 0 for end in ends) else "Failed"


def container_id(pod: Pod, name: str, restarts: int) -> str:
    """The id of a container: equal for equal starts."""
    return "containerd://" + hashlib.sha256(f"{pod.uid}/{name}/{restarts}".encode()).hexdigest()


def _container(pod: Pod, box: SimulatedContainer, waiting: str) -> Json:
    is_up = box.is_up
    ready = is_up and box.is_ready
    if box.role is Role.INIT:
        ready = box.end is not None and box.end.code == 0
    # The number of a start is the number of restarts before it. While a container waits, the id is that of its last
    # start.
    number = box.restarts if not isinstance(box.state, IsWaiting) else box.restarts - 1
    has_id = number >= 0 and (is_up or (box.end or box.last) is not None)
    has_id = has_id and not (box.end is not None and box.end.started_at is None)
    status: Json = {
        "name": box.name,
        "image": box.image,
        "imageID": image_id(box.image) if has_id else "",
        "ready": ready,
        "started": is_up,
        "restartCount": number if isinstance(box.state, IsWaiting) and box.restarts else box.restarts,
        "state": _state(pod, box, box.state, box.restarts, waiting),
        "lastState": _state(pod, box, box.last, box.restarts - 1, waiting) if box.last else {},
    }
    if has_id:
        status["containerID"] = container_id(pod, box.name, number)
    return status


def _state(
    pod: Pod, box: SimulatedContainer, state: IsWaiting | IsRunning | HasEnded, number: int, waiting: str
) -> Json:
    match state:
        case IsWaiting(reason=reason, message=message):
            words: Json = {"reason": reason or waiting}
            return {"waiting": words | ({"message": message} if message else {})}
        case IsRunning(started_at=at):
            return {"running": {"startedAt": stamp(at)}}
        case HasEnded():
            ended: dict[str, Any] = {"exitCode": state.code, "reason": state.reason}
            if state.message:
                ended["message"] = state.message
            # A container that could not be located has neither times nor an id.
            ended["startedAt"] = None if state.started_at is None else stamp(state.started_at)
            ended["finishedAt"] = None if state.finished_at is None else stamp(state.finished_at)
            if state.started_at is not None:
                ended["containerID"] = container_id(pod, box.name, number)
            return {"terminated": ended}


def image_id(image: str) -> str:
    """The digest that a runtime would report."""
    name = image.partition("@")[0]
    return f"{name}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def _conditions(life: Life, phase: str, since: Since, now: float) -> list[Json]:
    ready = _readiness(life, phase)
    wanted = (
        ("PodReadyToStartContainers", (life.has_sandbox and not life.is_ended, "", "")),
        ("Initialized", _initialization(life, phase)),
        ("Ready", ready),
        ("ContainersReady", ready),
        ("PodScheduled", (True, "", "")),
    )
    conditions = [_condition(life, name, fact, since, now) for name, fact in wanted]
    if life.verdict is not None and life.verdict.is_disruption and life.is_ended:
        fact = (True, "TerminationByKubelet", life.verdict.message)
        conditions.append(_condition(life, "DisruptionTarget", fact, since, now))
    return conditions


def _readiness(life: Life, phase: str) -> tuple[bool, str, str]:
    if phase == "Succeeded":
        return False, "PodCompleted", ""
    if phase == "Failed" and all(box.end for box in life.mains) and life.verdict is None and not _is_unlocated(life):
        return False, "PodFailed", ""
    unready = [box.name for box in life.boxes if box.role is not Role.INIT and not (box.is_up and box.is_ready)]
    if not unready:
        return True, "", ""
    return False, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"


def _is_unlocated(life: Life) -> bool:
    """Whether the pod ended before its containers began: then its phase is decided after its conditions."""
    return any(box.end is not None and box.end.started_at is None for box in life.mains)


def _initialization(life: Life, phase: str) -> tuple[bool, str, str]:
    if phase == "Succeeded":
        return True, "PodCompleted", ""
    if any(box.has_run for box in life.mains):
        return True, "", ""
    incomplete = [
        box.name
        for box in life.boxes
        if (box.role is Role.INIT and not (box.end and box.end.code == 0))
        or (box.role is Role.SIDECAR and not box.is_up)
    ]
    if not incomplete:
        return True, "", ""
    return False, "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]"


def _condition(life: Life, name: str, fact: tuple[bool, str, str], since: Since, now: float) -> Json:
    is_true, reason, message = fact
    word = "True" if is_true else "False"
    # An empty reason or message is sent as null, so that an older one is removed.
    condition: Json = {
        "type": name,
        "status": word,
        "lastProbeTime": None,
        "lastTransitionTime": since.of(name, word, now),
        "reason": reason or None,
        "message": message or None,
    }
    if life.generation:
        condition["observedGeneration"] = life.generation
    return condition
