"""The cache of resolved specs never differs from resolving."""

from typing import Any

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.facts.custom_resources import KNOWN_MAX, SpecCache, spec_facts
from slipway.model.facts import LimitRangeFact, RangeBounds
from tests.support.allocations import Json, a_pool, an_allocation

TEMPLATE: Json = {"spec": {"containers": [{"name": "main", "image": "i:1", "command": ["run"]}]}}
BESIDE: Json = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "host", "labelSelector": {"matchLabels": {"slipway.dev/role": "worker"}}}
        ]
    }
}


def a_spec(**changes: Any) -> Allocation:
    return an_allocation(kind="command", template=TEMPLATE, **changes)


def named(allocation: Allocation, **meta: str) -> Allocation:
    return msgspec.structs.replace(allocation, metadata=msgspec.structs.replace(allocation.metadata, **meta))


@pytest.mark.parametrize(
    "other",
    [
        a_spec(env={"SEED": "2"}),
        a_spec(ranks=[{"resources": {"cpu": "2"}}]),
        a_spec(ranks=[{"count": 2}]),
        a_spec(ranks=[{"count": 2}], minAvailable=9),
        a_spec(priority=90, queue="other", hold=True, desired="Stopped", requestHash="x", queuePosition="1"),
        a_spec(signals={"ready": True, "lostNodes": ["n" * 200] * 300}),
        a_spec(maxRuntime="0s"),
        an_allocation(kind="notebook"),
        an_allocation(kind="command", template={"spec": {"containers": [{"name": "x", "image": str(10**30)}]}}),
        an_allocation(kind="command", template={"spec": {"hostPID": 10**30}}),
        named(a_spec(), name="Not-A-Name"),
        named(a_spec(), namespace="elsewhere"),
        named(a_spec(ranks=[{"affinity": BESIDE}]), name="beside"),
        a_spec(files=[{"path": "a", "content": "x" * 30_000}]),
    ],
)
def test_cached_specs_equal_resolved_specs(other: Allocation) -> None:
    """A cached result equals resolving: for each spec beside one that differs in one field, in both orders, and
    requested twice."""
    pool = a_pool()
    specs = SpecCache()
    for allocation in (a_spec(), other, a_spec(), other, named(other, name="again", uid="v")):
        assert specs.of(allocation, pool) == spec_facts(allocation, pool)


def test_those_that_are_alike_are_resolved_once() -> None:
    """Equal specs are resolved once, and share the result."""
    specs, pool = SpecCache(), a_pool()
    first = specs.of(a_spec(), pool)
    assert specs.of(named(a_spec(priority=70), name="second", uid="u2"), pool) is first


def test_another_pool_spec_is_another_answer() -> None:
    """Another pool spec has another result: results under the pool's earlier defaults are dropped."""
    pools: list[ResourcePool | None] = [a_pool(), a_pool(tolerations=[{"key": "gpu", "operator": "Exists"}]), None]
    specs, allocation = SpecCache(), a_spec()
    for pool in [*pools, *pools]:
        assert specs.of(allocation, pool) == spec_facts(allocation, pool)


def test_other_limit_ranges_are_another_answer() -> None:
    """Other LimitRanges have another result: results under earlier LimitRanges of the namespace are dropped."""
    given = LimitRangeFact(namespace="default", name="bounds", container=RangeBounds(default_request={"cpu": "3"}))
    specs, allocation, pool = SpecCache(), a_spec(), a_pool()
    for ranges in ((), (given,), (), (given,)):
        assert specs.of(allocation, pool, ranges) == spec_facts(allocation, pool, ranges)


def test_what_is_remembered_has_a_limit() -> None:
    """The cache has a limit: a pass over more specs costs the time of resolving, not memory."""
    specs, pool = SpecCache(), a_pool()
    kept = [specs.of(a_spec(env={"SEED": str(number)}), pool) for number in range(KNOWN_MAX + 1)]
    assert specs.of(a_spec(env={"SEED": "0"}), pool) is not kept[0]
