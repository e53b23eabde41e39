"""A model of kubelets and of the programs in containers: bound pods start, run, exit, and obey deletion and grace.

Owns the containers: what really ran, when, how it ended and what it printed (`containers`, the truth that records are
compared with).
Everything else it knows, it reads from the core. Event-driven on virtual time: it acts when a pod changes or a time
comes, never by polling.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION, LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.objects import Json, clone
from slipway.local.apiserver.status import StatusError
from slipway.local.apiserver.store import Commit
from slipway.model.times import format_time, parse_time
from slipway.runtime.clock import Random
from tests.support.simulated_log import LOUD, QUIET, Burst, SimulatedLog

SYNC_S = 0.02
"""Time until a kubelet notices a change, in seconds."""
LAST_DELETE_S = 1.0
"""Time from the end of a killed pod until its kubelet confirms it with a last delete, in seconds. The pod's deletion
time is then the time of that delete."""
NEVER_S = float("inf")


class Container(msgspec.Struct, kw_only=True):
    """One start of one rank's main container."""

    allocation: str
    allocation_uid: str
    attempt: int
    rank: int
    pod: str
    pod_uid: str
    node: str
    started_at: float
    ended_at: float | None = None
    code: int | None = None
    simulated: SimulatedLog
    is_lost: bool = False
    """Whether its machine died with it."""
    ended_first: bool = False
    """Whether it ended before its pod was marked deleted."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of a rank: how long it runs (None: for ever), its exit code, and how long it needs to obey
    SIGTERM."""

    runs_s: float | None = None
    code: int = 0
    term_s: float = 0.3
    term_code: int = 143


Play = Callable[[int, int], Script]
"""(attempt, rank) -> the script of the rank."""


def talk_of(_attempt: int, rank: int) -> tuple[Burst, ...]:
    """The output of a rank: rank 0 of each attempt prints a flood."""
    return QUIET if rank else LOUD


