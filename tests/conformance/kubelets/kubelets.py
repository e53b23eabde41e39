"""All simulated nodes of one process: the public face of this package.

Owns the parts and their tasks: connections, nodes and their heartbeat, the feed of pods, their pod manager, and the
endpoint for logs. See README.md.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from slipway.runtime.clock import Clock, SystemClock
from tests.conformance.kubelets.access import read_access
from tests.conformance.kubelets.admission import NodeResources
from tests.conformance.kubelets.connections import Connections
from tests.conformance.kubelets.container_logs import ContainerLogs
from tests.conformance.kubelets.endpoint import HOST, Endpoint
from tests.conformance.kubelets.event_recorder import EventRecorder
from tests.conformance.kubelets.feed import BOUND_PODS, Feed
from tests.conformance.kubelets.node_heartbeat import NodeHeartbeat
from tests.conformance.kubelets.node_state import NodeState, Rules
from tests.conformance.kubelets.nodes import ALL_NODES, KubeletAddress, Registrar, Shape, labels_of, renew_interval_s
from tests.conformance.kubelets.objects import Node, Pod, Taint
from tests.conformance.kubelets.pod_manager import WORKERS, PodManager
from tests.conformance.kubelets.records import Counters, Records, Run
from tests.conformance.kubelets.script import Play, Script
from tests.conformance.kubelets.states import Verdict

SYNC_S = 120.0
ANNOUNCERS = 4
CERTIFICATE = "kubelet.pem"
"""The name of a file beside the kubeconfig: certificate and key that the API server trusts. Used when it exists."""
SHUTDOWN_WORDS = "Pod was terminated in response to imminent node shutdown."
EVICTED_WORDS = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. "


class Kubelets:
    """Open it with `async with`; when that returns, the nodes are ready and every bound pod is known.

    `local`: the API server is the local one, which fetches logs in its own way.
    """

    def __init__(
        self,
        kubeconfig: str | Path,
        *,
        nodes: int | Sequence[str] = 3,
        shape: Shape | None = None,
        script: Script | None = None,
        play: Play | None = None,
        heartbeat: bool = True,
        renew_s: float | None = None,
        reports: bool = True,
        logs: bool = True,
        local: bool = False,
        certificate: Path | None = None,
        events: bool = False,
        records: Path | None = None,
        connections: int = 64,
        clock: Clock | None = None,
    ) -> None:
        self.nodes = [f"node-{index}" for index in range(nodes)] if isinstance(nodes, int) else list(nodes)
        self.shape = shape or Shape()
        self.rules = Rules(default=script or Script(), play=play, is_reporting=reports)
        self.records = Records(records)
        self.renew_s = renew_s or renew_interval_s(len(self.nodes))
        self._clock = clock or SystemClock()
        # Without a heartbeat no controller doubts that nodes are ready, so no task watches the nodes either.
        self._has_heartbeat = heartbeat
        self._wire = Connections(read_access(Path(kubeconfig)), limit=connections)
        self._registrar = Registrar(self._wire, self._clock, self.shape)
        self._registrar.renew_s = self.renew_s
        self._pod_manager = PodManager(self._wire, self._clock, self.records, self.rules)
        self._feed = Feed(self._wire, self._pod_manager, BOUND_PODS, Pod)
        self._heartbeat = NodeHeartbeat(self._registrar, self._pod_manager.node_states, self.records)
        self._nodes = Feed(self._wire, self._heartbeat, ALL_NODES, Node)
        self._container_logs = ContainerLogs(self._pod_manager, self._clock)
        self._recorder = EventRecorder(self._wire) if events else None
        self._endpoint: Endpoint | None = None
        self._is_local = local
        if logs:
            beside = Path(kubeconfig).parent / CERTIFICATE
            found = certificate or (beside if beside.exists() else None)
            self._endpoint = Endpoint(self._container_logs, self._clock, found, plain=local)
            self._pod_manager.on_note.append(self._container_logs.note)
        if self._recorder is not None:
            self._pod_manager.on_note.append(self._recorder.note)
        self._main: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fault = await self._close()
        if fault is not None and error is None:
            raise fault

    async def _open(self) -> None:
        if self._endpoint is not None:
            port = await self._endpoint.start()
            self._registrar.kubelet_address = KubeletAddress(
                port=port, log_url=f"http://{HOST}:{port}" if self._is_local else ""
            )
        await self.add_nodes()
        # One task for all of them, because a fixture may be left by another task than the one that entered it.
        self._main = asyncio.get_running_loop().create_task(self._run())
        waiting = asyncio.ensure_future(self._feed.synced.wait())
        await asyncio.wait({self._main, waiting}, timeout=SYNC_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._main.done():
            await self._main
        if not self._feed.synced.is_set():
            raise TimeoutError(f"no list of pods in {SYNC_S:.0f} s")

    async def _close(self) -> BaseException | None:
        """Stop everything and return the error that had ended the work, if any."""
        main, self._main = self._main, None
        fault: BaseException | None = None
        if main is not None:
            main.cancel()
            await asyncio.wait({main})
            fault = None if main.cancelled() else main.exception()
        if self._endpoint is not None:
            await self._endpoint.close()
        self._wire.close()
        self.records.close()
        return fault

    # --- what ran ---------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> list[Run]:
        """Every start of every container, in order."""
        return self.records.runs

    @property
    def count(self) -> Counters:
        """How often each thing happened."""
        self.records.count.relists = self._feed.relists
        self.records.count.events = self._recorder.sent if self._recorder else 0
        return self.records.count

    @property
    def requests(self) -> int:
        """How many requests were sent."""
        return self._wire.sent

    @property
    def grace_needed_s(self) -> float:
        """The least value for kube-controller-manager's --node-monitor-grace-period."""
        return 2.5 * self.renew_s

    # --- what pods do -----------------------------------------------------------------------------------------------

    def exit(self, pod: str, code: int = 0, container: str = "") -> bool:
        """End the program of that pod (uid or `namespace/name`) now; False when it does not run."""
        return self._pod_manager.exit(pod, code, container)

    def evict(self, pod: str, words: str = EVICTED_WORDS) -> None:
        """Evict this pod because its node is short of memory."""
        self._pod_manager.stop(pod, Verdict(reason="Evicted", message=words, is_disruption=True))

    def write(self, pod: str, text: str, container: str = "") -> None:
        """Write a line into the container's log now."""
        self._container_logs.write(pod, text, container)

    # --- what nodes do ----------------------------------------------------------------------------------------------

    async def add_nodes(self, *names: str) -> None:
        """Register more nodes (without names: those of the constructor)."""
        self.nodes += [name for name in names if name not in self.nodes]
        wanted = [(index, name) for index, name in enumerate(self.nodes) if not names or name in names]
        for index, name in wanted:
            room, labels = NodeResources(self.shape.allocatable()), labels_of(name, index, self.shape)
            taints = tuple(self.shape.taints)
            self._pod_manager.node_states[name] = NodeState(
                name=name, index=index, room=room, labels=labels, taints=taints
            )
        await self._registrar.register(wanted, leases=self._has_heartbeat)

    def lose(self, node: str, *, runs_on: bool = False) -> None:
        """Silence the node. Its machine is dead; with `runs_on` it is only cut off."""
        self._pod_manager.lose(node, runs_on=runs_on)

    async def recover(self, node: str) -> None:
        """Bring the node back: it registers again if needed, and reports what happened to its pods."""
        node_state = self._pod_manager.node_states[node]
        await self._registrar.register_one(node_state.index, node)
        if self._has_heartbeat:
            await self._registrar.renew(node)
        self._pod_manager.recover(node)

    async def shut_down(self, node: str, *, grace_s: float = 5.0) -> None:
        """Shut the node down in good order: its pods end within the grace, and it admits no more pods."""
        node_state = self._pod_manager.node_states[node]
        node_state.is_closing = True
        verdict = Verdict(reason="Terminated", message=SHUTDOWN_WORDS, is_disruption=True)
        for pod_state in self._pod_manager.on(node):
            self._pod_manager.stop(pod_state.pod.uid, verdict, min(grace_s, pod_state.pod.grace_s))
        await self._registrar.set_ready(node, ready=False, words="node is shutting down")

    async def mark_not_ready(self, node: str, words: str = "Kubelet stopped posting node status.") -> None:
        """Mark the node as not ready at once, as the node controller does after the grace period of a silent node."""
        await self._registrar.set_ready(node, ready=False, words=words)

    async def taint(self, node: str, *taints: Taint) -> None:
        """Set the taints of the node, replacing all others: `Taint(key="...", effect="NoExecute")`."""
        self._pod_manager.node_states[node].taints = taints
        await self._registrar.set_taints(node, taints)

    async def delete_node(self, node: str) -> None:
        """Delete the Node object, as when a machine is taken away; the node is lost too."""
        self.lose(node)
        await self._registrar.delete(node)

    # --- tasks ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._feed.run())
            for _ in range(WORKERS):
                tasks.create_task(self._pod_manager.work())
            if self._recorder is not None:
                for _ in range(ANNOUNCERS):
                    tasks.create_task(self._recorder.run())
            if self._has_heartbeat:
                tasks.create_task(self._heartbeat.renew_leases())
                tasks.create_task(self._heartbeat.restore_ready())
                tasks.create_task(self._nodes.run())
