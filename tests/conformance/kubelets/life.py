"""One pod on its node: containers that start, run, fail, are restarted and end, as a function of time.

Owns the states of the containers and the time of the next change. Pure: no clock, no loop, no API. The caller passes
the time (epoch seconds), reads `notes` for what happened, and `due_at` for when to call again.

Invariants: a terminated container stays so unless the restart policy starts it again; nothing starts after a stop;
after `is_ended` nothing changes.

Source: pkg/kubelet/kuberuntime computePodActions, doBackOff; pkg/kubelet/status TerminatePod (behaviour, v1.36).
"""

from slipway.model.times import parse_time
from tests.conformance.kubelets import objects
from tests.conformance.kubelets.objects import Pod
from tests.conformance.kubelets.script import FOREVER, Script
from tests.conformance.kubelets.states import (
    NEVER,
    HasEnded,
    IsRunning,
    IsWaiting,
    Note,
    NoteKind,
    Role,
    SimulatedContainer,
    Verdict,
)

KILLED = 137
LOST = 255
BACKOFF_MAX_S = 300.0
PULL_ERROR_S = 1.0
"""The seconds for which ErrImagePull is shown before ImagePullBackOff, at most half the backoff."""
UNKNOWN = "ContainerStatusUnknown"
_EPSILON_S = 1e-6


