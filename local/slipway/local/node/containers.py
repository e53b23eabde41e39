"""The state of each container of a pod, and the pod status that follows from these states.

Owns the states, and the status in the form that a kubelet writes. Pure: callers pass times as epoch seconds.

Invariants: a terminated container stays terminated unless it is restarted; the phase is a function of the containers;
conditions of other writers are preserved.

Source: pkg/kubelet/kubelet_pods.go getPhase, pkg/kubelet/status/generate.go (behaviour, v1.36).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import JsonMap, objects_of
from slipway.local.node.podview import NodePod, is_sidecar
from slipway.local.node.shim import KILLED_CODE, Shim
from slipway.model.times import format_time

UNKNOWN_END = "ContainerStatusUnknown"


class WaitingState(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class RunningState(msgspec.Struct, frozen=True, kw_only=True):
    started_at: float
    pid: int = 0


class Terminated(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    finished_at: float
    started_at: float | None = None
    reason: str = ""
    message: str = ""
    pid: int = 0


State = WaitingState | RunningState | Terminated


@dataclass(kw_only=True)
class RunningContainer:
    """One container of a pod, from its preparation to its end. `is_ready` is the result of its probe."""

    spec: JsonMap
    is_init: bool = False
    state: State = field(default_factory=WaitingState)
    last: Terminated | None = None
    restarts: int = 0
    is_ready: bool = False
    process: Shim | None = None

    @property
    def name(self) -> str:
        return str(self.spec.get("name") or "")

    @property
    def is_sidecar(self) -> bool:
        return self.is_init and is_sidecar(self.spec)

    @property
    def is_running(self) -> bool:
        return isinstance(self.state, RunningState)

    @property
    def ended(self) -> Terminated | None:
        """The container's end, or None while it has not ended."""
        return self.state if isinstance(self.state, Terminated) else None


class PodVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about the whole pod that does not follow from its containers: a rejection, a deadline, a shutdown."""

    reason: str = ""
    message: str = ""
    is_failed: bool = False
    is_disruption: bool = False


def exited(code: int | None, *, started_at: float, finished_at: float, pid: int = 0) -> Terminated:
    """Return the state after a process ended. `code` is None when the exit code is unknown."""
    if code is None:
        message = "the node process was not running when the container ended; its exit code is not known"
        return Terminated(
            exit_code=KILLED_CODE, started_at=started_at, finished_at=finished_at, reason=UNKNOWN_END, message=message
        )
    reason = "Error" if code else "Completed"
    return Terminated(exit_code=code, started_at=started_at, finished_at=finished_at, reason=reason, pid=pid)


def phase_of(pod: NodePod, containers: Sequence[RunningContainer], *, is_final: bool = False) -> str:
    """Return the pod's phase, computed from its containers. `is_final`: no container is restarted any more."""
    inits = [each for each in containers if each.is_init and not each.is_sidecar]
    mains = [each for each in containers if not each.is_init]
    never = is_final or pod.restart_policy == "Never"
    if any(each.ended is not None and each.ended.exit_code for each in inits) and never:
        return "Failed"
    if any(each.ended is None for each in inits):
        return "Pending"
    if any(isinstance(each.state, WaitingState) and each.last is None for each in mains):
        return "Pending"
    is_lasting = pod.restart_policy == "Always" and not is_final
    if is_lasting or any(each.ended is None for each in mains) or any(each.is_running for each in containers):
        return "Running"
    failed = any(each.ended is not None and each.ended.exit_code for each in mains)
    return "Failed" if failed else "Succeeded"


