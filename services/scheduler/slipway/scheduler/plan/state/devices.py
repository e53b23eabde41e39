"""The GPUs of nodes, device by device: how much of each device is used, and which devices the next rank gets.

Only for nodes that share their GPUs (`SHARING_LABEL`): there the planner chooses the device of each rank. On other
nodes the device plugin chooses, and GPUs are only a number. A share of a GPU goes to the fitting device with the least
free capacity. Whole GPUs go to unused devices, lowest numbers first, never to a partly used device. If ranks on a node
use devices with unknown numbers, no unused device of that node is given to a further rank.

Invariants: `take` uses more of a device than is free only for a share of a GPU that fits no device; `over` then has the
excess. `charge` books existing usage as it is found. Taking and then giving back leaves the same columns.
"""

import numpy as np

from slipway.model.resources import GPU, MILLI
from slipway.scheduler.plan.state.nodes import At, Bools, Ints, NodeTable

Numbers = tuple[int, ...]
Deltas = tuple[int, int]
"""(GPUs that become used, thousandths that become used) on a node"""


class Devices:
    """`left[device, node]` is the free capacity in thousandths; zero where the device does not exist."""

    def __init__(self, table: NodeTable) -> None:
        self.count: Ints = np.where(table.shares, table.allocatable[table.row[GPU]], 0)
        """devices per node"""
        devices = np.arange(int(self.count.max(initial=0)), dtype=np.int64)[:, None]
        self.left: Ints = np.where(devices < self.count, MILLI, 0)
        self.over: dict[tuple[int, int], int] = {}
        """{(device, node): thousandths used beyond the whole device}, where charges overlap"""
        self.unknown: Ints = np.zeros(len(table), dtype=np.int64)
        """GPUs in use whose device numbers are unknown, per node"""
        self.unknowns = 0
        self.given: dict[tuple[bytes, int], list[Numbers]] = {}
        """{(request key, node): devices of its ranks}, in the order of taking"""

    def copy(self) -> "Devices":
        """Return an independent copy, which includes the record of taken devices."""
        other = Devices.__new__(Devices)
        other.count = self.count
        other.left, other.unknown, other.unknowns = self.left.copy(), self.unknown.copy(), self.unknowns
        other.over = dict(self.over)
        other.given = {key: list(numbers) for key, numbers in self.given.items()}
        return other

    def state_of(self, node: int) -> bytes:
        """Return a key that is equal for nodes whose devices have the same free capacities, whatever their numbers."""
        return np.sort(self.left[:, node]).tobytes() + bytes([int(self.unknown[node] > 0)])

    def fits(self, milli: int, at: At) -> Bools:
        """Whether each node of `at` has a device for a share; for whole GPUs (0), whether it may give unused ones."""
        if not milli:
            return self.unknown[at] == 0
        left = self._usable(at)
        fits: Bools = np.logical_or.reduce(left >= milli, axis=0)
        return fits

    def room(self, milli: int, at: At, most: int) -> Ints:
        """Return how many more shares fit each node of `at`, at most `most`."""
        if not milli:
            return np.where(self.unknown[at] == 0, most, 0)
        return np.minimum((self._usable(at) // milli).sum(axis=0), most)

    def is_blocked(self, at: At) -> Bools:
        """Whether each node of `at` gives out no unused device, because unknown devices are in use there."""
        return self.unknown[at] > 0

    def take(self, key: bytes, node: int, ranks: int, gpus: int, milli: int) -> Deltas:
        """Take the best devices for each of `ranks` more; return the use beyond what the request itself books."""
        given = self.given.setdefault((key, node), [])
        left: list[int] = self.left[:, node].tolist()
        is_open = self.unknown[node] == 0
        touched = 0
        for _ in range(ranks):
            numbers = self._choose(node, left, gpus, milli, is_open=is_open)
            given.append(numbers)
            for number in numbers:
                if milli > left[number]:
                    self.left[:, node] = left
                    touched += self._add(node, number, milli)
                    left = self.left[:, node].tolist()
                else:
                    touched += left[number] == MILLI
                    left[number] -= milli or MILLI
        self.left[:, node] = left
        return (touched, 0) if milli else (0, gpus * MILLI * ranks)

    def give(self, key: bytes, node: int, gpus: int, milli: int) -> Deltas:
        """Undo the last `take` of a rank with this request on this node."""
        numbers = self.given[key, node].pop()
        return self._book(node, numbers, gpus, milli, -1)

    def _choose(self, node: int, left: list[int], gpus: int, milli: int, *, is_open: bool) -> Numbers:
        """Return the devices that the next rank gets. If no device fits a share, return the one with the most free."""
        if milli:
            fitting = [
                (free, number) for number, free in enumerate(left) if free >= milli and (is_open or free < MILLI)
            ]
            return (min(fitting)[1],) if fitting else self._most_free(node, left, is_open=is_open)
        free = [number for number, amount in enumerate(left) if amount == MILLI]
        return tuple(free[:gpus]) if is_open and len(free) >= gpus else ()

    def most_left(self, at: At) -> Ints:
        """Return the largest free capacity of one usable device, per node of `at`."""
        return self._usable(at).max(axis=0, initial=0)

    def free(self, node: int, milli: int) -> None:
        """Pretend that the device with the most free capacity has `milli` more."""
        left: list[int] = self.left[:, node].tolist()
        for number in self._most_free(node, left, is_open=self.unknown[node] == 0):
            self._add(node, number, -milli)

    def beyond(self, before: "Devices") -> dict[int, int]:
        """Return {node: thousandths by which its devices are over their whole now, and were not `before`}."""
        result: dict[int, int] = {}
        for (number, node), amount in sorted(self.over.items()):
            more = amount - before.over.get((number, node), 0)
            if more > 0:
                result[node] = result.get(node, 0) + more
        return result

    def _most_free(self, node: int, left: list[int], *, is_open: bool) -> Numbers:
        usable = [
            (-free, number) for number, free in enumerate(left[: int(self.count[node])]) if is_open or free < MILLI
        ]
        return (min(usable)[1],) if usable else ()

    def charge(self, node: int, gpus: int, milli: int, numbers: Numbers, times: int) -> Deltas:
        """Book usage that exists already (-1 removes it); devices that `numbers` does not name are unknown."""
        known = frozenset(number for number in numbers if 0 <= number < self.count[node])
        if milli and len(known) == 1:
            touched = self._add(node, next(iter(known)), milli * times)
            return touched, milli * times
        if not milli and len(known) == gpus:
            return sum(self._add(node, number, MILLI * times) for number in sorted(known)), gpus * MILLI * times
        gpus = max(gpus, 1)
        self.unknown[node] += gpus * times
        self.unknowns += gpus * times
        return gpus * times, gpus * MILLI * times

    def _book(self, node: int, numbers: Numbers, gpus: int, milli: int, times: int) -> Deltas:
        if milli:
            return sum(self._add(node, number, milli * times) for number in numbers), 0
        for number in numbers:
            self._add(node, number, MILLI * times)
        return 0, gpus * MILLI * times

    def _add(self, node: int, number: int, milli: int) -> int:
        """Take `milli` of a device (negative gives back). Return 1 if it becomes used, -1 if it becomes unused."""
        before = MILLI - int(self.left[number, node]) + self.over.get((number, node), 0)
        after = before + milli
        self.left[number, node] = max(MILLI - after, 0)
        if after > MILLI:
            self.over[number, node] = after - MILLI
        else:
            self.over.pop((number, node), None)
        return int(after > 0) - int(before > 0)

    def _usable(self, at: At) -> Ints:
        left = self.left[:, at]
        if not self.unknowns:
            return left
        return np.where((left == MILLI) & self.is_blocked(at), 0, left)
