"""The request of one rank, compiled against a node table: the unit that filters, scores and placement work on.

Ranks with equal requests share one RankRequest (equal `key`), and so share one feasibility row. Pure data.

`targets` returns how many ranks of each role the smallest gang that may start has; `smallest_demand` returns what they
use.
"""

from collections.abc import Hashable
from typing import Any

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, RoleFact, Toleration, TopologyFact
from slipway.model.resources import (
    CPU,
    GPU,
    GPU_MILLI,
    GPU_SHARES,
    MEMORY,
    PODS,
    Resources,
    counted_gpus,
    gpus_of,
    total,
)
from slipway.scheduler.plan.state.affinity_terms import Spread, spreads_of
from slipway.scheduler.plan.state.extender_results import ExtenderResults
from slipway.scheduler.plan.state.nodes import Bools, Ints, NodeTable
from slipway.scheduler.plan.state.pod_index import PodClass, pod_class_of_role

SCORED_DEFAULTS = {CPU: 100, MEMORY: 200 * 1024 * 1024}
"""What scoring assumes for a rank without a request (milli-cpu, bytes). Source: kube-scheduler's util."""


class RankRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One rank's needs. `missing` are the requested resources that no node has."""

    key: bytes
    requests: Resources
    """with `pods: 1`"""
    steps: tuple[tuple[int, int], ...]
    """(row, amount) of each requested resource that some node has"""
    missing: tuple[str, ...]
    step_rows: Ints
    step_amounts: Ints
    """`steps` as columns: shapes (n,) and (n, 1)"""
    scored_steps: tuple[tuple[int, int], ...]
    """`scored_rows` and `scored_amounts` as (row, amount)"""
    scored_rows: Ints
    """the resources that scores read: cpu, memory and the requested extended resources"""
    scored_amounts: Ints
    """per scored row, shape (n, 1); a missing request is replaced by its default"""
    plain_amounts: Ints
    """per scored row, shape (n, 1), as requested"""
    is_everywhere: bool
    """whether every node has some of each scored resource"""
    node_selector: dict[str, str]
    affinity: dict[str, Any]
    tolerations: tuple[Toleration, ...]
    host_ports: tuple[int, ...]
    topology: TopologyFact | None
    role: RoleFact
    """one of the roles with this request; for users of labels, all of them have the same labels"""
    pod_class: PodClass
    """the class of its pods for affinity and spreading"""
    spread: tuple[Spread, ...]
    memo: dict[Hashable, Bools] = msgspec.field(default_factory=dict[Hashable, Bools])
    """{question: nodes} of answers that do not change in a tick, so that they are computed once"""
    avoid: tuple[str, ...]
    gpus: int = 0
    """whole GPUs, requested under `GPU`"""
    gpu_milli: int = 0
    """thousandths of one GPU"""
    extender_results: ExtenderResults | None = None
    """what extenders answered about this request"""


def quota_of(role: RoleFact) -> Resources:
    """Return what one rank of `role` uses, as quota counts it: its GPUs also under the name of its flavor."""
    requests = requests_of(role)
    if not role.flavor:
        return requests
    units = counted_gpus(requests.amounts)
    return Resources({**requests.amounts, gpus_of(role.flavor): units}) if units else requests


def requests_of(role: RoleFact) -> Resources:
    """Return what one rank of `role` uses, as nodes count it. A share of a GPU is not a whole GPU."""
    amounts = dict(role.requests.amounts)
    milli = role.gpu_milli or amounts.get(GPU_MILLI, 0)
    if milli:
        amounts.pop(GPU, None)
        amounts |= {GPU_MILLI: milli, GPU_SHARES: 1}
    amounts[PODS] = 1
    return Resources.of(amounts)


def request_key(role: RoleFact, avoid: tuple[str, ...] = ()) -> bytes:
    """Return a key that is equal for ranks that may share a feasibility row."""
    parts = (
        role.requests.amounts,
        role.node_selector,
        role.affinity,
        role.tolerations,
        role.host_ports,
        role.topology,
        role.gpu_milli,
        avoid,
        role.node_name,
        role.spread,
        role.scored.amounts,
        (role.namespace, role.claims) if role.claims else (),
        role.closed,
    )
    return msgspec.json.encode(parts, order="sorted")


