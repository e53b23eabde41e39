"""The usage of each node, as columns that a plan may change: the what-if copy.

Owns the arithmetic of taking and giving back. Its log of touched nodes lets feasibility rows refresh only these nodes.
Invariant: taking and giving back the same amounts leaves the same columns.

Sampling: only some of the feasible nodes are compared, as kube-scheduler does in large clusters. Off by default.

For each rank, a limited number of feasible nodes is compared, beginning at one place in the order of nodes. The next
rank begins where this one stopped. The first place is derived from the tick's seed, so a tick can be replayed.
Source: kube-scheduler 1.37 schedule_one.go (numFeasibleNodesToFind, nextStartNodeIndex).
"""

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from slipway.model.facts import VolumeFact
from slipway.model.resources import GPU, GPU_MILLI, Resources
from slipway.scheduler.plan.state.affinity_terms import Namespaces
from slipway.scheduler.plan.state.devices import Deltas, Devices
from slipway.scheduler.plan.state.nodes import At, Bools, Ints, NodeTable
from slipway.scheduler.plan.state.pod_index import NO_CLASS, PodClass, PodIndex
from slipway.scheduler.plan.state.rank_request import SCORED_DEFAULTS, RankRequest
from slipway.scheduler.plan.state.workload_mix import WorkloadMix

NODES_MIN = 100
"""In a pool with fewer nodes, all nodes are compared; in a larger pool, at least this number of feasible nodes."""
PERCENT_MIN = 5
PERCENT_TOP = 50
NODES_PER_PERCENT = 125


class SampleCursor:
    """The node at which the next sample begins; it moves with every sample."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.size = feasible_to_find(nodes)
        self.start = seed % nodes if nodes else 0

    def of(self, total: Ints) -> Ints:
        """Return `total` with all nodes outside the sample made infeasible (-1)."""
        nodes = total.size
        order = (np.arange(nodes) + self.start) % nodes
        found = np.flatnonzero(total[order] >= 0)
        if found.size < self.size:
            return total
        looked_at = int(found[self.size - 1]) + 1
        limited = np.full(nodes, -1, dtype=np.int64)
        chosen = order[:looked_at]
        limited[chosen] = total[chosen]
        self.start = (self.start + looked_at) % nodes
        return limited


def feasible_to_find(nodes: int) -> int:
    """Return how many feasible nodes are enough in a pool of `nodes`."""
    if nodes < NODES_MIN:
        return nodes
    percent = max(PERCENT_TOP - nodes // NODES_PER_PERCENT, PERCENT_MIN)
    return max(nodes * percent // 100, NODES_MIN)


_MANY = 8
"""From this number of nodes on, one vector expression is cheaper than a loop."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod, or one rank that has no pod yet, uses of its node."""

    node: str
    requests: Resources
    """including one pod slot"""
    ports: tuple[int, ...] = ()
    pod_class: PodClass = NO_CLASS
    """the pod's class for affinity and spreading"""
    scored: Resources = Resources()
    """cpu and memory for scores, where these differ from the requests"""
    devices: tuple[int, ...] = ()
    """numbers of the GPUs that it uses; empty when unknown"""


class WindowNodes(msgspec.Struct, frozen=True):
    """The nodes of one window, for its current or next occurrence."""

    owners: str
    """for whom the window is, such as `maintenance kernel` or `queue class (window tuesday)`"""
    start: float
    end: float
    nodes: Bools
    is_begun: bool