class Kubelets:
    """All kubelets of one core. `script` defines what ranks do; `away` are nodes whose kubelet does nothing."""

    def __init__(self, core: ClusterCore, now: Callable[[], float], random: Random) -> None:
        self._core = core
        self._now = now
        self._random = random
        self.script: Play = lambda _attempt, _rank: Script()
        self.simulated: Callable[[int, int], tuple[Burst, ...]] = talk_of
        """(attempt, rank) -> the output of the rank."""
        self.starts_s = 0.2
        self.away: set[str] = set()
        self.containers: list[Container] = []
        self._live: dict[str, Container] = {}
        self._due: dict[str, float] = {}
        self._last_at: dict[str, float] = {}
        self._term_at: dict[str, float] = {}
        self._dirty: dict[tuple[str, str], None] = {}
        self._changed = asyncio.Event()
        self._exits: dict[str, int] = {}
        self._ends: dict[str, asyncio.Event] = {}
        """{pod uid: set when its container ends}, for readers of its log."""
        core.subscribe(self._note)

    def exit(self, pod_uid: str, code: int) -> None:
        """End the program of that pod now."""
        self._exits[pod_uid] = code
        self._changed.set()

    def live(self, allocation_uid: str) -> list[Container]:
        """Return the containers of the allocation that run now."""
        return [item for item in self.containers if item.allocation_uid == allocation_uid and item.ended_at is None]

    def evict(self, pod_uid: str) -> None:
        """Evict a pod as its kubelet does under memory pressure."""
        for record in list(self._core.store.scan("pods")):
            if record.obj["metadata"]["uid"] == pod_uid:
                pod = clone(record.obj)
                pod["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
                target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
                pod["status"].setdefault("conditions", []).append(target)
                container = self._live.get(pod_uid)
                if container is not None:
                    self._end(pod, container, 137)

    def lose(self, node: str) -> None:
        """Kill the machine with all containers on it; no kubelet reports their ends."""
        self.away.add(node)
        for container in self._live.values():
            if container.node == node:
                container.is_lost = True
                if container.ended_at is None:
                    self._ended(container)

    async def run(self) -> None:
        """Run all kubelets, for ever."""
        while True:
            self._changed.clear()
            keys, self._dirty = self._dirty, {}
            for record in self._core.store.scan("pods"):
                meta = record.obj["metadata"]
                if (meta["namespace"], meta["name"]) in keys or self._is_due(meta["uid"]):
                    self._sync(clone(record.obj))
            self._core.settle()
            pause_s = min(self._due.values(), default=NEVER_S) - self._now()
            try:
                async with asyncio.timeout(max(SYNC_S, pause_s) if pause_s < NEVER_S else None):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(SYNC_S * self._random.uniform(0.2, 1.0))

    async def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the log of a pod while it is printed, until the container ends (a `NodeLogs`)."""
        container = self._live.get(pod["metadata"]["uid"])
        if node["metadata"]["name"] in self.away:
            raise StatusError(500, "InternalError", "dial tcp 10.0.0.1:10250: connect: no route to host")
        yield b""
        if container is None:
            return
        if container.ended_at is not None and pod["metadata"].get("deletionTimestamp"):
            # The kubelet removes the containers of an ended pod once the pod is marked deleted, finalizers or not. A
            # reader that began before that still has the file open.
            raise StatusError(
                404, "NotFound", f"unable to retrieve container logs for containerd://{container.pod_uid}"
            )
        since = parse_time(query["sinceTime"]) if query.get("sinceTime") else 0.0
        simulated, place = container.simulated, (0, 0)
        while True:
            is_over = container.ended_at is not None or query.get("follow") != "true"
            simulated.advance(self._now())
            place, chunks = simulated.read(place, since)
            for chunk in chunks:
                yield chunk
            if is_over:
                return
            if container.ended_at is not None:
                continue  # the container ended while the reader was busy
            ended = self._ends.setdefault(container.pod_uid, asyncio.Event())
            pause_s = simulated.due_at - self._now()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause_s) if pause_s < NEVER_S else None):
                    await ended.wait()

    # --- one pod ----------------------------------------------------------------------------------------------------

    def _note(self, change: Commit) -> None:
        if change.resource in ("pods", "nodes", "allocations", "namespaces"):
            if change.resource == "pods" and change.type != "DELETED":
                self._dirty[change.key] = None
            self._changed.set()

    def _is_due(self, uid: str) -> bool:
        return uid in self._exits or self._due.get(uid, NEVER_S) <= self._now() + 1e-9

    def _sync(self, pod: Json) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
        node, uid, now = spec.get("nodeName", ""), meta["uid"], self._now()
        self._due.pop(uid, None)
        if not node or node in self.away:
            return
        if status.get("phase") in ("Succeeded", "Failed"):
            if meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds"):
                last_at = self._last_at.setdefault(uid, now + LAST_DELETE_S)
                if now < last_at - 1e-9:
                    self._due[uid] = last_at
                    return
                self._core.delete("pods", meta["namespace"], meta["name"], {"gracePeriodSeconds": 0})
            return
        container = self._live.get(uid)
        if meta.get("deletionTimestamp"):
            self._terminate(pod, container)
        elif container is None:
            begun = self._term_at.setdefault(uid, now)
            if now >= begun + self.starts_s:
                self._start(pod)
            else:
                self._due[uid] = begun + self.starts_s
        elif uid in self._exits:
            self._end(pod, container, self._exits.pop(uid))
        else:
            script = self.script(container.attempt, container.rank)
            if script.runs_s is not None:
                ends_at = container.started_at + script.runs_s
                if now >= ends_at - 1e-9:
                    self._end(pod, container, script.code)
                else:
                    self._due[uid] = ends_at

    def _terminate(self, pod: Json, container: Container | None) -> None:
        meta, now = pod["metadata"], self._now()
        uid = meta["uid"]
        if container is None:
            # The container never started: the kubelet reports an end without a start.
            self._put(pod, "Failed", None)
            return
        script = self.script(container.attempt, container.rank)
        asked = self._term_at.setdefault(f"{uid}/term", now)
        grace_s = float(meta.get("deletionGracePeriodSeconds") or 0)
        ends_at = asked + min(script.term_s, grace_s)
        if now >= ends_at - 1e-9:
            self._end(pod, container, script.term_code if script.term_s <= grace_s else 137)
        else:
            self._due[uid] = ends_at

    def _start(self, pod: Json) -> None:
        meta, labels = pod["metadata"], pod["metadata"].get("labels", {})
        attempt, rank = int(labels.get(LABEL_ATTEMPT, 0)), int(labels.get(LABEL_RANK, 0))
        container = Container(
            allocation=labels.get(LABEL_ALLOCATION, ""),
            allocation_uid=labels.get(LABEL_ALLOCATION_UID, ""),
            attempt=attempt,
            rank=rank,
            pod=meta["name"],
            pod_uid=meta["uid"],
            node=pod["spec"]["nodeName"],
            started_at=self._now(),
            simulated=SimulatedLog(self.simulated(attempt, rank), self._now(), is_odd=rank % 2 == 1),
        )
        self.containers.append(container)
        self._live[meta["uid"]] = container
        self._put(pod, "Running", {"running": {"startedAt": format_time(container.started_at, "seconds")}})

    def _end(self, pod: Json, container: Container, code: int) -> None:
        container.code = code
        container.ended_first = "deletionTimestamp" not in pod["metadata"]
        self._ended(container)
        ended: dict[str, Any] = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": format_time(container.started_at, "seconds"),
            "finishedAt": format_time(self._now(), "seconds"),
        }
        self._put(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _ended(self, container: Container) -> None:
        container.ended_at = self._now()
        container.simulated.end(container.ended_at, is_lost=container.is_lost)
        ended = self._ends.pop(container.pod_uid, None)
        if ended is not None:
            ended.set()

    def _put(self, pod: Json, phase: str, state: Json | None) -> None:
        status = pod["status"]
        status["phase"] = phase
        if state is not None:
            status["containerStatuses"] = [
                {"name": item["name"], "state": state, "ready": phase == "Running", "restartCount": 0, "image": "i"}
                for item in pod["spec"]["containers"]
            ]
        kept = [item for item in status.get("conditions", []) if item["type"] != "Ready"]
        status["conditions"] = [*kept, {"type": "Ready", "status": "True" if phase == "Running" else "False"}]
        self._core.update_status("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], pod)
