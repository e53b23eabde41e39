"""What-if changes to a real pool: decoded strictly, then applied to its facts. Pure.

Every error has the path of the wrong field in the request. Nodes, queues and additional allocations have the form of a
scenario file. A change must name an existing object, except for added nodes and for queues, which are created.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.errors import InvalidError
from slipway.model.facts import (
    AllocationFact,
    JobFact,
    NodeFact,
    PodFact,
    PoolFact,
    QueueFact,
    QuotaFact,
    VolumeFact,
    WorkspaceFact,
)
from slipway.model.ids import allocation_id
from slipway.model.position import POSITION_PATTERN
from slipway.model.resources import Resources, flavor_in
from slipway.scheduler.plan.placement.policy import unknown_scores
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.scenario import checked, located
from slipway.scheduler.simulate.scenario_format import AllocationPart, Seconds, Span, seconds

NODES_MAX = 20_000
RANKS_MAX = 100_000
_RENAMED = {"nodes[": "addNodes[", "allocations[": "addAllocations["}
_QUEUE_FIELDS = {
    "preemption": ("within_queue", "reclaim"),
    "flavorFungibility": ("when_can_borrow", "when_can_preempt"),
}
_LIMITS = ("nominal", "borrowing_limit", "lending_limit", "limit")


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the changes: an unknown field is refused."""


class AllocationChange(_Strict, frozen=True, kw_only=True):
    """A change of one allocation.

    `allocation` is its id, `<workspace>/<name>`, or its name if that is unique; `id` is an alias for it. Absent fields
    are not changed.
    """

    allocation: str = ""
    id: str = ""
    priority: int | None = None
    queue: str | None = None
    hold: bool | None = None
    preemptible: bool | None = None
    position: Annotated[str, Meta(pattern=POSITION_PATTERN)] | None = None
    max_runtime: Span | None = None
    remove: bool = False


class PolicyChange(_Strict, frozen=True, kw_only=True):
    """Another policy for the pool. Absent fields are not changed."""

    scores: dict[str, Annotated[int, Meta(ge=0, le=1_000_000)]] | None = None
    args: dict[str, dict[str, Any]] | None = None
    sampling: bool | None = None
    topology: tuple[str, ...] | None = None
    aging: Span | None = None
    backfill: bool | None = None


class WhatIfChanges(_Strict, frozen=True, kw_only=True):
    """All changes of a request. Without any, the answer shows the future of the unchanged pool."""

    pool: str = scenario_facts.POOL
    add_nodes: list[dict[str, Any]] = []
    remove_nodes: list[str] = []
    cordon_nodes: list[str] = []
    uncordon_nodes: list[str] = []
    allocations: list[AllocationChange] = []
    add_allocations: list[dict[str, Any]] = []
    workspace: str = scenario_facts.NAMESPACE
    """the namespace of the added allocations"""
    queues: list[dict[str, Any]] = []
    policy: PolicyChange = PolicyChange()
    until: Annotated[Seconds, Meta(le=30 * 86_400)] = 86_400.0


class PoolStanding(msgspec.Struct, kw_only=True):
    """The present state of one pool, to which changes are applied."""

    pool: PoolFact
    nodes: dict[str, NodeFact]
    queues: dict[str, QueueFact]
    jobs: list[JobFact]
    spaces: list[WorkspaceFact]
    allocations: dict[str, AllocationFact]
    """{`<namespace>/<name>`: fact} of allocations that have not ended and are not being stopped"""
    pods: list[PodFact]
    quotas: list[QuotaFact] = []
    volumes: list[VolumeFact] = []
    added: list[AllocationPart] = []
    """hypothetical allocations; their `submit` is in seconds from now"""
    workspace: str = ""
    """the namespace of the hypothetical allocations"""

    def copy(self) -> "PoolStanding":
        """Return a copy whose nodes, queues and allocations may be changed."""
        return msgspec.structs.replace(
            self, nodes=dict(self.nodes), queues=dict(self.queues), allocations=dict(self.allocations)
        )


