"""Checks whether the allocations that already run at time 0 are possible.

Owns the errors about `placed`: ranks, nodes and devices that do not exist, and more than the capacity of a node.
Filters are not applied: a running rank may be on a node where it would not be placed today.
"""

from slipway.errors import InvalidError
from slipway.model.facts import NodeFact
from slipway.model.resources import GPU, GPU_MILLI, GPU_SHARES, MILLI
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.scenario_format import AllocationPart, PlacedPart, RankPart, Scenario


class _Node:
    """The free resources of a node."""

    def __init__(self, fact: NodeFact) -> None:
        self.left = dict(fact.allocatable.amounts)
        self.devices = [MILLI] * fact.allocatable.get(GPU)
        self.ports: set[int] = set()


def check_placed(scenario: Scenario) -> None:
    """Check that all ranks can have their places at the same time.

    Raises:
        InvalidError: the first place that is impossible.
    """
    if not any(item.placed for item in scenario.allocations):
        return
    nodes = {fact.name: _Node(fact) for fact in scenario_facts.nodes(scenario)}
    open_: list[tuple[str, PlacedPart, RankPart]] = []
    for index, item in enumerate(scenario.allocations):
        _check_ranks(f"allocations[{index}]", item, nodes)
        for number, placed in enumerate(item.placed):
            path, rank = f"allocations[{index}].placed[{number}]", role_of(item, placed.rank)
            _take(path, placed, rank, nodes[placed.node], has_minimum=item.min_available is not None)
            open_.append((path, placed, rank))
    # Ranks with named devices are first; the others get the remaining devices, the larger parts first.
    open_.sort(key=lambda each: (each[1].device is None, -each[2].gpu_milli))
    for path, placed, rank in open_:
        _take_devices(path, placed, rank, nodes[placed.node])


def role_of(item: AllocationPart, number: int) -> RankPart:
    """Return the role of an existing rank."""
    for rank in item.ranks[:-1]:
        if number < rank.count:
            return rank
        number -= rank.count
    return item.ranks[-1]


def _check_ranks(path: str, item: AllocationPart, nodes: dict[str, _Node]) -> None:
    ranks = sum(rank.count for rank in item.ranks)
    seen: set[int] = set()
    for number, placed in enumerate(item.placed):
        where = f"{path}.placed[{number}]"
        if placed.rank >= ranks:
            raise InvalidError(f"{where}.rank: the allocation has {ranks} ranks, numbered from 0")
        if placed.rank in seen:
            raise InvalidError(f"{where}.rank: rank {placed.rank} is placed twice")
        if placed.node not in nodes:
            raise InvalidError(f"{where}.node: there is no node {placed.node}")
        seen.add(placed.rank)


def _take(path: str, placed: PlacedPart, rank: RankPart, node: _Node, *, has_minimum: bool) -> None:
    role = scenario_facts.role(rank, has_minimum)
    for name, amount in sorted(requests_of(role).amounts.items()):
        if name in (GPU_MILLI, GPU_SHARES):
            continue
        node.left[name] = node.left.get(name, 0) - amount
        if node.left[name] < 0:
            raise InvalidError(f"{path}.node: {placed.node} has less {name} than the placed ranks use")
    for port in role.host_ports:
        if port in node.ports:
            raise InvalidError(f"{path}.node: host port {port} of {placed.node} is used twice")
        node.ports.add(port)


def _take_devices(path: str, placed: PlacedPart, rank: RankPart, node: _Node) -> None:
    gpus, milli = requests_of(scenario_facts.role(rank, has_gang_minimum=False)).get(GPU), rank.gpu_milli
    asked, part = (1, milli) if milli else (gpus, MILLI)
    if placed.device is not None:
        named = [placed.device] if isinstance(placed.device, int) else list(placed.device)
        if len(set(named)) != len(named) or len(named) != asked:
            raise InvalidError(f"{path}.device: the rank uses {asked} devices; name each of them once, or none")
        for number in named:
            if not 0 <= number < len(node.devices):
                have = len(node.devices)
                raise InvalidError(f"{path}.device: node {placed.node} has {have} GPUs, numbered from 0")
    else:
        fitting = sorted((left, number) for number, left in enumerate(node.devices) if left >= part)
        named = [number for _, number in fitting][:asked]
        if len(named) < asked:
            raise InvalidError(f"{path}.node: {placed.node} has fewer GPUs free than the placed ranks use")
    for number in named:
        node.devices[number] -= part
        if node.devices[number] < 0:
            raise InvalidError(f"{path}.device: device {number} of {placed.node} is used more than once")
