"""What is used on each node, as columns that a plan may write on: the what-if copy.

Owns the arithmetic of taking and giving back, and the log of touched nodes by which feasibility rows stay
current without looking at every node again. Invariant: `take` then `give` of the same leaves the same columns.
"""

from collections.abc import Iterable

import numpy as np

from slipway.model.resources import CPU, MEMORY, Resources
from slipway.scheduler.plan.ask import SCORED_CPU, SCORED_MEMORY, Ask
from slipway.scheduler.plan.nodes import At, Bools, Ints, NodeTable


class Usage:
    """`used[row, node]` in base units; `scored[0|1, node]` is cpu and memory as scores count them."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self.used: Ints = np.zeros_like(table.allocatable)
        self.scored: Ints = np.zeros((2, len(table)), dtype=np.int64)
        self.ports: dict[int, Ints] = {}
        self.touched: list[int] = []

    def copy(self) -> "Usage":
        """An independent copy with an empty log."""
        other = Usage.__new__(Usage)
        other.table = self.table
        other.used = self.used.copy()
        other.scored = self.scored.copy()
        other.ports = {port: counts.copy() for port, counts in self.ports.items()}
        other.touched = []
        return other

    def take(self, ask: Ask, node: int, times: int = 1) -> None:
        """`times` more ranks of `ask` on `node`; negative gives back."""
        for row, amount in ask.steps:
            self.used[row, node] += amount * times
        self.scored[0, node] += ask.scored_cpu * times
        self.scored[1, node] += ask.scored_memory * times
        for port in ask.host_ports:
            self.port(port)[node] += times
        self.touched.append(node)

    def add(self, requests: Resources, node: int, *, ports: Iterable[int] = (), times: int = 1) -> None:
        """A pod with `requests` on `node` (a foreign one too); resources that the table lacks are left out."""
        for name, amount in requests.amounts.items():
            row = self.table.row.get(name)
            if row is not None:
                self.used[row, node] += amount * times
        self.scored[0, node] += (requests.get(CPU) or SCORED_CPU) * times
        self.scored[1, node] += (requests.get(MEMORY) or SCORED_MEMORY) * times
        for port in ports:
            self.port(port)[node] += times
        self.touched.append(node)

    def port(self, port: int) -> Ints:
        """How many pods hold host port `port`, per node."""
        counts = self.ports.get(port)
        if counts is None:
            counts = np.zeros(len(self.table), dtype=np.int64)
            self.ports[port] = counts
        return counts

    def is_port_taken(self, port: int, at: At) -> Bools:
        """The nodes of `at` where `port` is held."""
        return self.port(port)[at] > 0

    def free(self, row: int, at: At) -> Ints:
        """Allocatable less used of one resource."""
        return self.table.allocatable[row, at] - self.used[row, at]

    def room(self, ask: Ask, at: At, most: int) -> Ints:
        """How many more ranks of `ask` each node of `at` holds by resources and ports alone, at most `most`."""
        if ask.missing:
            return np.zeros(self.table.allocatable[0, at].shape, dtype=np.int64)
        counts = np.full(self.table.allocatable[0, at].shape, most, dtype=np.int64)
        for row, amount in ask.steps:
            np.minimum(counts, self.free(row, at) // amount, out=counts)
        if ask.host_ports:
            np.minimum(counts, 1, out=counts)
            for port in ask.host_ports:
                counts[self.is_port_taken(port, at)] = 0
        return np.maximum(counts, 0)
