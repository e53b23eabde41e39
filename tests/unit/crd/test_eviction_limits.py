"""Eviction limits of queues and pools on the wire."""

import msgspec
import pytest

from slipway.crd.meta import ObjectMeta
from slipway.crd.pools import EvictionRate, ResourcePool, ResourcePoolSpec
from slipway.facts.custom_resources import pool_fact, queue_fact
from slipway.model.eviction_rate import EvictionLimit
from tests.unit.crd.test_flavors import a_queue


def test_a_limit_of_a_queue_and_of_a_pool_is_read() -> None:
    """`burst` is `count` when it is absent; without a limit work is evicted any number of times."""
    said = {"count": 6, "per": "1h"}
    assert queue_fact(a_queue()).eviction_limit is None
    assert queue_fact(a_queue(evictionLimit=said)).eviction_limit == EvictionLimit(count=6, per_s=3600.0, burst=6)
    spec = ResourcePoolSpec(eviction_limit=EvictionRate(count=1, per="2d", burst=3))
    pool = ResourcePool(metadata=ObjectMeta(name="default"), spec=spec)
    assert pool_fact(pool).eviction_limit == EvictionLimit(count=1, per_s=172800.0, burst=3)


@pytest.mark.parametrize(
    ("field", "value"),
    [("count", 0), ("count", -1), ("per", "0s"), ("per", "1h30m"), ("per", "10ms"), ("per", "soon"), ("burst", 0)],
)
def test_a_limit_that_makes_no_sense_is_refused_with_its_field(field: str, value: object) -> None:
    """The schema refuses an invalid limit with its field, so the API server does too; a period is one number of
    seconds, minutes, hours or days."""
    said = {"count": 6, "per": "1h", field: value}
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        msgspec.convert(said, EvictionRate)
