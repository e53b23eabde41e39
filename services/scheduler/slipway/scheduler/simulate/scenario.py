"""The scenario file: nodes, queues, jobs and allocations in virtual time, decoded strictly.

Owns the format and every complaint about it: an unknown field, a bad quantity, a name that names nothing. Each
complaint carries the path of the offending field. Knows nothing of planning. The format is docs/scenarios.md.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import yaml
from msgspec import Meta

from slipway.errors import InvalidError
from slipway.model.quantity import QuantityValue, parse_quantity
from slipway.model.resources import CPU, GPU, scale_of

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0)]
Quantities = dict[str, QuantityValue]
GPUS = "gpus"
"""In quotas, short for whole GPUs."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every part of the file."""


class TaintPart(_Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class TolerationPart(_Part, frozen=True, kw_only=True):
    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class NodePart(_Part, frozen=True, kw_only=True):
    """`count: k` makes name-0 .. name-(k-1); a count of 1 keeps the plain name."""

    name: str
    count: Count = 1
    cpu: QuantityValue = 0
    memory: QuantityValue = 0
    gpus: Count = 0
    pods: Count = 110
    resources: Quantities = {}
    labels: dict[str, str] = {}
    taints: list[TaintPart] = []
    unschedulable: bool = False
    ready: bool = True


class PoolPart(_Part, frozen=True, kw_only=True):
    scores: dict[str, Annotated[int, Meta(ge=0, le=1_000_000)]] = {}
    sampling: bool = False
    backfill: bool = True
    topology: list[str] = []


class PreemptionPart(_Part, frozen=True, kw_only=True):
    within_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqual"] = "Never"
    reclaim: Literal["Never", "LowerPriority", "Any"] = "Never"


class QueuePart(_Part, frozen=True, kw_only=True):
    name: str
    parent: str = ""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    priority: int = 0
    nominal: Quantities | None = None
    borrowing_limit: Quantities | None = None
    lending_limit: Quantities | None = None
    limit: Quantities | None = None
    ordering: Literal["StrictFIFO", "BestEffortFIFO", "Backfill"] = "BestEffortFIFO"
    preemption: PreemptionPart = PreemptionPart()


class JobPart(_Part, frozen=True, kw_only=True):
    name: str
    max_slots: Count | None = None
    priority: int | None = None
    weight: Annotated[int, Meta(ge=1)] = 1
    position: str = ""


class TopologyPart(_Part, frozen=True, kw_only=True):
    key: str
    mode: Literal["required", "preferred"] = "required"


class RankPart(_Part, frozen=True, kw_only=True):
    """A role: `count` ranks that are alike."""

    name: str = "worker"
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    min_available: Count | None = None
    cpu: QuantityValue = 0
    memory: QuantityValue = 0
    gpus: Count = 0
    gpu_milli: Annotated[int, Meta(ge=0, le=1000)] = 0
    resources: Quantities = {}
    node_selector: dict[str, str] = {}
    tolerations: list[TolerationPart] = []
    affinity: dict[str, Any] = {}
    topology: TopologyPart | None = None
    host_ports: list[Annotated[int, Meta(ge=1, le=65535)]] = []


class PlacedPart(_Part, frozen=True, kw_only=True):
    """A rank that runs already at time 0, since `since`."""

    rank: Count
    node: str
    since: float = 0.0
    device: int | list[int] | None = None


class AllocationPart(_Part, frozen=True, kw_only=True):
    name: str
    queue: str = "default"
    job: str = ""
    priority: int = 0
    submit: float = 0.0
    duration: Seconds | None = None
    max_runtime: Seconds | None = None
    preemptible: bool = False
    min_available: Count | None = None
    hold: bool = False
    position: str = ""
    avoid_nodes: list[str] = []
    ranks: Annotated[list[RankPart], Meta(min_length=1)]
    placed: list[PlacedPart] = []


class Scenario(_Part, frozen=True, kw_only=True):
    nodes: list[NodePart]
    pool: PoolPart = PoolPart()
    queues: list[QueuePart] = []
    jobs: list[JobPart] = []
    allocations: list[AllocationPart] = []
    until: float | None = None


def load(path: Path) -> Scenario:
    """The scenario in `path` (YAML or JSON).

    Raises:
        InvalidError: what is wrong and at which field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise InvalidError(f"{path} can not be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidError(f"{path} can not be read as text in UTF-8; save it so") from exc
    try:
        return decode(text)
    except InvalidError as exc:
        raise InvalidError(f"{path}: {exc}", fields=exc.fields) from exc


def decode(text: str) -> Scenario:
    """The scenario in `text`.

    Raises:
        InvalidError: what is wrong and at which field.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        raise InvalidError(f"neither YAML nor JSON: {_marked(exc)}") from exc
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidError(f"neither YAML nor JSON: {' '.join(str(exc).split())}") from exc
    try:
        scenario = msgspec.convert(document, Scenario)
    except msgspec.ValidationError as exc:
        raise InvalidError(_located(str(exc))) from exc
    _check_names(scenario)
    _check_quantities(scenario)
    _check_places(scenario)
    return scenario


def node_names(node: NodePart) -> list[str]:
    """The names that a node entry stands for."""
    return [node.name] if node.count == 1 else [f"{node.name}-{index}" for index in range(node.count)]


def amount(name: str, value: QuantityValue) -> tuple[str, int]:
    """(resource, base units) of one entry of a quota or resource map."""
    resource = GPU if name == GPUS else name
    return resource, parse_quantity(value, scale=scale_of(resource))


def _marked(error: yaml.MarkedYAMLError) -> str:
    mark, problem = error.problem_mark or error.context_mark, error.problem or "it can not be read"
    if "\\t" in problem:
        problem = "a tab stands where only blanks may"
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem


def _located(message: str) -> str:
    """msgspec's `... - at `$.a[0]`` as `a[0]: ...`; an unknown field becomes part of the path."""
    text, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    unknown = "Object contains unknown field `"
    if text.startswith(unknown):
        field = text.removeprefix(unknown).rstrip("`")
        return f"{path}.{field}: unknown field".lstrip(".")
    missing = "Object missing required field `"
    if text.startswith(missing):
        field = text.removeprefix(missing).rstrip("`")
        return f"{path}.{field}: required".lstrip(".")
    return f"{path or 'the file'}: {text}"


def _check_names(scenario: Scenario) -> None:
    nodes = [(f"nodes[{index}].name", name) for index, node in enumerate(scenario.nodes) for name in node_names(node)]
    _unique(nodes)
    _unique((f"queues[{index}].name", queue.name) for index, queue in enumerate(scenario.queues))
    _unique((f"jobs[{index}].name", job.name) for index, job in enumerate(scenario.jobs))
    _unique((f"allocations[{index}].name", item.name) for index, item in enumerate(scenario.allocations))
    queues = {queue.name for queue in scenario.queues} | {"", "root"}
    for index, queue in enumerate(scenario.queues):
        if queue.parent not in queues:
            raise InvalidError(f"queues[{index}].parent: there is no queue {queue.parent}")
    jobs = {job.name for job in scenario.jobs} | {""}
    for index, item in enumerate(scenario.allocations):
        if item.job not in jobs:
            raise InvalidError(f"allocations[{index}].job: there is no job {item.job}")


def _unique(names: Iterable[tuple[str, str]]) -> None:
    seen: set[str] = set()
    for path, name in names:
        if name in seen:
            raise InvalidError(f"{path}: {name} is there twice")
        seen.add(name)


def _check_quantities(scenario: Scenario) -> None:
    for index, node in enumerate(scenario.nodes):
        _check_amounts(f"nodes[{index}]", node.cpu, node.memory, node.resources)
    for index, queue in enumerate(scenario.queues):
        for field in ("nominal", "borrowing_limit", "lending_limit", "limit"):
            _check_map(f"queues[{index}].{_camel(field)}", cast("Quantities | None", getattr(queue, field)) or {})
    for index, item in enumerate(scenario.allocations):
        for number, rank in enumerate(item.ranks):
            _check_amounts(f"allocations[{index}].ranks[{number}]", rank.cpu, rank.memory, rank.resources)


def _check_amounts(path: str, cpu: QuantityValue, memory: QuantityValue, resources: Quantities) -> None:
    _check_map(path, {CPU: cpu, "memory": memory})
    _check_map(f"{path}.resources", resources)


def _check_map(path: str, quantities: Mapping[str, QuantityValue]) -> None:
    for name, value in quantities.items():
        try:
            amount(name, value)
        except ValueError as exc:
            raise InvalidError(f"{path}.{name}: {exc}") from exc


def _check_places(scenario: Scenario) -> None:
    nodes = {name for node in scenario.nodes for name in node_names(node)}
    for index, item in enumerate(scenario.allocations):
        ranks = sum(rank.count for rank in item.ranks)
        seen: set[int] = set()
        for number, placed in enumerate(item.placed):
            path = f"allocations[{index}].placed[{number}]"
            if placed.rank >= ranks:
                raise InvalidError(f"{path}.rank: there are {ranks} ranks, numbered from 0")
            if placed.rank in seen:
                raise InvalidError(f"{path}.rank: rank {placed.rank} is placed twice")
            if placed.node not in nodes:
                raise InvalidError(f"{path}.node: there is no node {placed.node}")
            seen.add(placed.rank)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