def decode(document: dict[str, Any]) -> WhatIfChanges:
    """Return the changes in a request.

    Raises:
        InvalidError: a field is wrong; the message has its path.
    """
    try:
        return msgspec.convert(document, WhatIfChanges)
    except msgspec.ValidationError as exc:
        raise InvalidError(located(str(exc))) from exc


def apply(standing: PoolStanding, changes: WhatIfChanges) -> PoolStanding:
    """Return the pool after the changes.

    Raises:
        InvalidError: a change names an unknown object, or has an invalid value; the message has the path.
    """
    changed = standing.copy()
    for index, raw in enumerate(changes.queues):
        _change_queue(changed, raw, f"queues[{index}]")
    _add(changed, changes)
    _change_nodes(changed, changes)
    for index, change in enumerate(changes.allocations):
        _change_allocation(changed, change, f"allocations[{index}]")
    _change_policy(changed, changes.policy)
    return changed


def _add(standing: PoolStanding, changes: WhatIfChanges) -> None:
    """Add nodes and allocations, after the checks of a scenario file."""
    # Jobs and flavors of the pool are passed to these checks, because the added allocations may refer to them.
    names = {str(part.get("job") or "") for part in changes.add_allocations}
    jobs = [
        {"name": name}
        for name in sorted({job.name for job in standing.jobs if job.namespace == changes.workspace} & names)
    ]
    try:
        scenario = checked(
            {
                "nodes": changes.add_nodes,
                "allocations": changes.add_allocations,
                "jobs": jobs,
                "pool": _flavors_of(standing),
            }
        )
    except InvalidError as exc:
        text = str(exc)
        for before, after in _RENAMED.items():
            text = after + text.removeprefix(before) if text.startswith(before) else text
        raise InvalidError(text) from exc
    if sum(part.count for part in scenario.nodes) > NODES_MAX:
        raise InvalidError(f"addNodes: at most {NODES_MAX} nodes")
    if sum(rank.count for part in scenario.allocations for rank in part.ranks) > RANKS_MAX:
        raise InvalidError(f"addAllocations: at most {RANKS_MAX} ranks")
    for index, part in enumerate(scenario.allocations):
        if part.placed:
            raise InvalidError(
                f"addAllocations[{index}].placed: an added allocation does not run yet; leave placed out"
            )
    for node in scenario_facts.nodes(scenario):
        if node.name in standing.nodes:
            raise InvalidError(f"addNodes: node {node.name} exists already")
        standing.nodes[node.name] = msgspec.structs.replace(node, labels={**standing.pool.node_selector, **node.labels})
    if scenario.allocations and changes.workspace not in {space.name for space in standing.spaces}:
        raise InvalidError(f"workspace: there is no namespace {changes.workspace}")
    for index, part in enumerate(scenario.allocations):
        _check_queue(standing, part.queue, f"addAllocations[{index}].queue")
        if f"{changes.workspace}/{part.name}" in standing.allocations:
            raise InvalidError(
                f"addAllocations[{index}].name: {part.name} exists already in workspace {changes.workspace}; "
                "choose another name"
            )
    standing.added, standing.workspace = list(scenario.allocations), changes.workspace


def _change_nodes(standing: PoolStanding, changes: WhatIfChanges) -> None:
    for field, names in (
        ("removeNodes", changes.remove_nodes),
        ("cordonNodes", changes.cordon_nodes),
        ("uncordonNodes", changes.uncordon_nodes),
    ):
        for index, name in enumerate(names):
            if name not in standing.nodes:
                raise InvalidError(f"{field}[{index}]: the pool has no node {name[:80]}")
            if field == "removeNodes":
                del standing.nodes[name]
            else:
                is_cordoned = field == "cordonNodes"
                standing.nodes[name] = msgspec.structs.replace(standing.nodes[name], unschedulable=is_cordoned)


