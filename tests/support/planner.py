"""Builders of facts and snapshots for tests of the planner."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway.model.facts import AllocationFact, JobFact, NodeFact, PodFact, PoolFact, QueueFact, QuotaFact, RoleFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import GPU, QuantityValue, Resources
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.pool_state import build
from slipway.scheduler.plan.state.snapshot import OpenDecision, PoolSnapshot

NAMESPACE = "default"
WORKSPACES = frozenset({NAMESPACE})


def amounts(cpu: QuantityValue = 0, memory: QuantityValue = 0, gpus: int = 0, **more: QuantityValue) -> Resources:
    """Resources in short: `amounts(cpu="500m", gpus=1)`."""
    return Resources.parse({"cpu": cpu, "memory": memory, GPU: gpus, **more})


def a_node(
    name: str, *, cpu: QuantityValue = 8, memory: QuantityValue = "32Gi", gpus: int = 0, **more: Any
) -> NodeFact:
    """A ready node with room for 110 pods."""
    pods = more.pop("pods", 110)
    return NodeFact(name=name, uid=name, allocatable=amounts(cpu, memory, gpus, pods=pods), **more)


def nodes(count: int, **more: Any) -> list[NodeFact]:
    """The equal nodes n0 .. n(count-1)."""
    return [a_node(f"n{index}", **more) for index in range(count)]


def a_role(count: int = 1, minimum: int | None = None, **more: Any) -> RoleFact:
    """A role of `count` ranks of one cpu each; by default all are needed."""
    asked = amounts(more.pop("cpu", 1), more.pop("memory", 0), more.pop("gpus", 0), **more.pop("resources", {}))
    name = more.pop("name", "worker")
    return RoleFact(name=name, count=count, minimum=count if minimum is None else minimum, requests=asked, **more)


def an_allocation(name: str, *roles: RoleFact, **more: Any) -> AllocationFact:
    """A pending allocation; one rank of one cpu if no role is given."""
    roles = roles or (a_role(),)
    minimum = more.pop("minimum", max(1, sum(role.minimum for role in roles)))
    uid = more.pop("uid", f"uid-{name}")
    return AllocationFact(
        namespace=NAMESPACE, name=name, uid=uid, version=1, roles=roles, minimum=minimum, finalized=True, **more
    )


def running(allocation: AllocationFact, placements: Mapping[int, str]) -> AllocationFact:
    """The allocation, admitted to `placements` and running."""
    return msgspec.structs.replace(allocation, phase=Phase.RUNNING, placements=dict(placements))


def admitted(snapshot_of: list[AllocationFact], decided: Plan) -> list[AllocationFact]:
    """The allocations after the plan `decided` was carried out."""
    placements = {admit.uid: admit.placements for admit in decided.admits}
    return [running(fact, placements[fact.uid]) if fact.uid in placements else fact for fact in snapshot_of]


def a_snapshot(
    node_facts: Iterable[NodeFact],
    allocations: Iterable[AllocationFact] = (),
    *,
    pods: Iterable[PodFact] = (),
    queues: Iterable[QueueFact] = (QueueFact(name="default"),),
    jobs: Iterable[JobFact] = (),
    pool: PoolFact | None = None,
    decisions: Iterable[OpenDecision] = (),
    quotas: Iterable[QuotaFact] = (),
) -> PoolSnapshot:
    """A snapshot of pool `default`, whose one namespace is a workspace."""
    return build(
        node_facts,
        pods,
        allocations,
        queues=queues,
        jobs=jobs,
        pool=pool or PoolFact(name="default"),
        open_decisions=decisions,
        workspaces=WORKSPACES,
        quotas=quotas,
    )


def planned(snapshot: PoolSnapshot, now: float = 0.0, **policy: Any) -> Plan:
    """The plan under the pool's policy."""
    return plan(snapshot, msgspec.structs.replace(policy_of(snapshot.pool), **policy), now, 0)


def places(decided: Plan) -> dict[str, list[str]]:
    """{name of an admitted allocation: nodes of its ranks}."""
    return {admit.allocation.partition("/")[2]: list(admit.placements.values()) for admit in decided.admits}


def gates(decided: Plan) -> dict[str, str]:
    """{name of a waiting allocation: its gate}."""
    return {key.partition("/")[2]: why.gate.value for key, why in decided.explanations.items()}
