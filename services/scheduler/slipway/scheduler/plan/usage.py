"""What is used on each node, as columns that a plan may write on: the what-if copy.

Owns the arithmetic of taking and giving back, and the log of touched nodes by which feasibility rows stay
current without looking at every node again. Invariant: taking and giving back the same leaves the same columns.
"""

from collections.abc import Iterable

import numpy as np

from slipway.model.resources import Resources
from slipway.scheduler.plan.ask import SCORED_DEFAULTS, Ask
from slipway.scheduler.plan.nodes import At, Bools, Ints, NodeTable

_MANY = 8
"""Nodes from which on one vector expression is cheaper than a loop."""


class Usage:
    """`used[row, node]` in base units; `scored` the same as scores count it (ranks without requests count too)."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self.used: Ints = np.zeros_like(table.allocatable)
        self.scored: Ints = np.zeros_like(table.allocatable)
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

    def take(self, ask: Ask, nodes: list[int], times: int = 1) -> None:
        """`times` more ranks of `ask` on each of `nodes` (a node as often as it is named); negative gives back."""
        if len(nodes) >= _MANY:
            at, counts = np.unique(np.array(nodes, dtype=np.int64), return_counts=True)
            self.used[ask.step_rows[:, None], at] += ask.step_amounts * counts * times
            self.scored[ask.scored_rows[:, None], at] += ask.scored_amounts * counts * times
            for port in ask.host_ports:
                self.port(port)[at] += counts * times
        else:
            used, scored = self.used, self.scored
            for node in nodes:
                for row, amount in ask.steps:
                    used[row, node] += amount * times
                for row, amount in ask.scored_steps:
                    scored[row, node] += amount * times
                for port in ask.host_ports:
                    self.port(port)[node] += times
        self.touched += nodes

    def add(self, requests: Resources, node: int, *, ports: Iterable[int] = (), times: int = 1) -> None:
        """A pod with `requests` on `node` (a foreign one too); resources that the table lacks are left out."""
        rows = self.table.row
        for name, amount in requests.amounts.items():
            row = rows.get(name)
            if row is not None:
                self.used[row, node] += amount * times
                self.scored[row, node] += amount * times
        for name, amount in SCORED_DEFAULTS.items():
            if name not in requests.amounts:
                self.scored[rows[name], node] += amount * times
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

    def fits(self, ask: Ask, at: At) -> Bools:
        """Whether one more rank fits each node of `at` by resources and ports alone."""
        if ask.missing:
            return np.zeros(self.table.ready[at].shape, dtype=np.bool_)
        short = pick(self.table.allocatable, ask.step_rows, at) - pick(self.used, ask.step_rows, at) < ask.step_amounts
        fits: Bools = np.logical_not(np.logical_or.reduce(short, axis=0))
        for port in ask.host_ports:
            fits &= ~self.is_port_taken(port, at)
        return fits

    def room(self, ask: Ask, at: At, most: int) -> Ints:
        """How many more ranks of `ask` each node of `at` holds by resources and ports alone, at most `most`."""
        if ask.missing:
            return np.zeros(self.table.ready[at].shape, dtype=np.int64)
        counts = np.full(self.table.ready[at].shape, most, dtype=np.int64)
        for row, amount in ask.steps:
            np.minimum(counts, self.free(row, at) // amount, out=counts)
        if ask.host_ports:
            np.minimum(counts, 1, out=counts)
            for port in ask.host_ports:
                counts[self.is_port_taken(port, at)] = 0
        return np.maximum(counts, 0)


def pick(matrix: Ints, rows: Ints, at: At) -> Ints:
    """The sub-matrix of `rows` and nodes `at`."""
    return matrix[rows, at] if isinstance(at, slice) else matrix[rows[:, None], at]
