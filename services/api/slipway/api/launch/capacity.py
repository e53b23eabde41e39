"""Checks at the launch whether a gang can ever fit its pool: a warning long before the scheduler's exact explanation.

Pure. The check compares with whole nodes and ignores their use, so that it never warns about a problem that waiting
solves.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from slipway.api.cluster.seen_nodes import SeenNode
from slipway.crd.resolve import role_requests, template_of
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.model.resources import GPU_MILLI, Resources, total


def nodes_of(pool: ResourcePool, nodes: Iterable[SeenNode]) -> list[SeenNode]:
    """Return the nodes that the pool selects."""
    wanted = pool.spec.node_selector.items()
    return [node for node in nodes if wanted <= node.metadata.labels.items()]


def allocatable_of(node: SeenNode) -> Resources:
    """Return the allocatable resources of a node; empty when its quantities cannot be parsed."""
    try:
        return Resources.parse(node.status.allocatable)
    except ValueError:
        return Resources()


class PoolCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The allocatable resources of a pool: of each node, and in total. It is computed once for many launches."""

    each: tuple[Resources, ...]
    whole: Resources


def offers_of(pool: ResourcePool, nodes: Iterable[SeenNode]) -> PoolCapacity:
    """Return the allocatable resources of a pool's nodes."""
    each = tuple(allocatable_of(node) for node in nodes_of(pool, nodes))
    return PoolCapacity(each=each, whole=total(each))


def capacity_warnings(allocation: Allocation, pool: ResourcePool, offered: PoolCapacity) -> tuple[str, ...]:
    """Return warnings for the parts of a complete allocation that cannot fit the pool's present nodes."""
    offers = offered.each
    if not offers:
        return (f"pool {pool.metadata.name} has no nodes: the allocation waits until it has some",)
    spec = allocation.spec
    warnings: list[str] = []
    demand: list[Resources] = []
    for role in spec.ranks:
        asks = _of_nodes(role_requests(role, template_of(spec, role)))
        demand.append(asks * (role.min_available or 0))
        if not any(asks.fits(offer) for offer in offers):
            short = _shortest(asks, offers)
            warnings.append(
                f"no node of pool {pool.metadata.name} can hold a rank of role {role.name}: it asks for "
                f"{_spelled(asks, short)} {short} and the largest node has {_largest(offers, short)}; it waits until "
                "there is such a node"
            )
    if not warnings:
        warnings = _whole_pool(pool, total(demand), offered.whole)
    return tuple(warnings)


def requests_of(allocation: Allocation) -> list[dict[str, Any]]:
    """Return the requests per rank of each role of a complete allocation, as Kubernetes counts them."""
    spec = allocation.spec
    return [
        {
            "role": role.name,
            "count": role.count,
            "requests": role_requests(role, template_of(spec, role)).quantities(),
        }
        for role in spec.ranks
    ]


def _of_nodes(asks: Resources) -> Resources:
    """Return the requests without fractions of GPUs: nodes offer whole GPUs, which the scheduler divides."""
    return Resources.of({name: amount for name, amount in asks.amounts.items() if name != GPU_MILLI})


def _whole_pool(pool: ResourcePool, demand: Resources, offer: Resources) -> list[str]:
    return [
        f"the gang needs {_spelled(demand, name)} {name} at once and the whole pool {pool.metadata.name} has "
        f"{_spelled(offer, name)}; it waits until the pool grows"
        for name in sorted(demand)
        if demand.get(name) > offer.get(name)
    ]


def _shortest(asks: Resources, offers: Sequence[Resources]) -> str:
    """Return a resource that no node has enough of, else the first by name (then only the combination fits nowhere)."""
    names = sorted(asks)
    return next((name for name in names if all(asks.get(name) > offer.get(name) for offer in offers)), names[0])


def _largest(offers: Sequence[Resources], name: str) -> str:
    return _spelled(max(offers, key=lambda offer: offer.get(name)), name)


def _spelled(resources: Resources, name: str) -> str:
    return resources.quantities().get(name, "0")
