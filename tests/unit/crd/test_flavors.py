"""Flavors as objects hold them: what the planner reads of a pool, a queue and an allocation."""

from typing import Any

import msgspec
import pytest

from slipway.crd.facts import allocation_fact, pool_fact, queue_fact
from slipway.crd.meta import ObjectMeta
from slipway.crd.resolve import resolve
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, Queue, QueueSpec, ResourcePool, ResourcePoolSpec
from slipway.model.facts import FlavorFact
from slipway.model.lifecycle import Kind
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, Resources, gpus_of

META = ObjectMeta(name="default")


def a_queue(**spec: Any) -> Queue:
    """A queue as somebody wrote it."""
    return Queue(metadata=META, spec=msgspec.convert(spec, QueueSpec))


def test_a_pool_lists_its_flavors_in_order() -> None:
    """A name that stands there twice is one flavor, as the last one says."""
    flavors = [{"name": name, "nodeLabels": {"gpu": label}} for name, label in (("h", "1"), ("a", "2"), ("h", "3"))]
    spec = msgspec.convert({"flavors": flavors}, ResourcePoolSpec)
    fact = pool_fact(ResourcePool(metadata=META, spec=spec))
    assert fact.flavors == (FlavorFact("h", {"gpu": "3"}), FlavorFact("a", {"gpu": "2"}))


def test_limits_of_flavors_stand_beside_those_of_the_queue() -> None:
    """In `GPU_UNITS`, zeros kept; what no flavor bounds stays unbounded."""
    flavors = [
        {"name": "h", "nominal": {GPU: 4}, "borrowingLimit": {GPU: 0}},
        {"name": "a", "nominal": {GPU: "8"}, "lendingLimit": {GPU: 2}, "limit": {GPU: 9}},
    ]
    fact = queue_fact(a_queue(nominal={CPU: 2}, flavors=flavors))
    assert fact.nominal == Resources({CPU: 2000, gpus_of("h"): 4 * GPU_UNITS, gpus_of("a"): 8 * GPU_UNITS})
    assert fact.borrowing_limit == Resources({gpus_of("h"): 0})
    assert fact.lending_limit == Resources({gpus_of("a"): 2 * GPU_UNITS})
    assert fact.limit == Resources({gpus_of("a"): 9 * GPU_UNITS})
    assert fact.flavors == ("h", "a")
    assert queue_fact(a_queue()).nominal is None


def test_when_the_next_flavor_is_tried() -> None:
    """As the queue says; by default it borrows first and preempts last."""
    default = queue_fact(a_queue())
    said = queue_fact(a_queue(flavorFungibility={"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "Preempt"}))
    assert (default.when_can_borrow, default.when_can_preempt) == ("Borrow", "TryNextFlavor")
    assert (said.when_can_borrow, said.when_can_preempt) == ("TryNextFlavor", "Preempt")


@pytest.mark.parametrize(
    ("nominal", "why"),
    [
        ({CPU: 2}, f"spec.flavors[0].nominal.cpu: only {GPU} is counted by flavor; write cpu in spec.nominal"),
        ({GPU: "many"}, "spec.flavors[0].nominal."),
    ],
)
def test_a_limit_that_nobody_understands_sets_the_queue_aside(nominal: dict[str, Any], why: str) -> None:
    """With the path of it."""
    assert queue_fact(a_queue(flavors=[{"name": "h", "nominal": nominal}])).invalid.startswith(why)


def test_an_allocation_says_which_flavors_it_accepts() -> None:
    """In its order; each once."""
    wanted = Allocation(metadata=ObjectMeta(name="job"), spec=AllocationSpec(kind=Kind.NOTEBOOK, flavors=["h", "a"]))
    assert allocation_fact(wanted, None).flavors == ("h", "a")
    twice = msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, flavors=["h", "h"]))
    pool = ResourcePool(metadata=META)
    assert "/flavors/1" in [error.pointer for error in resolve(twice, pool).errors]
