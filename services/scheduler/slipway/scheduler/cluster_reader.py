"""Reads the cluster for the leader: a consistent LIST of each resource, then the deltas of the feed.

Owns the LISTs and the translation of feed entries into the tables of `cluster.py`. The LIST is the truth; with the feed
changes only arrive sooner. Decides nothing.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from slipway.crd.specs import SpecCache
from slipway.crd.v1alpha1 import ResourcePool
from slipway.errors import ExpiredError
from slipway.kube.factpages import FactRow
from slipway.kube.facts import Fact, RangesByNamespace, decode_fact, fact_of, object_key, ranges_by_namespace
from slipway.kube.resources import (
    ALLOCATIONS,
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_POOLS,
    RESOURCE_QUOTAS,
    Resource,
)
from slipway.kube.rest import LIST_STARTS_MAX, PAGE_SIZE
from slipway.kube.scope import only
from slipway.kube.wire import metadata_of
from slipway.model.facts import PodFact
from slipway.model.ids import split_allocation_id
from slipway.runtime import log, telemetry
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.ports import Kube
from slipway.streams.feed import Delta
from slipway.streams.ports import FeedOp

_log = log.get_logger(__name__)

FIRST: tuple[Resource[Any], ...] = (RESOURCE_POOLS, LIMIT_RANGES)
"""The resources on which the facts of allocations depend."""
LISTED: tuple[Resource[Any], ...] = (NAMESPACES, QUEUES, JOBS, RESOURCE_QUOTAS, NODES, PODS, ALLOCATIONS)


async def list_everything(kube: Kube, cluster: Cluster, specs: SpecCache) -> int:
    """Update every table from a consistent LIST; return the version of the LIST of the allocations.

    Pools and LimitRanges are listed first, because an allocation's fact depends on the defaults of its pool and of its
    namespace. Facts are made page by page, while the next page is being read. So a cluster of any size neither blocks
    the event loop, which also renews the lease, nor is in memory as a whole. The tables are updated in one step, so
    that no reader sees half of a LIST.
    """
    # A consistent LIST never has a lower version than one seen before it began,
    # unless the server has gone back in time.
    tables = {each: cluster.table(each.plural) for each in (*FIRST, *LISTED)}
    floors = {each: table.seen for each, table in tables.items() if table is not None}
    pools, limit_ranges = await asyncio.gather(kube.list(RESOURCE_POOLS), kube.list(LIMIT_RANGES))
    inputs = _FactInputs(
        {pool.metadata.name: pool for pool in pools.items}, ranges_by_namespace(limit_ranges.items), specs
    )
    # If they have changed, every fact of an allocation is made again, also at the version that the table has.
    are_other = [specs.take_pools(inputs.pools), specs.take_ranges(inputs.ranges)]

    def list_of(resource: Resource[Any]) -> _ListedFacts:
        keeps = not any(are_other) or resource is not ALLOCATIONS
        return _ListedFacts(cluster, resource, inputs, floor=floors.get(resource, 0), keeps=keeps)

    first, lists = [list_of(each) for each in FIRST], [list_of(each) for each in LISTED]
    await asyncio.gather(*(each.read(kube) for each in lists))
    for each, listed in zip(first, (pools, limit_ranges), strict=True):
        each.take(listed.items, listed.resource_version)
    for each in (*first, *lists):
        each.replace()
    return lists[LISTED.index(ALLOCATIONS)].version


def apply_delta(cluster: Cluster, delta: Delta) -> bool:
    """Apply one delta of the feed; return True when that is news for planning.

    Raises: msgspec.ValidationError: the publisher uses another version of the format: LIST instead.
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
    """Whether the fact is a pod of ours on the node of its admission, which planning has already taken into account."""
    if not isinstance(fact, PodFact) or not (fact.live and fact.node and fact.allocation_uid):
        return False
    found = split_allocation_id(fact.name.rsplit("-", 2)[0])
    known = cluster.allocations.get(f"{fact.namespace}/{found[0]}") if found is not None else None
    if known is None or (known.uid, known.attempt) != (fact.allocation_uid, fact.attempt):
        return False
    return known.placements.get(fact.rank) == fact.node


def store_pages(cluster: Cluster, pages: Iterable[tuple[str, list[FactRow]]]) -> int:
    """Store the pages of a snapshot of the feed; return the number of objects."""
    count = 0
    for kind, told in pages:
        table = cluster.table(kind)
        if table is not None:
            for key, version, fact in told:
                table.put(key, fact, version)
            count += len(told)
    return count


class _FactInputs(NamedTuple):
    """The other inputs of an allocation's fact, besides the object."""

    pools: dict[str, ResourcePool]
    ranges: RangesByNamespace
    specs: SpecCache


class _ListedFacts:
    """One LIST, converted to facts."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource[Any],
        inputs: _FactInputs,
        *,
        floor: int,
        keeps: bool,
    ) -> None:
        """`floor`: the highest version seen before it began; `keeps`:
        a fact in the table at the same version is reused."""
        self.version = 0
        self._table = cluster.table(resource.plural)
        self._floor = floor
        self._keeps = keeps
        self._resource = resource
        self._inputs = inputs
        self._facts: dict[str, tuple[Fact, int]] = {}

    async def read(self, kube: Kube) -> None:
        """Read all pages of one consistent LIST.

        Raises:
            TransientError: the API server cannot be reached.
            ExpiredError: the LIST has expired before its last page, in every try.
        """
        for start in range(LIST_STARTS_MAX):
            self._facts.clear()
            try:
                await self._pages(kube)
            except BaseExceptionGroup as group:
                error = only(group)
                if not isinstance(error, ExpiredError) or start == LIST_STARTS_MAX - 1:
                    raise error from None
            else:
                return

    def take(self, items: list[Any], resource_version: str) -> None:
        """Convert some objects to facts; a fact that the table has at the same version is reused."""
        self.version = int(resource_version) if resource_version.isdigit() else 0
        table = self._table
        if table is None:
            return
        for item in items:
            meta = metadata_of(item)
            key, version = object_key(meta), meta.version
            is_known = self._keeps and version and table.version(key) == version and not self._is_rewound
            known = table.get(key) if is_known else None
            self._facts[key] = (known or self._fact_of(item), version)

    def _fact_of(self, item: Any) -> Fact:
        return fact_of(item, self._inputs.pools, self._inputs.specs, ranges=self._inputs.ranges)

    def replace(self) -> None:
        """Update the table from the LIST."""
        if self._table is None:
            return
        if self._is_rewound:
            _log.error(
                "the API server has gone back in time: the table is read anew",
                resource=self._resource.plural,
                version=self.version,
                seen=self._floor,
            )
            telemetry.WATCH_RESTARTS.labels(resource=self._resource.plural, reason="rewound").inc()
            self._table.rewind(self._facts)
        else:
            self._table.replace(self._facts, self.version)

    @property
    def _is_rewound(self) -> bool:
        return 0 < self.version < self._floor

    async def _pages(self, kube: Kube) -> None:
        async with TaskGroup() as tasks:
            coming = tasks.create_task(kube.list(self._resource, limit=PAGE_SIZE))
            while True:
                page = await coming
                if not page.continue_:
                    break
                coming = tasks.create_task(kube.list(self._resource, limit=PAGE_SIZE, continue_=page.continue_))
                # The request for the next page is sent before this page is converted.
                await asyncio.sleep(0)
                self.take(page.items, page.resource_version)
            self.take(page.items, page.resource_version)