class Life:
    """One admitted pod. Call `advance` when it is due or another method has changed it; it does everything that is
    due by then."""

    def __init__(self, pod: Pod, script: Script, now: float) -> None:
        self.pod = pod
        self.script = script
        self.admitted_at = now
        self._first_generation = pod.metadata.generation
        self.boxes = _boxes(pod, script)
        self.mains = [box for box in self.boxes if box.role is Role.MAIN]
        self.notes: list[Note] = []
        self.due_at = now
        self.has_sandbox = False
        self.is_ended = False
        self.is_adopted = False
        self.stop_at: float | None = None
        self.kill_at = NEVER
        self.verdict: Verdict | None = None
        self._sandbox_at = now + script.starts_s
        self._mounts = 0
        self._adopt(now)

    # --- calls from outside -----------------------------------------------------------------------------------------

    def stop(self, now: float, grace_s: float, *, verdict: Verdict | None = None) -> bool:
        """Send SIGTERM to every container, SIGKILL after the grace; a later call can only shorten it. Whether it
        changed anything."""
        if self.is_ended:
            return False
        self.verdict = self.verdict or verdict
        kill_at = now + grace_s
        if self.stop_at is None:
            self.stop_at, self.kill_at = now, kill_at
            for box in self.boxes:
                if box.is_up:
                    self._note(NoteKind.KILLING, box, now, f"Stopping container {box.name}")
        elif kill_at < self.kill_at - _EPSILON_S:
            self.kill_at = kill_at
        else:
            return False
        self.due_at = now
        return True

    def exit(self, now: float, code: int, container: str = "") -> bool:
        """End the program of that container (else of every main one) now. Whether any container ran."""
        found = [
            box
            for box in self.boxes
            if box.is_up and (box.name == container or (not container and box.role is Role.MAIN))
        ]
        for box in found:
            self._end(box, now, code)
        self.due_at = now if found else self.due_at
        return bool(found)

    def lose(self, now: float, *, code: int = LOST, reason: str = "Unknown") -> None:
        """End every running container because the machine dies; a later look at the container finds only this end."""
        for box in self.boxes:
            if box.is_up:
                self._end(box, now, code, reason)

    @property
    def generation(self) -> int:
        """The pod's generation that the status describes; a deletion raises it, but the status keeps the first one
        until the end."""
        return self.pod.metadata.generation if self.is_ended else self._first_generation

    # --- time -------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Do everything that is due by `now`."""
        while self._step(now):
            pass
        self.due_at = self._next_due(now)

    def _step(self, now: float) -> bool:
        if self.is_ended:
            return False
        if self.stop_at is not None:
            return self._wind_down(now, self.stop_at)
        if self._is_past_limits(now):
            return True
        if now < self._sandbox_at - _EPSILON_S:
            return False
        if not self.has_sandbox:
            return self._prepare(now)
        return self._run(now)

    def _is_past_limits(self, now: float) -> bool:
        limit = self.pod.spec.active_deadline_seconds
        if limit is not None and now >= self._began_at() + limit:
            message = "Pod was active on the node longer than the specified deadline"
            return self.stop(now, self.pod.grace_s, verdict=Verdict(reason="DeadlineExceeded", message=message))
        if self.script.evicts_s is not None and now >= self.admitted_at + self.script.evicts_s - _EPSILON_S:
            message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. "
            self.notes.append(Note(NoteKind.EVICTED, "", now, message))
            return self.stop(now, 0.0, verdict=Verdict(reason="Evicted", message=message, is_disruption=True))
        return False

    def _prepare(self, now: float) -> bool:
        fails = self.script.mount_fails
        if fails == FOREVER or self._mounts < fails:
            self._mounts += 1
            self._sandbox_at = now + min(120.0, 0.5 * 2 ** (self._mounts - 1))
            self.notes.append(Note(NoteKind.MOUNT_FAILED, "", now))
            return False
        self.has_sandbox = True
        return True

    def _run(self, now: float) -> bool:
        for box in self.boxes:
            if self._act(box, now):
                return True
            if box.role is Role.INIT and not (box.end and box.end.code == 0):
                break
            if box.role is Role.SIDECAR and not box.has_run:
                break
        if self._is_done():
            # Sidecars end when no other container is left.
            return self._finish(now) if not any(box.is_up for box in self.boxes) else self._end_sidecars(now)
        return False

    def _act(self, box: SimulatedContainer, now: float) -> bool:
        match box.state:
            case IsRunning():
                if now >= box.due_at - _EPSILON_S:
                    self._end(box, now, _exit_of(box), box.script.reason)
                    return True
                if not box.is_ready and now >= box.ready_at - _EPSILON_S:
                    box.is_ready = True
                    return True
                return False
            case HasEnded():
                return self._is_restarted(box) and self._restart(box, box.state, now)
            case IsWaiting():
                return now >= box.due_at - _EPSILON_S and self._start(box, now)

    def _start(self, box: SimulatedContainer, now: float) -> bool:
        fails = box.script.pull_fails
        if fails == FOREVER or box.pulls < fails:
            return self._fail_pull(box, now)
        if not box.restarts:
            self._note(NoteKind.PULLING, box, now)
            self._note(NoteKind.PULLED, box, now)
        box.state = IsRunning(now)
        box.due_at = now + _runs_s(box)
        box.ready_at = NEVER if box.script.not_ready_s < 0 else now + box.script.not_ready_s
        box.is_ready = box.ready_at <= now
        self._note(NoteKind.STARTED, box, now)
        return True

    def _fail_pull(self, box: SimulatedContainer, now: float) -> bool:
        backoff_s = _backoff_s(box.script, box.pulls)
        error = f'failed to pull and unpack image "{box.image}": failed to resolve reference: not found'
        if isinstance(box.state, IsWaiting) and box.state.reason == "ErrImagePull":
            message = f'Back-off pulling image "{box.image}": ErrImagePull: {error}'
            box.state = IsWaiting("ImagePullBackOff", message)
            box.due_at = now + backoff_s - _shown_s(backoff_s)
            box.pulls += 1
            self._note(NoteKind.PULL_BACKOFF, box, now)
        else:
            box.state = IsWaiting("ErrImagePull", error)
            box.due_at = now + _shown_s(backoff_s)
            self._note(NoteKind.PULLING, box, now)
            self._note(NoteKind.PULL_FAILED, box, now, error)
        return True

    def _restart(self, box: SimulatedContainer, ended: HasEnded, now: float) -> bool:
        """Restart a container: at once the first time, then after a backoff that doubles."""
        box.last, box.is_ready = ended, False
        box.restarts += 1
        if box.crashes:
            backoff_s = _backoff_s(box.script, box.crashes - 1)
            meta = self.pod.metadata
            words = f"container={box.name} pod={meta.name}_{meta.namespace}({meta.uid})"
            message = f"back-off {backoff_s:g}s restarting failed {words}"
            box.state, box.due_at = IsWaiting("CrashLoopBackOff", message), now + backoff_s
            self._note(NoteKind.CRASH_BACKOFF, box, now)
        else:
            box.state, box.due_at = IsWaiting(), now
        box.crashes += 1
        return True

    def _end(self, box: SimulatedContainer, now: float, code: int, reason: str = "") -> None:
        began = box.state.started_at if isinstance(box.state, IsRunning) else None
        words = reason or ("Error" if code else "Completed")
        box.state = HasEnded(code, words, box.script.message, began, now)
        box.is_ready = False
        self._note(NoteKind.ENDED, box, now, words, code)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _wind_down(self, now: float, stop_at: float) -> bool:
        for box in self.boxes:
            if box.is_up:
                at, code = _end_by_signal(box, stop_at, self.kill_at)
                if now >= at - _EPSILON_S:
                    self._end(box, now, code)
                    return True
        return False if any(box.is_up for box in self.boxes) else self._finish(now)

    def _end_sidecars(self, now: float) -> bool:
        changed = False
        for box in self.boxes:
            if box.is_up and box.due_at == NEVER:
                box.due_at, changed = now + box.script.term_s, True
        return changed

    def _finish(self, now: float) -> bool:
        """End the pod. A container that never ran is reported as lost, because a kubelet cannot tell the difference."""
        for box in self.boxes:
            if isinstance(box.state, IsWaiting) and box.last is not None:
                box.state, box.last = box.last, None
                box.restarts -= 1
        lost = HasEnded(KILLED, UNKNOWN, "The container could not be located when the pod was terminated")
        if self._has_initialized():
            for box in self.mains:
                if isinstance(box.state, IsWaiting):
                    box.state = lost
        self.is_ended = True
        return True

    def _has_initialized(self) -> bool:
        inits = [box for box in self.boxes if box.role is not Role.MAIN]
        if not inits or any(box.has_run for box in self.mains):
            return True
        last = inits[-1]
        return last.is_up if last.role is Role.SIDECAR else bool(last.end and last.end.code == 0)

    def _is_done(self) -> bool:
        """Whether no container will ever start again."""
        for box in self.boxes:
            if box.role is Role.INIT and box.end and box.end.code and not self._is_restarted(box):
                return True
        return all(box.end is not None and not self._is_restarted(box) for box in self.mains)

    def _is_restarted(self, box: SimulatedContainer) -> bool:
        ended = box.end
        if ended is None or box.role is Role.SIDECAR:
            return ended is not None and not all(main.end and not self._is_restarted(main) for main in self.mains)
        policy = self.pod.spec.restart_policy
        if box.role is Role.INIT and policy == "Always":
            policy = "OnFailure"
        return policy == "Always" or (policy == "OnFailure" and ended.code != 0)

    def _next_due(self, now: float) -> float:
        if self.is_ended:
            return NEVER
        if self.stop_at is not None:
            return min(
                (_end_by_signal(box, self.stop_at, self.kill_at)[0] for box in self.boxes if box.is_up), default=now
            )
        dues = [NEVER if self.has_sandbox else self._sandbox_at]
        if self.pod.spec.active_deadline_seconds is not None:
            dues.append(self._began_at() + self.pod.spec.active_deadline_seconds)
        if self.script.evicts_s is not None:
            dues.append(self.admitted_at + self.script.evicts_s)
        for box in self.boxes if self.has_sandbox else ():
            if box.is_up:
                dues += [box.due_at] if box.is_ready else [box.due_at, box.ready_at]
            elif isinstance(box.state, IsWaiting) and box.due_at > now:
                dues.append(box.due_at)
        return min(dues)

    # --- small things -----------------------------------------------------------------------------------------------

    def _adopt(self, now: float) -> None:
        """Adopt the containers that an earlier process reported: none that has run starts again."""
        known = {
            item.name: item for item in (*self.pod.status.container_statuses, *self.pod.status.init_container_statuses)
        }
        for box in self.boxes:
            said = known.get(box.name)
            if said is None:
                continue
            box.restarts = said.restart_count
            box.last = _down(said.last_state.terminated)
            if said.state.running is not None:
                began = parse_time(said.state.running.started_at) if said.state.running.started_at else now
                box.state, box.due_at = IsRunning(began), began + _runs_s(box)
                box.ready_at = NEVER if box.script.not_ready_s < 0 else began + box.script.not_ready_s
                box.is_ready = box.ready_at <= now
                self.has_sandbox = self.is_adopted = True
            elif said.state.terminated is not None:
                box.state = _down(said.state.terminated) or box.state
                self.has_sandbox = self.is_adopted = True
        if self.has_sandbox:
            self._sandbox_at = now

    def _began_at(self) -> float:
        text = self.pod.status.start_time
        return parse_time(text) if text else self.admitted_at

    def _note(
        self, what: NoteKind, box: SimulatedContainer, now: float, text: str = "", code: int | None = None
    ) -> None:
        self.notes.append(Note(what, box.name, now, text, code, box.restarts))


