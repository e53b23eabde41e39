"""The pods of all nodes: each is admitted, lives, is reported, and its deletion is confirmed.

Owns every pod's life, its timer and its writes. Knows nodes only as `NodeState`s. The rules of a life are in `life`,
its status is in `status`; this module drives them.

Promises
- Writes about one pod never overtake each other, and contain the newest state when they are sent: intermediate states
are not written.
- A container is reported ended before its pod's deletion is confirmed, and the deletion is confirmed for that uid only.
- A node that is away writes nothing.
"""

import asyncio
from collections.abc import Callable

import msgspec

from slipway.runtime.clock import Clock
from tests.conformance.kubelets.admission import SHUTDOWN, mismatch
from tests.conformance.kubelets.connections import STRATEGIC, Connections, LostConnectionError, RefusedError
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.node_state import NodeState, PodState, Rules
from tests.conformance.kubelets.objects import Bookmark, Json, Node, Pod, is_true
from tests.conformance.kubelets.records import Records
from tests.conformance.kubelets.script import BadScriptError, script_of
from tests.conformance.kubelets.states import NEVER, Note, NoteKind, Verdict
from tests.conformance.kubelets.status import Rejection, Since, patch_of, rejected_status, status_of

UNEXPECTED = "UnexpectedAdmissionError"
ORPHAN_GRACE_S = 2.0
"""The grace in seconds for containers whose pod object is gone, as in a kubelet."""
RETRY_S = 0.3
QUEUE_MAX = 1_000_000
WORKERS = 32
_NEVER_LATER_S = 1e7
_encode = msgspec.json.encode


