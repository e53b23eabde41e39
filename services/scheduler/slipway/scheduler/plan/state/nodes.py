"""The nodes of one pool as columns: what does not change while a tick plans.

Owns the order of nodes (by name: the index of a node is its rank by name, and the last tie-breaker of every
placement), allocatable amounts, label columns and taint sets. `usage.py` has what is used on the nodes.
Invariant: a NodeTable is never changed after it is built; label columns are computed on first use and cached.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from slipway.model.facts import DISABLED, DRAINING, SCHEDULING_LABEL, SHARING_LABEL, NodeFact, Taint, Toleration
from slipway.model.resources import CPU, GPU, GPU_MILLI, MEMORY, MILLI, PODS, Resources, total

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]
At = Ints | slice
"""The nodes that a vector expression covers: an index array, or `EVERY`."""

EVERY = slice(None)
AMOUNT_MAX = 2**50
"""Base units. More than any machine has, and small enough that computations with it stay within 64 bits."""
UNLIMITED = 2**40
"""Pods of a node that states no pod limit."""
ABSENT = -1
"""The code of a node that lacks the label."""


class LabelColumn(msgspec.Struct, frozen=True):
    """One label over all nodes: `values[codes[i]]` is node i's value, ABSENT when it has none. Values are sorted."""

    codes: Codes
    values: tuple[str, ...]
    code: dict[str, int]
    """{value: its code}"""

    def select(self, accepted: Iterable[str], *, absent: bool = False) -> Bools:
        """Return the nodes whose value is in `accepted`, and with `absent` also those without the label."""
        codes = [self.code[value] for value in accepted if value in self.code]
        if len(codes) == 1 and not absent:
            return self.codes == codes[0]
        table = np.zeros(len(self.values) + 1, dtype=np.bool_)
        table[codes] = True
        table[ABSENT] = absent
        return table[self.codes]