def status_of(
    pod: NodePod,
    containers: Sequence[RunningContainer],
    *,
    pod_ip: str,
    host_ip: str,
    started_at: float,
    now: float,
    verdict: PodVerdict | None = None,
    is_final: bool = False,
) -> RawObject:
    """Return the pod's current status. `pod` is the current object; its other conditions are preserved."""
    ruling = verdict or PodVerdict()
    phase = "Failed" if ruling.is_failed else phase_of(pod, containers, is_final=is_final)
    status: RawObject = {
        "phase": phase,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": pod.status.get("startTime") or format_time(started_at, "seconds"),
        "conditions": _conditions(pod, containers, phase, ruling, now),
        "containerStatuses": [_container_status(each, phase) for each in containers if not each.is_init],
    }
    if "qosClass" in pod.status:
        status["qosClass"] = pod.status["qosClass"]
    if any(each.is_init for each in containers):
        status["initContainerStatuses"] = [_container_status(each, phase) for each in containers if each.is_init]
    if any(not isinstance(each.state, WaitingState) or each.last for each in containers):
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    if ruling.reason:
        status |= {"reason": ruling.reason, "message": ruling.message}
    return status


def rejected(pod: NodePod, verdict: PodVerdict, now: float) -> RawObject:
    """Return the status of a pod that the node did not admit."""
    kept = {name: value for name, value in pod.status.items() if name in ("conditions", "qosClass")}
    return {
        **kept,
        "phase": "Failed",
        "reason": verdict.reason,
        "message": verdict.message,
        "startTime": format_time(now, "seconds"),
    }


def _container_status(container: RunningContainer, phase: str) -> RawObject:
    state = container.state
    is_started = isinstance(state, RunningState)
    ready = is_started and container.is_ready
    if container.is_init and not container.is_sidecar:
        ready = container.ended is not None and container.ended.exit_code == 0
    status: RawObject = {
        "name": container.name,
        "image": str(container.spec.get("image") or ""),
        "imageID": "",
        "ready": ready,
        "started": is_started,
        "restartCount": container.restarts,
        "state": _state(state),
        "lastState": _state(container.last) if container.last else {},
    }
    pid = state.pid if isinstance(state, RunningState | Terminated) else 0
    if pid:
        status["containerID"] = f"process://{pid}"
    return status


def _state(state: State) -> RawObject:
    match state:
        case WaitingState(reason=reason, message=message):
            words: RawObject = {"reason": reason or "ContainerCreating"}
            return {"waiting": words | ({"message": message} if message else {})}
        case RunningState(started_at=at):
            return {"running": {"startedAt": format_time(at, "seconds")}}
        case Terminated():
            ended: RawObject = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "finishedAt": format_time(state.finished_at, "seconds"),
            }
            if state.started_at is not None:
                ended["startedAt"] = format_time(state.started_at, "seconds")
            if state.message:
                ended["message"] = state.message
            if state.pid:
                ended["containerID"] = f"process://{state.pid}"
            return {"terminated": ended}


def _conditions(
    pod: NodePod, containers: Sequence[RunningContainer], phase: str, verdict: PodVerdict, now: float
) -> list[RawObject]:
    inits = [each for each in containers if each.is_init and not each.is_sidecar]
    is_initialized = all(each.ended is not None and each.ended.exit_code == 0 for each in inits)
    unready = [each.name for each in containers if not each.is_init and not (each.is_running and each.is_ready)]
    reason, message = "", ""
    if phase in ("Succeeded", "Failed"):
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    elif unready:
        reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    wanted: dict[str, tuple[bool, str, str]] = {
        "PodReadyToStartContainers": (phase not in ("Succeeded", "Failed"), "", ""),
        "Initialized": (is_initialized, "" if is_initialized else "ContainersNotInitialized", ""),
        "Ready": (not reason, reason, message),
        "ContainersReady": (not reason, reason, message),
    }
    if verdict.is_disruption:
        wanted["DisruptionTarget"] = (True, "TerminationByKubelet", verdict.message)
    before = {str(condition.get("type")): condition for condition in objects_of(pod.status.get("conditions"))}
    kept: list[RawObject] = [dict(condition) for name, condition in before.items() if name not in wanted]
    return kept + [_condition(name, fact, before.get(name, {}), now) for name, fact in wanted.items()]


def _condition(type_: str, fact: tuple[bool, str, str], before: JsonMap, now: float) -> RawObject:
    is_true, reason, message = fact
    word = "True" if is_true else "False"
    since: Any = before.get("lastTransitionTime") if before.get("status") == word else None
    condition: RawObject = {"type": type_, "status": word, "lastTransitionTime": since or format_time(now, "seconds")}
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition
