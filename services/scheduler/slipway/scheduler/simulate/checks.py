"""Checks a scenario as a whole: unknown names, impossible numbers, impossible places.

These are the errors that a check of a single field cannot find. Each error has the path of the wrong field.

Of allocations that already run at time 0 (`placed`), ranks, nodes and devices that do not exist are errors, and more
than the capacity of a node. Filters are not applied: a running rank may be on a node where it would not be placed
today.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import cast

import msgspec

from slipway.errors import InvalidError
from slipway.model.facts import NodeFact
from slipway.model.position import POSITION_PATTERN
from slipway.model.resources import CPU, GPU, GPU_MILLI, GPU_SHARES, MEMORY, MILLI, PODS, QUANTITY_MAX, QuantityValue
from slipway.model.windows import fault_of
from slipway.scheduler.plan.placement.scores.args import faults
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.scenario_facts import window as lower_window
from slipway.scheduler.simulate.scenario_format import (
    AMOUNT_MAX,
    GPUS,
    ROOT_NAMES,
    AllocationPart,
    EvictionLimitPart,
    NodePart,
    Place,
    PlacedPart,
    Quantities,
    RankPart,
    Scenario,
    Span,
    amount,
    check_affinity,
    moment,
    node_names,
    seconds,
)


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
    for name, taken in sorted(requests_of(role).amounts.items()):
        if name in (GPU_MILLI, GPU_SHARES):
            continue
        node.left[name] = node.left.get(name, 0) - taken
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


NAME_MAX = 253
FLAVOR_PATTERN = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
LIMITS = ("nominal", "borrowing_limit", "lending_limit", "limit")
NODES_MAX = 100_000
RANKS_MAX = 500_000
GPUS_MAX = 1024
"""the most GPUs of one node"""
PRIORITY_MAX = 2**31 - 1
TIME_MAX = 1e10
"""in seconds: three hundred years"""


def check(scenario: Scenario) -> None:
    """Run all checks.

    Raises:
        InvalidError: the first error.
    """
    _check_sizes(scenario)
    _check_names(scenario)
    _check_queues(scenario)
    _check_flavors(scenario)
    _check_windows(scenario)
    _check_quantities(scenario)
    _check_times(scenario)
    _check_neighbours(scenario)
    check_placed(scenario)


def located(message: str) -> tuple[str, str]:
    """Return (path, error) of a message of msgspec; an unknown or missing field becomes part of the path."""
    text, _, where = message.partition(" - at `")
    if where.startswith("key` in `"):
        where, text = where.removeprefix("key` in `"), f"{text} as a key"
    path = where.rstrip("`").removeprefix("$").lstrip(".")
    for said, meant in (
        ("Object contains unknown field `", "unknown field"),
        ("Object missing required field `", "required"),
    ):
        if text.startswith(said):
            return f"{path}.{text.removeprefix(said).rstrip('`')}".lstrip("."), meant
    return path, text


def _check_sizes(scenario: Scenario) -> None:
    nodes = ranks = 0
    for index, node in enumerate(scenario.nodes):
        nodes += node.count
        if nodes > NODES_MAX:
            raise InvalidError(f"nodes[{index}].count: more than {NODES_MAX} nodes in all")
    for index, item in enumerate(scenario.allocations):
        for number, rank in enumerate(item.ranks):
            ranks += rank.count
            if ranks > RANKS_MAX:
                raise InvalidError(f"allocations[{index}].ranks[{number}].count: more than {RANKS_MAX} ranks in all")
            _check_minimum(f"allocations[{index}].ranks[{number}]", rank.min_available, rank.count)
        _check_priority(f"allocations[{index}].priority", item.priority)
        _check_minimum(f"allocations[{index}]", item.min_available, sum(rank.count for rank in item.ranks))
    for index, queue in enumerate(scenario.queues):
        _check_priority(f"queues[{index}].priority", queue.priority)
    for index, job in enumerate(scenario.jobs):
        _check_priority(f"jobs[{index}].priority", job.priority or 0)


def _check_minimum(path: str, minimum: int | None, ranks: int) -> None:
    if minimum is not None and minimum > ranks:
        raise InvalidError(f"{path}.minAvailable: {minimum} is above the {ranks} ranks; lower it or raise count")


def _check_priority(path: str, value: int) -> None:
    if abs(value) > PRIORITY_MAX:
        raise InvalidError(f"{path}: a priority must be between {-PRIORITY_MAX} and {PRIORITY_MAX}")


def _check_names(scenario: Scenario) -> None:
    _unique((f"nodes[{index}].name", name) for index, node in enumerate(scenario.nodes) for name in node_names(node))
    for kind in ("queues", "jobs", "volumes", "allocations"):
        _unique((f"{kind}[{index}].name", item.name) for index, item in enumerate(getattr(scenario, kind)))
    queues = {queue.name for queue in scenario.queues}
    for index, queue in enumerate(scenario.queues):
        if queue.parent not in queues and queue.parent not in ROOT_NAMES:
            raise InvalidError(f"queues[{index}].parent: there is no queue {queue.parent}")
    jobs = {job.name for job in scenario.jobs} | {""}
    for index, item in enumerate(scenario.allocations):
        if item.job not in jobs:
            raise InvalidError(f"allocations[{index}].job: there is no job {item.job}")
    _check_after(scenario)


def _check_after(scenario: Scenario) -> None:
    """Check that an allocation waits only for allocations before it in the file, so that there is no cycle."""
    before: set[str] = set()
    for index, item in enumerate(scenario.allocations):
        for number, name in enumerate(item.after):
            if name not in before:
                text = f"there is no allocation {name} before this one in the file"
                raise InvalidError(f"allocations[{index}].after[{number}]: {text}")
        before.add(item.name)


def check_references(scenario: Scenario) -> None:
    """Check that the queues and nodes that allocations name are in the file.

    Raises:
        InvalidError: the first unknown name.
    """
    queues = {queue.name for queue in scenario.queues} or {"default"}
    nodes = {name for node in scenario.nodes for name in node_names(node)}
    for index, item in enumerate(scenario.allocations):
        if item.queue not in queues:
            raise InvalidError(f"allocations[{index}].queue: there is no queue {item.queue}")
        for number, name in enumerate(item.avoid_nodes):
            if name not in nodes:
                raise InvalidError(f"allocations[{index}].avoidNodes[{number}]: there is no node {name}")


def _unique(names: Iterable[tuple[str, str]]) -> None:
    seen: set[str] = set()
    for path, name in names:
        if not name or len(name) > NAME_MAX or not name.isprintable():
            raise InvalidError(f"{path}: a name must have 1 to {NAME_MAX} printable characters")
        if name in seen:
            raise InvalidError(f"{path}: {name} is defined twice")
        seen.add(name)


def _check_queues(scenario: Scenario) -> None:
    """Check the queue tree, the durations and the positions."""
    parents = {queue.name: queue.parent for queue in scenario.queues}
    for index, queue in enumerate(scenario.queues):
        if queue.name in ROOT_NAMES:
            raise InvalidError(f"queues[{index}].name: root is the root of all queues; use another name")
        path = [queue.name]
        while parents.get(path[-1]):
            path.append(parents[path[-1]])
            if path[-1] == queue.name:
                raise InvalidError(f"queues[{index}].parent: the parents form a cycle: {' -> '.join(path)}")
            if len(path) > len(parents) + 1:
                break
        _check_span(f"queues[{index}].maxRuntime", queue.max_runtime, least=0.001)
        _check_span(f"queues[{index}].minRuntime", queue.min_runtime)
        _check_eviction_limit(f"queues[{index}].evictionLimit", queue.eviction_limit)
        for number, budget in enumerate(queue.budgets):
            _check_span(f"queues[{index}].budgets[{number}].window", budget.window, least=1.0)
    _check_span("pool.aging", scenario.pool.aging)
    _check_eviction_limit("pool.evictionLimit", scenario.pool.eviction_limit)
    _check_past(scenario)
    for index, job in enumerate(scenario.jobs):
        _check_place(f"jobs[{index}].position", job.position)
    for index, item in enumerate(scenario.allocations):
        _check_place(f"allocations[{index}].position", item.position)


def _check_past(scenario: Scenario) -> None:
    """Check the past usage, and that the pool has a fair-share rule for it."""
    rule = scenario.pool.fair_share
    if rule is not None:
        _check_span("pool.fairShare.halfLife", rule.half_life, least=1.0)
    queues = {queue.name for queue in scenario.queues} or {"default"}
    for index, part in enumerate(scenario.history):
        if rule is None:
            raise InvalidError(f"history[{index}]: past use needs a fair share; set pool.fairShare.halfLife")
        if part.queue not in queues:
            raise InvalidError(f"history[{index}].queue: there is no queue {part.queue}")
        _check_span(f"history[{index}].ago", part.ago)


def _check_eviction_limit(path: str, limit: EvictionLimitPart | None) -> None:
    if limit is not None:
        _check_span(f"{path}.per", limit.per, least=1.0)


def _check_flavors(scenario: Scenario) -> None:
    """Check the flavors of the pool, and how queues and allocations use them."""
    names = [flavor.name for flavor in scenario.pool.flavors]
    _unique((f"pool.flavors[{index}].name", name) for index, name in enumerate(names))
    for index, name in enumerate(names):
        if not re.fullmatch(FLAVOR_PATTERN, name):
            raise InvalidError(
                f"pool.flavors[{index}].name: {name} is not 1 to 63 lower case letters, digits and hyphens"
            )
    for index, queue in enumerate(scenario.queues):
        path = f"queues[{index}].flavors"
        _unique((f"{path}[{number}].name", each.name) for number, each in enumerate(queue.flavors))
        for number, each in enumerate(queue.flavors):
            _check_flavor(f"{path}[{number}].name", each.name, names)
            for field in LIMITS:
                for resource in cast("Quantities | None", getattr(each, field)) or {}:
                    if amount(resource, 0)[0] != GPU:
                        raise InvalidError(
                            f"{path}[{number}].{_camel(field)}.{resource}: only GPUs are counted by flavor; "
                            f"write gpus, and {resource} in queues[{index}].{_camel(field)}"
                        )
    for index, item in enumerate(scenario.allocations):
        if item.gpu_type and item.flavors:
            raise InvalidError(f"allocations[{index}].gpuType: is the short form of flavors; set only one of them")
        if item.gpu_type:
            _check_flavor(f"allocations[{index}].gpuType", item.gpu_type, names)
        _unique((f"allocations[{index}].flavors[{number}]", name) for number, name in enumerate(item.flavors))
        for number, name in enumerate(item.flavors):
            _check_flavor(f"allocations[{index}].flavors[{number}]", name, names)


def _check_windows(scenario: Scenario) -> None:
    """Check the windows of the pool: each one alone, and against the queues and nodes of the file."""
    _unique((f"pool.windows[{index}].name", part.name) for index, part in enumerate(scenario.pool.windows))
    queues = {queue.name for queue in scenario.queues} or {"default"}
    nodes = {name for node in scenario.nodes for name in node_names(node)}
    for index, part in enumerate(scenario.pool.windows):
        path = f"pool.windows[{index}]"
        for field, value in (("start", part.start), ("repeat.until", part.repeat.until if part.repeat else None)):
            try:
                _check_time(f"{path}.{field}", None if value is None else moment(value))
            except ValueError as exc:
                raise InvalidError(f"{path}.{field}: {exc}") from exc
        _check_span(f"{path}.duration", part.duration)
        _check_span(f"{path}.leadTime", part.lead_time)
        fault = fault_of(lower_window(part))
        if fault is not None:
            raise InvalidError(f"{path}.{fault[0].replace('/', '.')}: {fault[1]}")
        if part.maintenance == bool(part.queues):
            raise InvalidError(f"{path}: state either queues, which may use the nodes, or maintenance: true")
        if part.nodes is not None and part.gpus is not None:
            raise InvalidError(f"{path}.gpus: state either nodes or gpus")
        if part.node_names and (part.node_selector or part.nodes is not None or part.gpus is not None):
            raise InvalidError(f"{path}.nodeNames: names the nodes; leave out nodeSelector, nodes and gpus")
        for number, name in enumerate(part.queues):
            if name not in queues:
                raise InvalidError(f"{path}.queues[{number}]: there is no queue {name}")
        for number, name in enumerate(part.node_names):
            if name not in nodes:
                raise InvalidError(f"{path}.nodeNames[{number}]: there is no node {name}")


def _check_flavor(path: str, name: str, known: list[str]) -> None:
    if name not in known:
        has = f"it has {', '.join(known)}" if known else "add it to pool.flavors"
        raise InvalidError(f"{path}: the pool has no flavor {name}; {has}")


def _check_span(path: str, span: Span | None, least: float = 0.0) -> None:
    if span is None:
        return
    try:
        length = seconds(span)
    except ValueError as exc:
        raise InvalidError(f"{path}: {exc}") from exc
    if not length >= least:
        raise InvalidError(f"{path}: {span} is too short; at least {least:g}s are needed")
    _check_time(path, length)


def _check_place(path: str, place: Place) -> None:
    if isinstance(place, str) and not re.match(POSITION_PATTERN, place):
        raise InvalidError(f"{path}: {place} is not a position; write a number such as 5 or 12.5")


def _check_times(scenario: Scenario) -> None:
    for index, item in enumerate(scenario.allocations):
        path = f"allocations[{index}]"
        _check_time(f"{path}.submit", item.submit)
        _check_time(f"{path}.duration", item.duration)
        _check_time(f"{path}.maxRuntime", item.max_runtime)
        _check_time(f"{path}.checkpointEvery", item.checkpoint_every)
        for number, placed in enumerate(item.placed):
            _check_time(f"{path}.placed[{number}].since", placed.since)
            if placed.since > 0:
                raise InvalidError(f"{path}.placed[{number}].since: {placed.since:g} is after the beginning, 0")
    _check_time("until", scenario.until)
    if scenario.until is not None and scenario.until < 0:
        raise InvalidError(f"until: {scenario.until:g} is before the beginning, 0")


def _check_time(path: str, value: float | None) -> None:
    if value is None:
        return
    if not math.isfinite(value):
        raise InvalidError(f"{path}: {value} is not a number of seconds")
    if abs(value) > TIME_MAX:
        raise InvalidError(f"{path}: {value:g} s is more than three hundred years")


def _check_quantities(scenario: Scenario) -> None:
    for index, node in enumerate(scenario.nodes):
        _check_node(f"nodes[{index}]", node)
    for index, queue in enumerate(scenario.queues):
        for field in LIMITS:
            _check_map(f"queues[{index}].{_camel(field)}", cast("Quantities | None", getattr(queue, field)) or {})
            for number, each in enumerate(queue.flavors):
                path = f"queues[{index}].flavors[{number}].{_camel(field)}"
                _check_map(path, cast("Quantities | None", getattr(each, field)) or {})
    for index, item in enumerate(scenario.allocations):
        for number, rank in enumerate(item.ranks):
            _check_rank(f"allocations[{index}].ranks[{number}]", rank)


def _check_node(path: str, node: NodePart) -> None:
    _check_amounts(path, node)
    _check_map(path, {PODS: node.pods}, AMOUNT_MAX)
    _check_map(f"{path}.images", node.images)
    for name in (GPUS, GPU):
        value = node.gpus if name == GPUS else node.resources.get(GPU, 0)
        if amount(GPU, value)[1] > GPUS_MAX:
            raise InvalidError(
                f"{path}.{name if name == GPUS else f'resources.{GPU}'}: more than {GPUS_MAX} in one node"
            )


def _check_rank(path: str, rank: RankPart) -> None:
    _check_amounts(path, rank)
    if rank.gpu_milli and (amount(GPU, rank.gpus)[1] or GPU in rank.resources):
        raise InvalidError(f"{path}.gpuMilli: is a part of one GPU; it cannot be combined with whole GPUs")
    if GPU_MILLI in rank.resources and (GPU in rank.resources or rank.gpus or rank.gpu_milli):
        raise InvalidError(f"{path}.resources.{GPU_MILLI}: is a part of one GPU; it cannot be combined with other GPUs")
    if amount(GPU_MILLI, rank.resources.get(GPU_MILLI, 0))[1] > MILLI:
        raise InvalidError(f"{path}.resources.{GPU_MILLI}: is more than one GPU; ask for whole ones")


def _check_amounts(path: str, part: NodePart | RankPart) -> None:
    own: dict[str, QuantityValue] = {CPU: part.cpu, MEMORY: part.memory, GPUS: part.gpus}
    _check_map(path, own, AMOUNT_MAX)
    _check_map(f"{path}.resources", part.resources, AMOUNT_MAX)
    if isinstance(part.gpus, float | str) and not _is_whole(part.gpus):
        raise InvalidError(f"{path}.gpus: {part.gpus} is not a whole number; use gpuMilli for a part of a GPU")
    for name, value in own.items():
        for other in {name, amount(name, 0)[0]}:
            if other in part.resources and value:
                raise InvalidError(f"{path}.resources.{other}: is set twice (also as {name})")


def _is_whole(value: QuantityValue) -> bool:
    return amount(GPU, value)[1] * 1000 == amount_milli(value)


def amount_milli(value: QuantityValue) -> int:
    """Return a quantity in thousandths."""
    return amount(CPU, value)[1]


def _check_map(path: str, quantities: Mapping[str, QuantityValue], most: int = QUANTITY_MAX) -> None:
    for name, value in quantities.items():
        try:
            _, units = amount(name, value)
        except ValueError as exc:
            raise InvalidError(f"{path}.{name}: {exc}") from exc
        if units > most:
            raise InvalidError(f"{path}.{name}: {value} is larger than any machine")


def _check_neighbours(scenario: Scenario) -> None:
    volumes = {volume.name for volume in scenario.volumes}
    for index, item in enumerate(scenario.allocations):
        for number, rank in enumerate(item.ranks):
            path = f"allocations[{index}].ranks[{number}]"
            for place, name in enumerate(rank.volumes):
                if name not in volumes:
                    raise InvalidError(f"{path}.volumes[{place}]: there is no volume {name}")
            try:
                check_affinity(rank.affinity)
            except msgspec.ValidationError as exc:
                where, text = located(str(exc))
                raise InvalidError(f"{'.'.join(filter(None, (f'{path}.affinity', where)))}: {text}") from exc
    fault = next(faults(scenario.pool.args), None)
    if fault is not None:
        raise InvalidError(f"pool.args.{fault[0]}: {fault[1]}")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