class NodeTable:
    """Columns over the nodes of a pool, in name order."""

    def __init__(self, nodes: Iterable[NodeFact]) -> None:
        facts = sorted({node.name: node for node in nodes}.values(), key=lambda node: node.name)
        self.facts: tuple[NodeFact, ...] = tuple(facts)
        self.names: tuple[str, ...] = tuple(node.name for node in facts)
        self.index: dict[str, int] = {name: index for index, name in enumerate(self.names)}
        others = {name for node in facts for name in node.allocatable.amounts} - {CPU, MEMORY, PODS}
        self.shares: Bools = np.fromiter((_shares(node) for node in facts), np.bool_, len(facts))
        """nodes whose GPUs the planner gives out device by device"""
        others |= {GPU_MILLI} if self.shares.any() else set()
        self.resources: tuple[str, ...] = (CPU, MEMORY, PODS, *sorted(others))
        self.row: dict[str, int] = {name: row for row, name in enumerate(self.resources)}
        self.allocatable: Ints = _allocatable(facts, self.resources)
        self.divisors: Ints = np.maximum(self.allocatable, 1)
        self.is_everywhere: tuple[bool, ...] = tuple(bool(row.all()) for row in self.allocatable > 0)
        """per resource: whether every node has some of it"""
        self.unschedulable: Bools = np.fromiter((node.unschedulable for node in facts), np.bool_, len(facts))
        self.ready: Bools = np.fromiter((node.ready for node in facts), np.bool_, len(facts))
        self.is_clear: bool = not self.unschedulable.any()
        """whether no node is cordoned"""
        self.is_ready: bool = bool(self.ready.all())
        self.taint_sets: tuple[tuple[Taint, ...], ...]
        self.taint_codes: Codes
        self.taint_sets, self.taint_codes = _taints(facts)
        self.has_images: bool = any(node.images for node in facts)
        self.total: Resources = total(node.allocatable for node in facts)
        self.closed: Bools = np.fromiter((not takes_work(node) for node in facts), np.bool_, len(facts))
        """nodes that accept no work now"""
        self.closed_total: Resources = total(node.allocatable for node in facts if not takes_work(node))
        self._labels: dict[str, LabelColumn] = {}
        self.most: dict[tuple[bytes, tuple[Toleration, ...], int], int] = {}
        """{(request, additional tolerations, ranks): how many ranks fit the empty pool}, filled when asked for"""
        self._images: dict[str, Ints] = {}

    def __len__(self) -> int:
        return len(self.names)

    def stranded(self, placements: Mapping[int, str]) -> list[int]:
        """Return the ranks of `placements` whose nodes accept no work or do not exist any more."""
        index, closed = self.index, self.closed
        return [rank for rank, node in placements.items() if node not in index or closed[index[node]]]

    @cached_property
    def kinds(self) -> list[int]:
        """A number per node, equal for nodes with equal allocatable amounts."""
        numbers: dict[bytes, int] = {}
        columns = np.ascontiguousarray(self.allocatable.T)
        return [numbers.setdefault(column.tobytes(), len(numbers)) for column in columns]

    def label(self, key: str) -> LabelColumn:
        """Return the column of label `key`, computed once."""
        column = self._labels.get(key)
        if column is None:
            column = _column([node.labels.get(key) for node in self.facts])
            self._labels[key] = column
        return column

    def labelled(self, key: str, value: str) -> list[str]:
        """Return the nodes whose label `key` is `value`."""
        column = self.label(key)
        if value not in column.code:
            return []
        return [self.names[node] for node in np.flatnonzero(column.select((value,))).tolist()]

    def image(self, name: str) -> Ints:
        """Return the bytes of image `name` per node, 0 where the node lacks it; computed once."""
        column = self._images.get(name)
        if column is None:
            column = np.fromiter((node.images.get(name, 0) for node in self.facts), np.int64, len(self.facts))
            self._images[name] = column
        return column

    def name_column(self) -> LabelColumn:
        """Return `metadata.name` as a column (for matchFields)."""
        return LabelColumn(np.arange(len(self.names), dtype=np.int32), self.names, self.index)

    def by_taints(self, blocked: Sequence[bool]) -> Bools:
        """Return the verdict of each node, given one verdict per taint set."""
        return np.asarray(blocked, dtype=np.bool_)[self.taint_codes]


def takes_work(node: NodeFact) -> bool:
    """Whether new work may be placed on the node: it is Ready, and not cordoned, draining or disabled."""
    return node.ready and not node.unschedulable and node.labels.get(SCHEDULING_LABEL) not in (DRAINING, DISABLED)


def _allocatable(facts: list[NodeFact], resources: tuple[str, ...]) -> Ints:
    columns = np.zeros((len(resources), len(facts)), dtype=np.int64)
    row = {name: index for index, name in enumerate(resources)}
    columns[row[PODS], :] = UNLIMITED
    for at, node in enumerate(facts):
        for name, amount in node.allocatable.amounts.items():
            columns[row[name], at] = min(amount, AMOUNT_MAX)
        if _shares(node):
            columns[row[GPU_MILLI], at] = node.allocatable.get(GPU) * MILLI
    return columns


def _shares(node: NodeFact) -> bool:
    return node.labels.get(SHARING_LABEL) == "true" and node.allocatable.get(GPU) > 0


def _taints(facts: list[NodeFact]) -> tuple[tuple[tuple[Taint, ...], ...], Codes]:
    codes: dict[tuple[Taint, ...], int] = {}
    column = np.fromiter((codes.setdefault(node.taints, len(codes)) for node in facts), np.int32, len(facts))
    return tuple(codes), column


def _column(values: list[str | None]) -> LabelColumn:
    known = sorted({value for value in values if value is not None})
    code = {value: index for index, value in enumerate(known)}
    codes = np.fromiter((ABSENT if value is None else code[value] for value in values), np.int32, len(values))
    return LabelColumn(codes, tuple(known), code)