def label_key(role: RoleFact) -> bytes:
    """Return a key of the role's namespace and labels, by which other pods' terms select its pods."""
    return msgspec.json.encode((role.namespace, role.labels), order="sorted")


def image_key(role: RoleFact) -> bytes:
    """Return a key of the images that a node may have already."""
    return msgspec.json.encode(role.images)


def compile_request(
    role: RoleFact, table: NodeTable, *, tolerations: tuple[Toleration, ...] = (), avoid: tuple[str, ...] = ()
) -> RankRequest:
    """Compile `role`; `tolerations` are the pool's, `avoid` are the nodes to exclude."""
    requests = requests_of(role)
    names = sorted(requests.amounts.keys() - {GPU_SHARES})
    known = [name for name in names if name in table.row]
    scored = [CPU, MEMORY, *(name for name in known if name not in (CPU, MEMORY, PODS))]
    counted = role.scored.amounts
    scored_amounts = [counted.get(name) or requests.get(name) or SCORED_DEFAULTS.get(name, 0) for name in scored]
    return RankRequest(
        key=request_key(role, avoid),
        requests=requests,
        steps=tuple((table.row[name], requests.get(name)) for name in known),
        missing=tuple(name for name in names if name not in table.row),
        step_rows=np.array([table.row[name] for name in known], dtype=np.int64),
        step_amounts=_column([requests.get(name) for name in known]),
        scored_steps=tuple(zip((table.row[name] for name in scored), scored_amounts, strict=True)),
        scored_rows=np.array([table.row[name] for name in scored], dtype=np.int64),
        scored_amounts=_column(scored_amounts),
        plain_amounts=_column([requests.get(name) for name in scored]),
        is_everywhere=all(table.is_everywhere[table.row[name]] for name in scored),
        node_selector=role.node_selector,
        affinity=role.affinity,
        tolerations=(*role.tolerations, *tolerations),
        host_ports=role.host_ports,
        topology=role.topology,
        role=role,
        pod_class=pod_class_of_role(role),
        spread=spreads_of(role.spread, role.labels) if role.spread else (),
        avoid=avoid,
        gpus=requests.get(GPU),
        gpu_milli=requests.get(GPU_MILLI),
    )


def _column(amounts: list[int]) -> Ints:
    return np.array(amounts, dtype=np.int64).reshape(-1, 1)


def targets(allocation: AllocationFact) -> list[int]:
    """Return the ranks per role of the smallest gang that may start.

    Each role gets its minimum. Ranks that the gang's own minimum still requires are added so that each role gets the
    same part of its range from minimum to count.
    """
    if len(allocation.roles) == 1:
        only = allocation.roles[0]
        return [max(only.minimum, min(allocation.minimum, only.count))]
    counts = [role.minimum for role in allocation.roles]
    missing = min(allocation.minimum, allocation.rank_count) - sum(counts)
    while missing > 0:
        chosen = next_role(allocation.roles, counts)
        if chosen is None:
            break
        counts[chosen] += 1
        missing -= 1
    return counts


def next_role(roles: tuple[RoleFact, ...], counts: list[int], skip: frozenset[int] = frozenset()) -> int | None:
    """Return the role with the smallest part of its range so far, the first among equals; None when all are full."""
    best: int | None = None
    for index, role in enumerate(roles):
        if counts[index] >= role.count or index in skip:
            continue
        if best is None or _is_behind(role, counts[index], roles[best], counts[best]):
            best = index
    return best


def _is_behind(role: RoleFact, count: int, other: RoleFact, other_count: int) -> bool:
    part = (count - role.minimum) * (other.count - other.minimum)
    return part < (other_count - other.minimum) * (role.count - role.minimum)


def smallest_demand(allocation: AllocationFact) -> Resources:
    """Return what the smallest gang that may start uses."""
    counts = targets(allocation)
    return total(quota_of(role) * count for role, count in zip(allocation.roles, counts, strict=True) if count)
