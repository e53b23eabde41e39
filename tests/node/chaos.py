"""Chaos on real nodes: kubelets, containerds and machines fail while pods run, including those of our chart.

Owns the faults of machines, and one run of them on an existing installation: load, faults, rest, audit. `tests.chaos`
defines the load, the recovery and the audit.
"""

import asyncio
import base64
import contextlib
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec

from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.ops.audit import check
from slipway.ops.audit.check import lacking
from slipway.ops.audit.evidence import NODES, POOLS, AuditEvidence, Version
from slipway.ops.audit.logs import holes_of, judged
from slipway.runtime.clock import SystemClock
from tests.chaos import gather_logs, table
from tests.chaos.clients import Json, with_uids
from tests.chaos.faults import Fault, Group, Kind, Schedule
from tests.chaos.gather import Firehose, RedisAddress, connected, read_pending, read_streams
from tests.chaos.history import History
from tests.chaos.load import Load
from tests.chaos.pace import Pace
from tests.chaos.plans import Part, Plan
from tests.chaos.recovery import REST_S, SAID_MAX, Recovery
from tests.chaos.run import store_losses
from tests.chaos.table import Outcome
from tests.conformance.kubelets.script import PLAY
from tests.conformance.system.system import a_body
from tests.node.images import WORKLOAD
from tests.node.nodes import NodeCluster, RealNode
from tests.node.pod_port import PodPort
from tests.node.rank_reports import PLAYER, RankReports
from tests.support import chart
from tests.support.chart import NAMESPACE

Doing = Callable[[Fault, random.Random], AbstractAsyncContextManager[None]]
CLIENTS = 3
API_PORT = 8080
WARM_S = 3.0
FLOOD_MAX = 4_000
"""lines of one burst, fewer because two processors have to start containers too"""
DELETED_MAX = 3
SUPERVISED_S = 0.5
RUNTIME_S = 5.0
"""Seconds after its start within which containerd may not have taken over all containers yet."""
_AWAY_S = (2.0, 12.0)
_OF_NODES = (
    "kubelet kill -9",
    "kubelet SIGSTOP",
    "containerd kill -9",
    "kubelet and containerd kill -9",
    "machine off",
    "machine cut off",
)
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        *(Kind(name=name, group=Group.NODES, lasts_s=_AWAY_S) for name in _OF_NODES),
        *(Kind(name=f"kill -9 {service}", group=Group.KILLS) for service in chart.SERVICES),
        Kind(name="redis comes back empty", group=Group.REDIS),
        Kind(name="pods deleted", group=Group.OBJECTS),
    )
}


def dressed(plan: Plan) -> Plan:
    """The plan with a body whose ranks do on a real node what the script describes for a simulated one."""
    body = dict(plan.body)
    template = body["template"]
    script: Json = msgspec.json.decode(template["metadata"]["annotations"][PLAY])
    script["bursts"] = [
        {**burst, "lines": min(burst["lines"], FLOOD_MAX)} for burst in script.get("bursts") or ()
    ]  # fmt: skip
    kept: list[Json] = template["spec"]["containers"][0].get("env") or []
    container: Json = {
        "name": "main",
        "image": WORKLOAD,
        "command": ["python3", "-c", PLAYER],
        "env": [*kept, {"name": "PLAY", "value": msgspec.json.encode(script).decode()}],
    }
    body["template"] = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 3}}
    body["ranks"] = [{**role, "resources": {"cpu": "10m", "memory": "48Mi"}} for role in body["ranks"]]
    return msgspec.structs.replace(plan, body=body)