def _change_allocation(standing: PoolStanding, change: AllocationChange, path: str) -> None:
    if not (change.allocation or change.id):
        raise InvalidError(f"{path}.allocation: required")
    key = _find(standing, change.allocation or change.id, path)
    if change.remove:
        del standing.allocations[key]
        return
    named = msgspec.structs.asdict(change)
    fields = {name: named[name] for name in ("priority", "queue", "hold", "preemptible", "position")}
    wanted = {name: value for name, value in fields.items() if value is not None}
    if change.queue is not None:
        _check_queue(standing, change.queue, f"{path}.queue")
    if change.max_runtime is not None:
        wanted["max_runtime"] = _span(change.max_runtime, f"{path}.maxRuntime")
    standing.allocations[key] = msgspec.structs.replace(standing.allocations[key], **wanted)


def _check_queue(standing: PoolStanding, name: str, path: str) -> None:
    if name not in standing.queues:
        raise InvalidError(f"{path}: pool {standing.pool.name} has no queue {name[:80]}")


def _find(standing: PoolStanding, text: str, path: str) -> str:
    if text in standing.allocations:
        return text
    found = [
        key
        for key, fact in standing.allocations.items()
        if text in (fact.name, allocation_id(fact.name, fact.uid), fact.uid)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidError(f"{path}.allocation: {text[:80]} is in several workspaces: {', '.join(sorted(found)[:5])}")
    raise InvalidError(f"{path}.allocation: no allocation {text[:80]} waits or runs in this pool")


def _change_queue(standing: PoolStanding, raw: dict[str, Any], path: str) -> None:
    """Change only the given fields; null removes a quota."""
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidError(f"{path}.name: required")
    parent = raw.get("parent")
    parents = [] if parent in (None, "", "root") else [{"name": parent}]
    if parents and parent not in standing.queues:
        raise InvalidError(f"{path}.parent: there is no queue {str(parent)[:80]}")
    try:
        scenario = checked({"nodes": [], "queues": [raw, *parents], "pool": _flavors_of(standing)})
    except InvalidError as exc:
        raise InvalidError(str(exc).replace("queues[0]", path, 1)) from exc
    made = scenario_facts.queues(scenario)[0]
    before = standing.queues.get(name)
    if before is None:
        standing.queues[name] = msgspec.structs.replace(made, pool=standing.pool.name)
        return
    fields = [field for key in raw for field in _QUEUE_FIELDS.get(key, (_snake(key),)) if key != "name"]
    wanted = {field: getattr(made, field) for field in fields}
    for limit in _LIMITS:
        if limit in wanted or "flavors" in wanted:
            flat = made if limit in wanted else before
            of_flavors = made if "flavors" in wanted else before
            wanted[limit] = _joined(getattr(flat, limit), getattr(of_flavors, limit))
    standing.queues[name] = msgspec.structs.replace(before, **wanted)


def _joined(flat: Resources | None, of_flavors: Resources | None) -> Resources | None:
    """Return the amounts of `flat` without a flavor, together with those of `of_flavors` for each flavor."""
    amounts = {} if flat is None else flat.amounts
    plain = {name: amount for name, amount in amounts.items() if not flavor_in(name)}
    typed = {name: amount for name, amount in (of_flavors or Resources()).amounts.items() if flavor_in(name)}
    is_stated = flat is not None and (bool(plain) or not amounts)
    return Resources({**plain, **typed}) if is_stated or typed else None


def _flavors_of(standing: PoolStanding) -> dict[str, Any]:
    """Return the pool's flavors in the form of a scenario."""
    return {"flavors": [{"name": each.name, "nodeLabels": each.node_labels} for each in standing.pool.flavors]}


def _change_policy(standing: PoolStanding, policy: PolicyChange) -> None:
    named = {name: value for name, value in msgspec.structs.asdict(policy).items() if value is not None}
    if policy.aging is not None:
        named["aging"] = _span(policy.aging, "policy.aging")
    wrong = unknown_scores(PoolFact(name="", scores=policy.scores or {}))
    if wrong:
        raise InvalidError(f"policy.scores.{wrong[0]}: there is no such score")
    standing.pool = msgspec.structs.replace(standing.pool, **named)


def _span(span: Span, path: str) -> float:
    try:
        return seconds(span)
    except ValueError as exc:
        raise InvalidError(f"{path}: {exc}") from exc


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