class NodeUsage:
    """`used[row, node]` in base units; `scored` is the same for scores, which assume defaults for missing requests."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self.used: Ints = np.zeros_like(table.allocatable)
        self.scored: Ints = np.zeros_like(table.allocatable)
        self.ports: dict[int, Ints] = {}
        self.pod_index = PodIndex(len(table))
        self.sample: SampleCursor | None = None
        """set when only some of the feasible nodes are compared"""
        self.volumes: Mapping[tuple[str, str], VolumeFact] = {}
        """{(namespace, claim): where its volume can be reached}"""
        self.windows: Mapping[str, WindowNodes] = {}
        """{window of the pool: the nodes that it reserves}"""
        self.devices = Devices(table) if table.shares.any() else None
        """None when no node shares its GPUs"""
        self.mix: WorkloadMix | None = None
        """the expected future GPU requests; None when no score uses them"""
        self.touched: list[int] = []
        self._state_of: dict[int, int] = {}
        self._states: dict[tuple[int, bytes, bytes], int] = {}

    def copy(self) -> "NodeUsage":
        """Return an independent copy with an empty log."""
        other = NodeUsage.__new__(NodeUsage)
        other.table = self.table
        other.used = self.used.copy()
        other.scored = self.scored.copy()
        other.ports = {port: counts.copy() for port, counts in self.ports.items()}
        other.pod_index, other.volumes, other.sample = self.pod_index.copy(), self.volumes, None
        other.windows = self.windows
        other.devices = self.devices.copy() if self.devices is not None else None
        other.mix = self.mix
        other.touched = []
        other._state_of, other._states = {}, {}
        return other

    def see(self, namespaces: Namespaces, volumes: Mapping[tuple[str, str], VolumeFact], *, is_watched: bool) -> None:
        """Set facts beyond nodes that restrict ranks; `is_watched`: an allocation depends on labels of other pods."""
        self.volumes, self.pod_index.namespaces = volumes, namespaces
        self.pod_index.is_watched = is_watched or bool(self.pod_index.terms)

    def take(self, request: RankRequest, nodes: list[int], times: int = 1) -> None:
        """Take `times` more ranks of `request` on each of `nodes` (a node may be repeated); negative gives back."""
        if len(nodes) >= _MANY:
            at, counts = np.unique(np.array(nodes, dtype=np.int64), return_counts=True)
            self.used[request.step_rows[:, None], at] += request.step_amounts * counts * times
            self.scored[request.scored_rows[:, None], at] += request.scored_amounts * counts * times
            for port in request.host_ports:
                self.port(port)[at] += counts * times
        else:
            used, scored = self.used, self.scored
            for node in nodes:
                for row, amount in request.steps:
                    used[row, node] += amount * times
                for row, amount in request.scored_steps:
                    scored[row, node] += amount * times
                for port in request.host_ports:
                    self.port(port)[node] += times
        if self.devices is not None and (request.gpus or request.gpu_milli):
            self._take_devices(self.devices, request, nodes, times)
        if self.pod_index.is_watched:
            self.pod_index.move(request.pod_class, tuple(nodes), times)
        self.touched += nodes
        if self._state_of:
            for node in nodes:
                self._state_of.pop(node, None)

    def charge(self, charge: Charge, node: int, times: int = 1) -> None:
        """Book a charge on `node`, `times` = -1 removes it; resources that the table lacks are ignored."""
        rows = self.table.row
        amounts = charge.requests.amounts
        if GPU in amounts or GPU_MILLI in amounts:
            amounts = self._charge_devices(charge, node, times)
        for name, amount in amounts.items():
            row = rows.get(name)
            if row is not None:
                self.used[row, node] += amount * times
                self.scored[row, node] += amount * times
        counted = charge.scored.amounts or SCORED_DEFAULTS
        for name, amount in counted.items():
            if counted is not SCORED_DEFAULTS:
                self.scored[rows[name], node] += (amount - amounts.get(name, 0)) * times
            elif name not in amounts:
                self.scored[rows[name], node] += amount * times
        if self.pod_index.is_watched:
            self.pod_index.move(charge.pod_class, (node,), times)
        for port in charge.ports:
            self.port(port)[node] += times
        self.touched.append(node)
        self._state_of.pop(node, None)

    def _take_devices(self, devices: Devices, request: RankRequest, nodes: list[int], times: int) -> None:
        for node, count in Counter(nodes).items():
            if not self.table.shares[node]:
                continue
            if times > 0:
                self._add_gpus(node, devices.take(request.key, node, count * times, request.gpus, request.gpu_milli))
                continue
            for _ in range(-count * times):
                self._add_gpus(node, devices.give(request.key, node, request.gpus, request.gpu_milli))

    def _charge_devices(self, charge: Charge, node: int, times: int) -> dict[str, int]:
        """Book the devices of a charge; return its other amounts.

        On a node that does not share its GPUs, a share uses a whole GPU.
        """
        amounts = dict(charge.requests.amounts)
        milli = amounts.pop(GPU_MILLI, 0)
        if self.devices is None or not self.table.shares[node]:
            return amounts | {GPU: amounts.get(GPU, 0) + (1 if milli else 0)}
        gpus = amounts.pop(GPU, 0)
        self._add_gpus(node, self.devices.charge(node, gpus, milli, charge.devices, times))
        return amounts

    def _add_gpus(self, node: int, deltas: Deltas) -> None:
        for name, amount in zip((GPU, GPU_MILLI), deltas, strict=True):
            self.used[self.table.row[name], node] += amount
            self.scored[self.table.row[name], node] += amount

    def forget(self, nodes: Ints) -> None:
        """Mark `nodes` as changed by other code, so that readers read them again."""
        self.touched += nodes.tolist()
        self._state_of.clear()

    def port(self, port: int) -> Ints:
        """Return how many pods use host port `port`, per node."""
        counts = self.ports.get(port)
        if counts is None:
            counts = np.zeros(len(self.table), dtype=np.int64)
            self.ports[port] = counts
        return counts

    def is_port_taken(self, port: int, at: At) -> Bools:
        """Whether `port` is in use on each node of `at`."""
        return self.port(port)[at] > 0

    def states_of(self, nodes: list[int]) -> list[int]:
        """Return a number for each of `nodes`, equal for nodes in equal state.

        The state is the allocatable, used and scored amounts, and the free capacity of the devices.
        """
        known = self._state_of
        return [known[node] if node in known else self._read_state(node) for node in nodes]

    def _read_state(self, node: int) -> int:
        devices = b"" if self.devices is None else self.devices.state_of(node)
        key = (self.table.kinds[node], self.used[:, node].tobytes(), self.scored[:, node].tobytes() + devices)
        state = self._state_of[node] = self._states.setdefault(key, len(self._states))
        return state

    def free(self, row: int, at: At) -> Ints:
        """Return allocatable minus used of one resource."""
        return self.table.allocatable[row, at] - self.used[row, at]

    def fits(self, request: RankRequest, at: At) -> Bools:
        """Whether one more rank fits each node of `at` by resources and ports alone."""
        if request.missing:
            return np.zeros(self.table.ready[at].shape, dtype=np.bool_)
        short = (
            pick(self.table.allocatable, request.step_rows, at) - pick(self.used, request.step_rows, at)
            < request.step_amounts
        )
        fits: Bools = np.logical_not(np.logical_or.reduce(short, axis=0))
        for port in request.host_ports:
            fits &= ~self.is_port_taken(port, at)
        devices = self.devices_for(request)
        return fits if devices is None else fits & devices.fits(request.gpu_milli, at)

    def fits_on(self, request: RankRequest, node: int) -> bool:
        """Like `fits` for a single node; cheaper than with an array of one."""
        if request.missing or request.host_ports or self.devices_for(request) is not None:
            return bool(self.fits(request, np.array([node]))[0])
        allocatable, used = self.table.allocatable, self.used
        return all(allocatable[row, node] - used[row, node] >= amount for row, amount in request.steps)

    def room(self, request: RankRequest, at: At, most: int) -> Ints:
        """Return how many more ranks of `request` fit each node of `at` by resources and ports, at most `most`."""
        if request.missing:
            return np.zeros(self.table.ready[at].shape, dtype=np.int64)
        counts = np.full(self.table.ready[at].shape, most, dtype=np.int64)
        for row, amount in request.steps:
            np.minimum(counts, self.free(row, at) // amount, out=counts)
        if request.host_ports:
            np.minimum(counts, 1, out=counts)
            for port in request.host_ports:
                counts[self.is_port_taken(port, at)] = 0
        devices = self.devices_for(request)
        if devices is not None:
            np.minimum(counts, devices.room(request.gpu_milli, at, most), out=counts)
        return np.maximum(counts, 0)

    def devices_for(self, request: RankRequest) -> Devices | None:
        """Return the devices when amounts alone do not decide whether a rank fits; None otherwise.

        Devices decide for shares of a GPU, and for whole GPUs while some device numbers are unknown.
        """
        if self.devices is None or not (request.gpu_milli or (request.gpus and self.devices.unknowns)):
            return None
        return self.devices


def pick(matrix: Ints, rows: Ints, at: At) -> Ints:
    """Return the sub-matrix of `rows` and nodes `at`."""
    return matrix[rows, at] if isinstance(at, slice) else matrix[rows[:, None], at]
