"""The pods of all nodes: each is admitted, lives, is reported, and its deletion is confirmed.

Owns every pod's life, its timer and its writes. Knows nodes only as `Post`s. The rules of a life are `life`, its words
`status`; this module drives them.

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
from tests.conformance.kubelets.hands import Hand, Post, Rules
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.objects import Json, Mark, Node, Pod, is_true
from tests.conformance.kubelets.records import Records
from tests.conformance.kubelets.script import BadScriptError, script_of
from tests.conformance.kubelets.states import NEVER, Note, Verdict, What
from tests.conformance.kubelets.status import Rejection, Since, patch_of, rejected_status, status_of

UNEXPECTED = "UnexpectedAdmissionError"
ORPHAN_GRACE_S = 2.0
"""The grace in seconds for containers whose pod object is gone, as in a kubelet."""
RETRY_S = 0.3
QUEUE_MAX = 1_000_000
WORKERS = 32
_NEVER_LATER_S = 1e7
_encode = msgspec.json.encode


class Desk:
    """A `Listener` of the feed. `work` is run by several tasks."""

    def __init__(self, wire: Connections, clock: Clock, records: Records, rules: Rules) -> None:
        self.posts: dict[str, Post] = {}
        self.hands: dict[str, Hand] = {}
        self.host_ip = "127.0.0.1"
        self.on_note: list[Callable[[Pod, Note], object]] = []
        self._wire = wire
        self._clock = clock
        self._records = records
        self._rules = rules
        self._queue: asyncio.Queue[Hand] = asyncio.Queue(QUEUE_MAX)
        self._parked: dict[str, Pod] = {}
        self._addresses = 0

    # --- what the API server says -----------------------------------------------------------------------------------

    def see(self, item: Pod) -> None:
        """Receive a bound pod, new or changed."""
        pod = item
        post = self.posts.get(pod.spec.node_name)
        if post is None:
            return
        hand = self.hands.get(pod.uid)
        if hand is None:
            if post.is_away:
                self._parked[pod.uid] = pod
            else:
                self._take_in(pod, post)
            return
        hand.pod = pod
        if hand.life is not None:
            hand.life.pod = pod
        if not post.is_away:
            self._react(hand)
            self._correct(hand)

    def forget(self, uid: str) -> None:
        """The object is gone, so its containers end."""
        self._parked.pop(uid, None)
        hand = self.hands.get(uid)
        if hand is None:
            return
        hand.is_gone = True
        if hand.post.is_away and not hand.post.is_dead:
            return
        if hand.life is not None and not hand.life.is_ended:
            # A forced deletion: the deleter did not wait for the containers.
            hand.life.stop(self._clock.now(), min(ORPHAN_GRACE_S, hand.pod.grace_s))
            self._enqueue(hand)
        else:
            self._drop(hand)

    # --- what the driver of a test says -----------------------------------------------------------------------------

    def find(self, pod: str) -> Hand:
        """Return the pod of that uid or `namespace/name`. Raises KeyError."""
        hand = self.hands.get(pod)
        if hand is not None:
            return hand
        for hand in self.hands.values():
            if hand.pod.key == pod:
                return hand
        raise KeyError(f"no node has a pod {pod}")

    def exit(self, pod: str, code: int, container: str = "") -> bool:
        """End the program of the pod now; False when it does not run."""
        hand = self.find(pod)
        ended = hand.life is not None and hand.life.exit(self._clock.now(), code, container)
        self._enqueue(hand)
        return ended

    def stop(self, pod: str, verdict: Verdict, grace_s: float = 0.0) -> None:
        """The node itself ends the pod, for that reason."""
        hand = self.find(pod)
        if hand.life is not None:
            hand.life.stop(self._clock.now(), grace_s, verdict=verdict)
        self._enqueue(hand)

    def on(self, node: str) -> list[Hand]:
        """The pods of a node."""
        return [hand for hand in self.hands.values() if hand.post.name == node]

    def lose(self, node: str, *, runs_on: bool) -> None:
        """Silence the node; its containers end, unless they run on."""
        post, now = self.posts[node], self._clock.now()
        post.is_away, post.is_dead = True, not runs_on
        for hand in self.on(node) if post.is_dead else ():
            if hand.life is not None and not hand.life.is_ended:
                hand.life.lose(now)
                self._tell(hand)

    def recover(self, node: str) -> None:
        """Bring the node back; it finds what happened to its pods."""
        post = self.posts[node]
        post.is_away = post.is_dead = post.is_closing = False
        for hand in self.on(node):
            if hand.is_gone:
                self.forget(hand.pod.uid)
            else:
                self._react(hand)
                self._enqueue(hand)
        for pod in [pod for pod in self._parked.values() if pod.spec.node_name == node]:
            del self._parked[pod.uid]
            self._take_in(pod, post)

    # --- one pod ----------------------------------------------------------------------------------------------------

    def _take_in(self, pod: Pod, post: Post) -> None:
        self._addresses += 1
        ip = pod.status.pod_ip or _address(self._addresses)
        hand = Hand(pod=pod, post=post, since=Since(pod), ip=ip, is_settled=pod.is_over)
        self.hands[pod.uid] = hand
        if not pod.is_over and (pod.status.container_statuses or pod.is_deleting):
            # Not a new pod: it ran here before this process, or is deleted before it begins.
            self._begin(hand)
        self._react(hand)
        self._enqueue(hand)

    def _react(self, hand: Hand) -> None:
        """End the pod when the object requests it."""
        pod, life = hand.pod, hand.life
        if life is None:
            if pod.is_deleting and not hand.is_over:
                self._begin(hand)
                self._react(hand)
            elif pod.is_deleting:
                self._enqueue(hand)
        elif pod.is_deleting and life.is_ended:
            self._enqueue(hand)
        elif (pod.is_deleting or pod.is_over) and life.stop(self._clock.now(), pod.grace_s):
            # A pod whose object has a terminal phase, for example from a garbage collector, must not run either.
            self._enqueue(hand)

    def _correct(self, hand: Hand) -> None:
        """Write readiness again: a node controller marks pods of a silent node as not ready, but the kubelet knows
        better."""
        pod, life = hand.pod, hand.life
        if life is None or pod.is_over or life.is_ended or int(pod.metadata.resource_version or 0) <= hand.version:
            return
        if hand.is_ready_said and not is_true(pod.status.conditions, "Ready"):
            hand.written = b""
            self._enqueue(hand)

    def _begin(self, hand: Hand) -> None:
        """Start the life of the pod, without checking the node's free resources."""
        try:
            script = script_of(hand.pod, self._rules.play, self._rules.default)
        except BadScriptError as error:
            hand.rejection = Rejection(reason=UNEXPECTED, message=str(error))
            return
        if script.reject:
            hand.rejection = Rejection(reason=UNEXPECTED, message=script.reject)
            return
        hand.post.room.hold(hand.pod)
        hand.life = Life(hand.pod, script, self._clock.now())
        self._records.count.pods += 1
        if hand.life.is_adopted:
            for box in hand.life.boxes:
                if box.is_up:
                    self._records.adopt(hand.pod, box.name, box.restarts, hand.life.admitted_at)

    async def _admit(self, hand: Hand) -> None:
        """Admit the pod, or record why not."""
        post, pod = hand.post, hand.pod
        rejection = SHUTDOWN if post.is_closing else post.room.admit(pod)
        if rejection is None:
            rejection = mismatch(pod, post.name, post.labels, post.taints)
            if rejection is not None and rejection.reason == "NodeAffinity":
                # The node's labels may be newer than our copy.
                await self._look_at(post)
                rejection = mismatch(pod, post.name, post.labels, post.taints)
        if rejection is None:
            self._begin(hand)
        hand.rejection = hand.rejection or rejection
        if hand.rejection is not None:
            post.room.release(pod.uid)
            self._records.count.rejected += 1
            words = f"{hand.rejection.reason}: {hand.rejection.message}"
            for take in self.on_note:
                take(pod, Note(What.REJECTED, "", self._clock.now(), words))

    async def _look_at(self, post: Post) -> None:
        try:
            answer = await self._wire.call("GET", f"/api/v1/nodes/{post.name}")
        except RefusedError:
            return
        post.labels = msgspec.json.decode(answer, type=Node).metadata.labels

    def _drop(self, hand: Hand) -> None:
        if hand.timer is not None:
            hand.timer.cancel()
        hand.post.room.release(hand.pod.uid)
        self.hands.pop(hand.pod.uid, None)

    # --- work -------------------------------------------------------------------------------------------------------

    def _enqueue(self, hand: Hand) -> None:
        if hand.is_busy:
            hand.is_again = True
        elif not hand.is_queued:
            hand.is_queued = True
            self._queue.put_nowait(hand)

    async def work(self) -> None:
        """Serve one pod after the other until cancelled."""
        while True:
            hand = await self._queue.get()
            hand.is_queued, hand.is_busy, hand.is_again = False, True, False
            try:
                await self._serve(hand)
            finally:
                hand.is_busy = False
            if hand.is_again:
                self._enqueue(hand)

    async def _serve(self, hand: Hand) -> None:
        post = hand.post
        if post.is_dead:
            return
        if hand.life is None and not hand.is_over and not post.is_away:
            await self._admit(hand)
        life = hand.life
        if life is not None:
            life.advance(self._clock.now())
            self._tell(hand)
            if life.is_ended:
                post.room.release(hand.pod.uid)
        if hand.is_gone:
            if hand.is_over and not post.is_away:
                self._drop(hand)
            return
        if not post.is_away:
            await self._report(hand)

    async def _report(self, hand: Hand) -> None:
        try:
            if not hand.is_settled and self._rules.is_reporting:
                await self._write(hand)
            if hand.is_over and hand.pod.is_deleting and not hand.is_confirmed and not hand.is_again:
                await self._confirm(hand)
        except RefusedError as error:
            if error.code == 409:
                # Another client wrote at the same time. If it is another pod now, the feed removes ours soon.
                self._retry(hand)
            elif error.code != 404:
                self._records.count.refused += 1
                self._records.refusals.append(str(error))
        except LostConnectionError as error:
            self._records.refusals.append(str(error))
            self._retry(hand)

    def _retry(self, hand: Hand) -> None:
        hand.is_confirmed = False
        asyncio.get_running_loop().call_later(RETRY_S, self._enqueue, hand)

    async def _write(self, hand: Hand) -> None:
        status = self._status(hand)
        body = patch_of(hand.pod, status)
        if body == hand.written:
            return
        meta = hand.pod.metadata
        target = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
        answer = await self._wire.call("PATCH", target, body, STRATEGIC)
        hand.written = body
        hand.version = int(msgspec.json.decode(answer, type=Mark).metadata.resource_version or 0)
        hand.is_ready_said = _says_ready(status)
        self._records.count.status_writes += 1

    def _status(self, hand: Hand) -> Json:
        now = self._clock.now()
        if hand.life is None:
            assert hand.rejection is not None
            return rejected_status(hand.pod, hand.rejection, now)
        status = status_of(hand.life, hand.since, pod_ip=hand.ip, host_ip=self.host_ip, now=now)
        if hand.pod.is_over and status["phase"] != hand.pod.status.phase:
            # A terminal phase stays, whichever client wrote it.
            status["phase"] = hand.pod.status.phase
        return status

    async def _confirm(self, hand: Hand) -> None:
        """Confirm the deletion: nothing of the pod runs, so the API server may delete the object."""
        meta = hand.pod.metadata
        hand.is_confirmed = True
        if meta.deletion_grace_period_seconds == 0:
            return  # it waits for finalizers only
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}
        target = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}"
        await self._wire.call("DELETE", target, _encode(options))
        self._records.count.deletions += 1

    def _tell(self, hand: Hand) -> None:
        """Record what happened, and schedule the next wake-up."""
        life = hand.life
        assert life is not None
        for note in life.notes:
            if note.what is What.STARTED:
                self._records.start(hand.pod, note.container, note.restarts, note.at)
            elif note.what is What.ENDED:
                self._records.end(hand.pod.uid, note.container, note.code or 0, note.at)
            for take in self.on_note:
                take(hand.pod, note)
        life.notes.clear()
        if hand.timer is not None:
            hand.timer.cancel()
            hand.timer = None
        if life.due_at < NEVER:
            wait_s = min(_NEVER_LATER_S, max(0.0, life.due_at - self._clock.now()))
            hand.timer = asyncio.get_running_loop().call_later(wait_s, self._enqueue, hand)


def _says_ready(status: Json) -> bool:
    conditions: list[Json] = status.get("conditions") or []
    return any(item["type"] == "Ready" and item.get("status") == "True" for item in conditions)


def _address(number: int) -> str:
    """A unique pod address, from 10.0.0.0/8."""
    number %= 1 << 24
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
