"""How the leader learns of the cluster: a consistent LIST of everything, then the deltas of the feed.

Owns the LISTs and the translation of feed entries into the tables of `cluster.py`. A LIST is the truth; the feed
only makes it quick. Must not decide anything.
"""

import asyncio
from typing import Any

from slipway.crd.v1alpha1 import ResourcePool
from slipway.kube.facts import Fact, decode_fact, fact_of, object_key
from slipway.kube.ports import Listed
from slipway.kube.resources import ALLOCATIONS, JOBS, NAMESPACES, NODES, PODS, QUEUES, RESOURCE_POOLS, Resource
from slipway.model.facts import PodFact
from slipway.model.ids import split_allocation_id
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.ports import Kube
from slipway.streams.feed import Delta
from slipway.streams.ports import FeedOp

LISTED: tuple[Resource[Any], ...] = (NAMESPACES, QUEUES, JOBS, NODES, PODS, ALLOCATIONS)


async def list_everything(kube: Kube, cluster: Cluster) -> int:
    """Bring every table up to a consistent LIST; the version of that of the allocations.

    Pools come first: an allocation's fact depends on the defaults of its pool.
    """
    pools = await kube.list(RESOURCE_POOLS)
    by_name = {pool.metadata.name: pool for pool in pools.items}
    _replace(cluster, RESOURCE_POOLS, pools, by_name)
    lists = await asyncio.gather(*(kube.list(resource) for resource in LISTED))
    for resource, listed in zip(LISTED, lists, strict=True):
        _replace(cluster, resource, listed, by_name)
    version = lists[LISTED.index(ALLOCATIONS)].resource_version
    return int(version) if version.isdigit() else 0


def take(cluster: Cluster, delta: Delta) -> bool:
    """Apply one delta of the feed; True when it changed a table.

    Raises:
        msgspec.ValidationError: the publisher speaks another version: LIST instead.
    """
    table = cluster.table(delta.kind)
    if table is None or not delta.rv.isdigit():
        return False
    match delta.op:
        case FeedOp.DELETE:
            return table.drop(delta.key, int(delta.rv))
        case FeedOp.PUT:
            fact = decode_fact(delta.kind, delta.data)
            return table.put(delta.key, fact, int(delta.rv), is_news=not _is_expected(cluster, fact))
        case FeedOp.BEAT:
            return False


def _is_expected(cluster: Cluster, fact: Fact) -> bool:
    """A rank of ours on the node that its admission names: planning counts with it already."""
    if not isinstance(fact, PodFact) or not (fact.live and fact.node and fact.allocation_uid):
        return False
    found = split_allocation_id(fact.name.rsplit("-", 2)[0])
    known = cluster.allocations.get(f"{fact.namespace}/{found[0]}") if found is not None else None
    if known is None or (known.uid, known.attempt) != (fact.allocation_uid, fact.attempt):
        return False
    return known.placements.get(fact.rank) == fact.node


def _replace(cluster: Cluster, resource: Resource[Any], listed: Listed[Any], pools: dict[str, ResourcePool]) -> None:
    table = cluster.table(resource.plural)
    if table is None:
        return
    facts = {object_key(item.metadata): (fact_of(item, pools), item.metadata.version) for item in listed.items}
    table.replace(facts, int(listed.resource_version) if listed.resource_version.isdigit() else 0)
