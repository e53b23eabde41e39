"""A cache of resolved specs: thousands of allocations of one sweep are equal in all fields that `resolve` reads.

Owns the rule when two allocations share an entry. Their specs are equal, except for fields on which neither a rank nor
the hash depends; and they have the same namespace, LimitRanges, pool and pool spec. Resolving costs twenty times as
much as the rest of a fact, and a scheduler that starts builds a fact for every allocation.

Invariant: `of` returns what `spec_facts` would return.
"""

from collections.abc import Mapping

import msgspec

from slipway.crd.facts import SpecFacts, spec_facts
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, ResourcePool
from slipway.model import ids
from slipway.model.lifecycle import Kind
from slipway.model.limitrange import Ranges
from slipway.model.ranklabels import ALLOCATION_UID

KNOWN_MAX = 4_096
"""Maximum number of specs in the cache."""
BYTES_MAX = 16 * 1024
"""Larger specs are not cached, so that the cache stays small. The limit is far below the size at which a spec is
refused."""
_SAME = AllocationSpec(kind=Kind.COMMAND)
_encode = msgspec.json.Encoder().encode


class SpecCache:
    """The cache of the specs that were resolved last."""

    def __init__(self) -> None:
        self._pools: dict[str, ResourcePool | None] = {}
        self._ranges: dict[str, Ranges] = {}
        self._known: dict[tuple[str, bytes], SpecFacts] = {}

    def of(self, allocation: Allocation, pool: ResourcePool | None, ranges: Ranges = ()) -> SpecFacts:
        """Return the spec of `allocation` as the planner reads it.

        `pool` (None when it does not exist) has the defaults; `ranges` are the LimitRanges of its namespace.
        """
        self._follow(allocation.spec.pool, pool)
        self._follow_ranges(allocation.metadata.namespace, ranges)
        key = _key(allocation)
        if key is None:
            return spec_facts(allocation, pool, ranges)
        found = self._known.get(key)
        if found is None:
            found = spec_facts(allocation, pool, ranges)
            if not any(ALLOCATION_UID in role.labels for role in found.roles):
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[key] = found
        return found

    def take_pools(self, pools: Mapping[str, ResourcePool]) -> bool:
        """Replace all known pools. Return whether a pool was added, removed or got another spec."""
        before = {name: pool.spec for name, pool in self._pools.items() if pool is not None}
        is_other = before != {name: pool.spec for name, pool in pools.items()}
        if is_other:
            self._known.clear()
        self._pools = dict(pools)
        return is_other

    def take_ranges(self, ranges: Mapping[str, Ranges]) -> bool:
        """Replace all known LimitRanges, by namespace. Return whether one was added, removed or changed."""
        is_other = self._ranges != ranges
        if is_other:
            self._known.clear()
        self._ranges = dict(ranges)
        return is_other

    def _follow_ranges(self, namespace: str, ranges: Ranges) -> None:
        if self._ranges.get(namespace, ()) != ranges:
            self._known.clear()
            self._ranges[namespace] = ranges

    def _follow(self, name: str, pool: ResourcePool | None) -> None:
        before = self._pools.get(name)
        if before is pool and name in self._pools:
            return
        if name in self._pools and (before.spec if before else None) != (pool.spec if pool else None):
            self._known.clear()
        self._pools[name] = pool


def _key(allocation: Allocation) -> tuple[str, bytes] | None:
    """Return the cache key, which is equal for allocations that share an entry; None: not cached."""
    meta, spec = allocation.metadata, allocation.spec
    if not ids.is_name(meta.name):
        return None
    if spec.signals is not None and len(_encode(spec.signals)) > BYTES_MAX:
        return None
    alike = msgspec.structs.replace(
        spec,
        queue=_SAME.queue,
        priority=_SAME.priority,
        queue_position=_SAME.queue_position,
        hold=_SAME.hold,
        desired=_SAME.desired,
        signals=None,
        request_hash=_SAME.request_hash,
    )
    try:
        text = _encode(alike)
    except RecursionError:
        return None
    return (meta.namespace, text) if len(text) <= BYTES_MAX else None