class PodManager:
    """A `Listener` of the feed. `work` is run by several tasks."""

    def __init__(self, wire: Connections, clock: Clock, records: Records, rules: Rules) -> None:
        self.node_states: dict[str, NodeState] = {}
        self.pod_states: dict[str, PodState] = {}
        self.host_ip = "127.0.0.1"
        self.on_note: list[Callable[[Pod, Note], object]] = []
        self._wire = wire
        self._clock = clock
        self._records = records
        self._rules = rules
        self._queue: asyncio.Queue[PodState] = asyncio.Queue(QUEUE_MAX)
        self._parked: dict[str, Pod] = {}
        self._addresses = 0

    # --- what the API server says -----------------------------------------------------------------------------------

    def see(self, item: Pod) -> None:
        """Receive a bound pod, new or changed."""
        pod = item
        node_state = self.node_states.get(pod.spec.node_name)
        if node_state is None:
            return
        pod_state = self.pod_states.get(pod.uid)
        if pod_state is None:
            if node_state.is_away:
                self._parked[pod.uid] = pod
            else:
                self._take_in(pod, node_state)
            return
        pod_state.pod = pod
        if pod_state.life is not None:
            pod_state.life.pod = pod
        if not node_state.is_away:
            self._react(pod_state)
            self._correct(pod_state)

    def forget(self, uid: str) -> None:
        """The object is gone, so its containers end."""
        self._parked.pop(uid, None)
        pod_state = self.pod_states.get(uid)
        if pod_state is None:
            return
        pod_state.is_gone = True
        if pod_state.node_state.is_away and not pod_state.node_state.is_dead:
            return
        if pod_state.life is not None and not pod_state.life.is_ended:
            # A forced deletion: the deleter did not wait for the containers.
            pod_state.life.stop(self._clock.now(), min(ORPHAN_GRACE_S, pod_state.pod.grace_s))
            self._enqueue(pod_state)
        else:
            self._drop(pod_state)

    # --- what the driver of a test says -----------------------------------------------------------------------------

    def find(self, pod: str) -> PodState:
        """Return the pod of that uid or `namespace/name`. Raises KeyError."""
        pod_state = self.pod_states.get(pod)
        if pod_state is not None:
            return pod_state
        for pod_state in self.pod_states.values():
            if pod_state.pod.key == pod:
                return pod_state
        raise KeyError(f"no node has a pod {pod}")

    def exit(self, pod: str, code: int, container: str = "") -> bool:
        """End the program of the pod now; False when it does not run."""
        pod_state = self.find(pod)
        ended = pod_state.life is not None and pod_state.life.exit(self._clock.now(), code, container)
        self._enqueue(pod_state)
        return ended

    def stop(self, pod: str, verdict: Verdict, grace_s: float = 0.0) -> None:
        """The node itself ends the pod, for that reason."""
        pod_state = self.find(pod)
        if pod_state.life is not None:
            pod_state.life.stop(self._clock.now(), grace_s, verdict=verdict)
        self._enqueue(pod_state)

    def on(self, node: str) -> list[PodState]:
        """The pods of a node."""
        return [pod_state for pod_state in self.pod_states.values() if pod_state.node_state.name == node]

    def lose(self, node: str, *, runs_on: bool) -> None:
        """Silence the node; its containers end, unless they run on."""
        node_state, now = self.node_states[node], self._clock.now()
        node_state.is_away, node_state.is_dead = True, not runs_on
        for pod_state in self.on(node) if node_state.is_dead else ():
            if pod_state.life is not None and not pod_state.life.is_ended:
                pod_state.life.lose(now)
                self._tell(pod_state)

    def recover(self, node: str) -> None:
        """Bring the node back; it finds what happened to its pods."""
        node_state = self.node_states[node]
        node_state.is_away = node_state.is_dead = node_state.is_closing = False
        for pod_state in self.on(node):
            if pod_state.is_gone:
                self.forget(pod_state.pod.uid)
            else:
                self._react(pod_state)
                self._enqueue(pod_state)
        for pod in [pod for pod in self._parked.values() if pod.spec.node_name == node]:
            del self._parked[pod.uid]
            self._take_in(pod, node_state)

    # --- one pod ----------------------------------------------------------------------------------------------------

    def _take_in(self, pod: Pod, node_state: NodeState) -> None:
        self._addresses += 1
        ip = pod.status.pod_ip or _address(self._addresses)
        pod_state = PodState(pod=pod, node_state=node_state, since=Since(pod), ip=ip, is_settled=pod.is_over)
        self.pod_states[pod.uid] = pod_state
        if not pod.is_over and (pod.status.container_statuses or pod.is_deleting):
            # Not a new pod: it ran here before this process, or is deleted before it begins.
            self._begin(pod_state)
        self._react(pod_state)
        self._enqueue(pod_state)

    def _react(self, pod_state: PodState) -> None:
        """End the pod when the object requests it."""
        pod, life = pod_state.pod, pod_state.life
        if life is None:
            if pod.is_deleting and not pod_state.is_over:
                self._begin(pod_state)
                self._react(pod_state)
            elif pod.is_deleting:
                self._enqueue(pod_state)
        elif pod.is_deleting and life.is_ended:
            self._enqueue(pod_state)
        elif (pod.is_deleting or pod.is_over) and life.stop(self._clock.now(), pod.grace_s):
            # A pod whose object has a terminal phase, for example from a garbage collector, must not run either.
            self._enqueue(pod_state)

    def _correct(self, pod_state: PodState) -> None:
        """Write readiness again: a node controller marks pods of a silent node as not ready, but the kubelet knows
        better."""
        pod, life = pod_state.pod, pod_state.life
        if life is None or pod.is_over or life.is_ended or int(pod.metadata.resource_version or 0) <= pod_state.version:
            return
        if pod_state.is_ready_said and not is_true(pod.status.conditions, "Ready"):
            pod_state.written = b""
            self._enqueue(pod_state)

    def _begin(self, pod_state: PodState) -> None:
        """Start the life of the pod, without checking the node's free resources."""
        try:
            script = script_of(pod_state.pod, self._rules.play, self._rules.default)
        except BadScriptError as error:
            pod_state.rejection = Rejection(reason=UNEXPECTED, message=str(error))
            return
        if script.reject:
            pod_state.rejection = Rejection(reason=UNEXPECTED, message=script.reject)
            return
        pod_state.node_state.room.hold(pod_state.pod)
        pod_state.life = Life(pod_state.pod, script, self._clock.now())
        self._records.count.pods += 1
        if pod_state.life.is_adopted:
            for box in pod_state.life.boxes:
                if box.is_up:
                    self._records.adopt(pod_state.pod, box.name, box.restarts, pod_state.life.admitted_at)

    async def _admit(self, pod_state: PodState) -> None:
        """Admit the pod, or record why not."""
        node_state, pod = pod_state.node_state, pod_state.pod
        rejection = SHUTDOWN if node_state.is_closing else node_state.room.admit(pod)
        if rejection is None:
            rejection = mismatch(pod, node_state.name, node_state.labels, node_state.taints)
            if rejection is not None and rejection.reason == "NodeAffinity":
                # The node's labels may be newer than our copy.
                await self._look_at(node_state)
                rejection = mismatch(pod, node_state.name, node_state.labels, node_state.taints)
        if rejection is None:
            self._begin(pod_state)
        pod_state.rejection = pod_state.rejection or rejection
        if pod_state.rejection is not None:
            node_state.room.release(pod.uid)
            self._records.count.rejected += 1
            words = f"{pod_state.rejection.reason}: {pod_state.rejection.message}"
            for take in self.on_note:
                take(pod, Note(NoteKind.REJECTED, "", self._clock.now(), words))

    async def _look_at(self, node_state: NodeState) -> None:
        try:
            answer = await self._wire.call("GET", f"/api/v1/nodes/{node_state.name}")
        except RefusedError:
            return
        node_state.labels = msgspec.json.decode(answer, type=Node).metadata.labels

    def _drop(self, pod_state: PodState) -> None:
        if pod_state.timer is not None:
            pod_state.timer.cancel()
        pod_state.node_state.room.release(pod_state.pod.uid)
        self.pod_states.pop(pod_state.pod.uid, None)

    # --- work -------------------------------------------------------------------------------------------------------

    def _enqueue(self, pod_state: PodState) -> None:
        if pod_state.is_busy:
            pod_state.is_again = True
        elif not pod_state.is_queued:
            pod_state.is_queued = True
            self._queue.put_nowait(pod_state)

    async def work(self) -> None:
        """Serve one pod after the other until cancelled."""
        while True:
            pod_state = await self._queue.get()
            pod_state.is_queued, pod_state.is_busy, pod_state.is_again = False, True, False
            try:
                await self._serve(pod_state)
            finally:
                pod_state.is_busy = False
            if pod_state.is_again:
                self._enqueue(pod_state)

    async def _serve(self, pod_state: PodState) -> None:
        node_state = pod_state.node_state
        if node_state.is_dead:
            return
        if pod_state.life is None and not pod_state.is_over and not node_state.is_away:
            await self._admit(pod_state)
        life = pod_state.life
        if life is not None:
            life.advance(self._clock.now())
            self._tell(pod_state)
            if life.is_ended:
                node_state.room.release(pod_state.pod.uid)
        if pod_state.is_gone:
            if pod_state.is_over and not node_state.is_away:
                self._drop(pod_state)
            return
        if not node_state.is_away:
            await self._report(pod_state)

    async def _report(self, pod_state: PodState) -> None:
        try:
            if not pod_state.is_settled and self._rules.is_reporting:
                await self._write(pod_state)
            if (
                pod_state.is_over
                and pod_state.pod.is_deleting
                and not pod_state.is_confirmed
                and not pod_state.is_again
            ):
                await self._confirm(pod_state)
        except RefusedError as error:
            if error.code == 409:
                # Another client wrote at the same time. If it is another pod now, the feed removes ours soon.
                self._retry(pod_state)
            elif error.code != 404:
                self._records.count.refused += 1
                self._records.refusals.append(str(error))
        except LostConnectionError as error:
            self._records.refusals.append(str(error))
            self._retry(pod_state)

    def _retry(self, pod_state: PodState) -> None:
        pod_state.is_confirmed = False
        asyncio.get_running_loop().call_later(RETRY_S, self._enqueue, pod_state)

    async def _write(self, pod_state: PodState) -> None:
        status = self._status(pod_state)
        body = patch_of(pod_state.pod, status)
        if body == pod_state.written:
            return
        meta = pod_state.pod.metadata
        target = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
        answer = await self._wire.call("PATCH", target, body, STRATEGIC)
        pod_state.written = body
        pod_state.version = int(msgspec.json.decode(answer, type=Bookmark).metadata.resource_version or 0)
        pod_state.is_ready_said = _says_ready(status)
        self._records.count.status_writes += 1

    def _status(self, pod_state: PodState) -> Json:
        now = self._clock.now()
        if pod_state.life is None:
            assert pod_state.rejection is not None
            return rejected_status(pod_state.pod, pod_state.rejection, now)
        status = status_of(pod_state.life, pod_state.since, pod_ip=pod_state.ip, host_ip=self.host_ip, now=now)
        if pod_state.pod.is_over and status["phase"] != pod_state.pod.status.phase:
            # A terminal phase stays, whichever client wrote it.
            status["phase"] = pod_state.pod.status.phase
        return status

    async def _confirm(self, pod_state: PodState) -> None:
        """Confirm the deletion: nothing of the pod runs, so the API server may delete the object."""
        meta = pod_state.pod.metadata
        pod_state.is_confirmed = True
        if meta.deletion_grace_period_seconds == 0:
            return  # it waits for finalizers only
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}
        target = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}"
        await self._wire.call("DELETE", target, _encode(options))
        self._records.count.deletions += 1

    def _tell(self, pod_state: PodState) -> None:
        """Record what happened, and schedule the next wake-up."""
        life = pod_state.life
        assert life is not None
        for note in life.notes:
            if note.what is NoteKind.STARTED:
                self._records.start(pod_state.pod, note.container, note.restarts, note.at)
            elif note.what is NoteKind.ENDED:
                self._records.end(pod_state.pod.uid, note.container, note.code or 0, note.at)
            for take in self.on_note:
                take(pod_state.pod, note)
        life.notes.clear()
        if pod_state.timer is not None:
            pod_state.timer.cancel()
            pod_state.timer = None
        if life.due_at < NEVER:
            wait_s = min(_NEVER_LATER_S, max(0.0, life.due_at - self._clock.now()))
            pod_state.timer = asyncio.get_running_loop().call_later(wait_s, self._enqueue, pod_state)


def _says_ready(status: Json) -> bool:
    conditions: list[Json] = status.get("conditions") or []
    return any(item["type"] == "Ready" and item.get("status") == "True" for item in conditions)


def _address(number: int) -> str:
    """A unique pod address, from 10.0.0.0/8."""
    number %= 1 << 24
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
