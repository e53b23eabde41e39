"""A shadow policy is the pool's own, except for the fields that it sets."""

import msgspec

from slipway.crd.meta import ObjectMeta
from slipway.crd.v1alpha1 import PolicySpec, ResourcePool, ResourcePoolSpec
from slipway.facts.core_objects import decode_fact, encode_fact
from slipway.facts.custom_resources import policy_changed, pool_fact


def a_pool(shadow: PolicySpec | None) -> ResourcePool:
    spec = ResourcePoolSpec(scores={"LeastAllocated": 2}, topology=["rack"], node_selector={"a": "b"}, shadow=shadow)
    return ResourcePool(metadata=ObjectMeta(name="p"), spec=spec)


def test_what_it_does_not_name_is_the_pools() -> None:
    """Fields that the shadow does not set are the pool's: nodes, topology and everything else; a shadow has no
    shadow."""
    fact = pool_fact(a_pool(PolicySpec(scores={"MostAllocated": 1}, aging="1h", backfill=False)))
    plain = msgspec.structs.replace(fact, shadow=None)
    assert plain == pool_fact(a_pool(None))
    assert fact.shadow == msgspec.structs.replace(plain, scores={"MostAllocated": 1}, aging=3600.0, backfill=False)


def test_an_empty_one_is_the_pool_itself() -> None:
    """An empty shadow is the pool's own policy; an empty field may be set: no topology is another policy than the
    pool's."""
    fact = pool_fact(a_pool(PolicySpec()))
    assert fact.shadow == pool_fact(a_pool(None))
    assert policy_changed(fact, PolicySpec(topology=[])).topology == ()


def test_it_travels_in_the_feed() -> None:
    """The shadow policy is in the feed as part of its pool's fact."""
    fact = pool_fact(a_pool(PolicySpec(topology=["block", "rack"])))
    assert decode_fact("resourcepools", encode_fact(fact)) == fact
