"""The api shows a queue in the order in which it starts: work that has waited long comes first."""

import msgspec

from slipway.api.queues.queue_view import aged, in_order, waiting_of
from slipway.crd.meta import ObjectMeta
from slipway.crd.v1alpha1 import Allocation, ResourcePool, ResourcePoolSpec
from slipway.model.times import format_time
from tests.support.builders import T0, an_allocation

DAY_S = 86_400.0


def waits(name: str, *, since: float, priority: int) -> Allocation:
    """A pending allocation that was created `since` seconds after T0."""
    made = an_allocation(priority=priority).it
    meta = msgspec.structs.replace(
        made.metadata, name=name, uid=f"uid-{name}", creation_timestamp=format_time(T0 + since, "seconds")
    )
    return msgspec.structs.replace(made, metadata=meta)


def test_what_has_waited_a_day_is_shown_first() -> None:
    """The longest wait first, then by priority; without aging by priority alone."""
    work = [
        waits("urgent", since=DAY_S, priority=90),
        waits("old", since=10.0, priority=1),
        waits("older", since=0.0, priority=0),
        waits("young", since=DAY_S - 5.0, priority=50),
    ]
    meta = ObjectMeta(name="default")
    now = T0 + DAY_S + 10.0
    first = aged(work, [ResourcePool(metadata=meta)], now)
    assert [each.metadata.name for each in in_order(work, {}, first)] == ["older", "old", "urgent", "young"]
    assert [each.name for each in waiting_of(work, {}, first)] == ["older", "old", "urgent", "young"]
    off = aged(work, [ResourcePool(metadata=meta, spec=ResourcePoolSpec(aging="0s"))], now)
    assert [each.metadata.name for each in in_order(work, {}, off)] == ["urgent", "young", "old", "older"]
    sooner = aged(work, [ResourcePool(metadata=meta)], now - 1.0)
    assert [each.metadata.name for each in in_order(work, {}, sooner)] == ["older", "urgent", "young", "old"]