class MachineFaults:
    """Injects the faults. Leaving a fault ends it: everything runs again."""

    def __init__(self, cluster: NodeCluster, load: Load, history: History) -> None:
        self.away: list[tuple[str, float, float]] = []
        """(node, from, to) when a machine was off, or had no containerd to read the output of its containers"""
        self._cluster, self._load, self._history = cluster, load, history
        self._clock = SystemClock()
        self._is_down: set[str] = set()
        """nodes whose programs a fault keeps stopped"""
        self._doings: dict[str, Doing] = dict(self._table())

    def do(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        """A context in which the fault is active."""
        return self._doings[fault.kind](fault, random.Random(fault.chance))

    async def supervise(self) -> None:
        """Restart programs that ended by themselves, as systemd does on a machine; runs until cancelled."""
        while True:
            for node in self._cluster.nodes:
                for program in (node.runtime.program, node.kubelet):
                    if node.name not in self._is_down and not program.is_running:
                        program.start()
            await asyncio.sleep(SUPERVISED_S)

    @contextlib.contextmanager
    def _held_down(self, node: RealNode) -> Generator[None]:
        self._is_down.add(node.name)
        try:
            yield
        finally:
            self._is_down.discard(node.name)

    def _table(self) -> Iterator[tuple[str, Doing]]:
        yield "kubelet kill -9", self._killed
        yield "containerd kill -9", self._killed
        yield "kubelet and containerd kill -9", self._killed
        yield "kubelet SIGSTOP", self._stopped
        yield "machine off", self._off
        yield "machine cut off", self._cut_off
        yield "pods deleted", self._deleted
        for kind in ("redis comes back empty", *(f"kill -9 {service}" for service in chart.SERVICES)):
            yield kind, self._service_killed

    @asynccontextmanager
    async def _killed(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        node = chance.choice(self._cluster.nodes)
        began = self._clock.now()
        with self._held_down(node):
            for name, program in (("kubelet", node.kubelet), ("containerd", node.runtime.program)):
                if name in fault.kind:
                    await asyncio.to_thread(program.stop, signal.SIGKILL)
            yield
        if "containerd" in fault.kind:
            # Output of a container in that time stays in a pipe, and is lost with the container.
            self.away.append((node.name, began, self._clock.now() + RUNTIME_S))

    @asynccontextmanager
    async def _stopped(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        node = chance.choice(self._cluster.nodes)
        node.kubelet.freeze()
        try:
            yield
        finally:
            node.kubelet.thaw()

    @asynccontextmanager
    async def _off(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        node = self._expendable
        began = self._clock.now()
        with self._held_down(node):
            await asyncio.to_thread(node.power_off)
            try:
                yield
            finally:
                await asyncio.to_thread(node.power_on)
                self.away.append((node.name, began, self._clock.now()))

    @asynccontextmanager
    async def _cut_off(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        node = self._expendable
        await asyncio.to_thread(node.cut_off)
        try:
            yield
        finally:
            await asyncio.to_thread(node.reconnect)

    @asynccontextmanager
    async def _service_killed(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        """Kill every process of one of its pods, as the kernel does when memory is short."""
        name = fault.kind.removeprefix("kill -9 ") if fault.kind.startswith("kill") else "valkey"
        found: list[list[int]] = []
        for node in self._cluster.nodes:
            with contextlib.suppress(RuntimeError):  # Another fault has stopped its containerd.
                here = await asyncio.to_thread(node.processes, NAMESPACE)
                found += [pids for pod, pids in here.items() if pod.startswith(f"slipway-{name}-")]
        for pid in chance.choice(found) if found else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        yield

    @asynccontextmanager
    async def _deleted(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        """Delete pods as an administrator does by hand; the second delete does not even wait for the kubelet."""
        living = self._running()
        for number, id_ in enumerate(chance.sample(living, min(len(living), DELETED_MAX))):
            version = self._history.last(id_)
            assert version is not None
            words = [
                "delete",
                "pod",
                f"{id_}-{version.obj['status']['attempt']}-0",
                "--wait=false",
                "--ignore-not-found",
            ]
            more = ["--force", "--grace-period=0"] if number == 1 else []
            await asyncio.to_thread(self._cluster.kubectl, *words, *more)
        yield

    def _running(self) -> list[str]:
        found: list[str] = []
        for id_ in self._load.launches:
            version = self._history.last(id_)
            if version is not None and version.obj.get("status", {}).get("phase") == Phase.RUNNING:
                found.append(id_)
        return found

    @property
    def _expendable(self) -> RealNode:
        """The machine without pods of ours: it may be off for long."""
        return self._cluster.nodes[-1]


class NodeChaos:
    """One run on an installation."""

    def __init__(
        self,
        cluster: NodeCluster,
        folder: Path,
        *,
        seed: int,
        minutes: float,
        say: Callable[[str], None],
        only: Sequence[str] = (),
    ) -> None:
        self._cluster, self._seed, self._minutes, self._say = cluster, seed, minutes, say
        self._kinds = [kind for name, kind in KINDS.items() if not only or name in only]
        self._clock = SystemClock()
        self._pace = Pace()
        self._history = History(cluster.control.etcd_url, folder / "history.jsonl")
        self._doors = [PodPort(cluster.nodes[0], pod, API_PORT) for pod in api_pods(cluster)]
        self._redis = _redis(cluster)
        self._firehose = Firehose(self._redis)
        self._reports = RankReports()
        self._load = Load([door.url for door in self._doors], seed, self._history, dress=dressed, clients=CLIENTS)
        self._faults = MachineFaults(cluster, self._load, self._history)
        body = a_body("command", 1, {"runsS": 0.1, "bursts": []})
        probe = dressed(Plan(part=Part.LEAVE, ranks=1, body=body, results=()))
        self._recovery = Recovery(self._history, self._load, self._pace, probe.body, say)
        self._rest_s: float | None = None
        self.evidence: AuditEvidence

    async def run(self) -> Outcome:
        """Run all steps."""
        began, began_at = self._clock.monotonic(), self._clock.now()
        await self._history.begin_now()
        listening = [
            asyncio.ensure_future(work)
            for work in (self._history.run(), self._firehose.run(), self._pace.run(), self._faults.supervise())
        ]
        diary = await self._reports.open()
        for door in self._doors:
            await door.open()
        try:
            loading = asyncio.ensure_future(self._load.run())
            await asyncio.sleep(WARM_S)
            await self._inject()
            await self._recovery.last_launches(loading)
            await self._come_to_rest()
            await self._end()
            await self._history.catch_up()
            # In a thread: it reads through the doors, which this event loop serves.
            evidence = self.evidence = await asyncio.to_thread(self._gather, began_at)
        finally:
            diary.close()
            for door in self._doors:
                door.close()
            for task in listening:
                task.cancel()
            await asyncio.wait(listening)
            self._history.close()
            await self._load.aclose()
        self._recovery.violations += self._load.violations + check.audit(evidence)
        return self._outcome(evidence, self._clock.monotonic() - began)

    async def _inject(self) -> None:
        until = self._clock.monotonic() + self._minutes * 60.0
        for number, (_, wave) in enumerate(Schedule(self._seed, self._minutes, self._kinds).waves(), 1):
            if self._clock.monotonic() > until:
                return
            if not await self._recovery.wave(number, wave, self._do):
                return

    async def _do(self, fault: Fault) -> None:
        async with self._faults.do(fault):
            await asyncio.sleep(fault.lasts_s)

    async def _come_to_rest(self) -> None:
        left = await self._recovery.until(
            lambda: [*self._load.unsettled(self._clock.now()), *self._load.unfinished()]
        )  # fmt: skip
        if left:
            self._recovery.tell("I18", "rest", f"not as desired after {REST_S:.0f} s: {left[:SAID_MAX]}")
            return
        self._rest_s = self._clock.now() - self._recovery.last_fault_at
        await self._recovery.until(self._pending)

    async def _end(self) -> None:
        """End the remaining allocations, and wait until nothing of them is left, also on the machines."""
        try:
            async with self._pace.limit(REST_S):
                await self._load.end_kept()
        except TimeoutError:
            self._recovery.tell("LIVE", "end", "what was kept running cannot be cancelled")
        left = await self._recovery.until(lambda: [*self._load.unfinished(), *self._history.leftovers()])
        if left:
            self._recovery.tell("I11", "end", f"left after {REST_S:.0f} s: {left[:SAID_MAX]}")
        ours = [id_ for node in self._cluster.nodes for id_ in await asyncio.to_thread(node.running)]
        if ours:
            self._recovery.tell("I11", "machines", f"still runs: {ours[:SAID_MAX]}")

    def _pending(self) -> list[str]:
        count = read_pending(self._redis)
        return [f"{count} hints"] if count else []

    def _gather(self, began_at: float) -> AuditEvidence:
        versions = list(_since(self._history.versions, began_at))
        uids = {version.uid for version in versions}
        ids = {id_ for id_, uid in self._history.by_id.items() if uid in uids}
        with connected(self._redis) as client:
            stored = [log for log in gather_logs.stored_logs(client) if log.allocation in ids]
        told = list(gather_logs.told_logs(self._doors[0].url, self._load.launches))
        return AuditEvidence(
            versions=versions,
            streams={id_: events for id_, events in read_streams(self._redis).items() if id_ in ids},
            appended=[event for event in self._firehose.heard if str(event.allocation_id) in ids],
            containers=self._reports.ran(versions),
            knows_every_end=False,
            pending_hints=read_pending(self._redis),
            has_writers=False,
            end_at=self._clock.now(),
            last_fault_at=self._recovery.last_fault_at,
            logs=[*stored, *told],
            printed=self._reports.printed(versions, self._faults.away),
            store_losses=store_losses(self._recovery.suffered),
            answers=with_uids(self._load.answers, lambda id_: self._history.by_id.get(id_, "")),
        )

    def _outcome(self, evidence: AuditEvidence, took_s: float) -> Outcome:
        at = {version.number: version.at for version in evidence.versions}
        found = self._recovery.violations
        return Outcome(
            seed=self._seed,
            minutes=self._minutes,
            suffered=self._recovery.suffered,
            violations=[str(each) for each in found],
            subjects=[each.subject for each in found],
            at=[table.blame(at.get(each.version, -1.0), self._recovery.suffered) for each in found],
            launches=len(self._load.launches),
            lost=sum(1 for each in found if each.invariant == "I1"),
            doubled=sum(1 for each in found if each.invariant in ("I2", "I3", "I4")),
            answers=len(self._load.answers),
            unanswered=sum(1 for answer in self._load.answers if not answer.status),
            rest_s=self._rest_s,
            writes_at_rest=0,
            versions=len(evidence.versions),
            starts=len(evidence.containers),
            took_s=took_s,
            logs=len(evidence.logs or ()),
            logs_judged=sum(1 for _ in judged(evidence)),
            lines=sum(passage.count for log in evidence.logs or () for passage in log.passages),
            holes=sum(map(holes_of, evidence.logs or ())),
            share=self._pace.mean,
            share_lowest=self._pace.lowest,
            unknown=sorted(need.value for need in lacking(evidence)),
        )


def _since(versions: Sequence[Version], began_at: float) -> Iterator[Version]:
    """The versions of objects of this run, and of nodes and pools that existed before."""
    for version in versions:
        made_at = parse_time(version.obj["metadata"]["creationTimestamp"])
        if version.resource in (NODES, POOLS) or made_at >= int(began_at):
            yield version


def api_pods(cluster: NodeCluster) -> list[str]:
    """The names of the api's pods."""
    selector = "app.kubernetes.io/component=api"
    found = cluster.kubectl("get", "pods", "--namespace", NAMESPACE, "--selector", selector, "--output", "name")
    return [line.removeprefix("pod/") for line in found.split()]


def _redis(cluster: NodeCluster) -> RedisAddress:
    """The address of Redis for the administrator of the release."""
    ours = ("--namespace", NAMESPACE, "--output")
    host = cluster.kubectl("get", "service", "slipway-valkey", *ours, "jsonpath={.spec.clusterIP}")
    password = cluster.kubectl("get", "secret", "slipway-valkey", *ours, "jsonpath={.data.password}")
    return RedisAddress(host=host, port=6379, password=base64.b64decode(password).decode(), is_tls=True)