def _boxes(pod: Pod, script: Script) -> list[SimulatedContainer]:
    boxes: list[SimulatedContainer] = []
    for item in pod.spec.init_containers:
        role = Role.SIDECAR if item.is_sidecar else Role.INIT
        boxes.append(SimulatedContainer(name=item.name, image=item.image, role=role, script=script.of(item.name)))
    boxes += [
        SimulatedContainer(name=item.name, image=item.image, role=Role.MAIN, script=script.of(item.name))
        for item in pod.spec.containers
    ]
    return boxes


def _runs_s(box: SimulatedContainer) -> float:
    if box.role is Role.INIT:
        return box.script.init_runs_s
    if box.role is Role.SIDECAR or box.script.runs_s is None:
        return NEVER
    return box.script.runs_s


def _exit_of(box: SimulatedContainer) -> int:
    match box.role:
        case Role.INIT:
            return box.script.init_exit
        case Role.SIDECAR:
            return box.script.term_exit
        case Role.MAIN:
            return box.script.exit_of(box.restarts)


def _end_by_signal(box: SimulatedContainer, stop_at: float, kill_at: float) -> tuple[float, int]:
    """When and how a running container ends after SIGTERM: by itself, by obeying, or by SIGKILL."""
    obeys_at = NEVER if box.script.ignores_term else stop_at + box.script.term_s
    if box.due_at <= min(obeys_at, kill_at):
        return box.due_at, _exit_of(box)
    if obeys_at <= kill_at:
        return obeys_at, box.script.term_exit
    return kill_at, KILLED


def _backoff_s(script: Script, count: int) -> float:
    return min(BACKOFF_MAX_S, script.backoff_s * 2 ** min(count, 30))


def _shown_s(backoff_s: float) -> float:
    return min(PULL_ERROR_S, backoff_s / 2)


def _down(said: objects.Terminated | None) -> HasEnded | None:
    if said is None:
        return None
    began = parse_time(said.started_at) if said.started_at else None
    ended = parse_time(said.finished_at) if said.finished_at else None
    return HasEnded(said.exit_code, said.reason, said.message, began, ended)
