"""Flavors in the objects: what the planner reads from a pool, a queue and an allocation."""

from typing import Any

import msgspec
import pytest

from slipway.crd.meta import ObjectMeta
from slipway.crd.resolve import resolve
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, Queue, QueueSpec, ResourcePool, ResourcePoolSpec
from slipway.facts.custom_resources import allocation_fact, pool_fact, queue_fact
from slipway.model.facts import FlavorFact
from slipway.model.lifecycle import Kind
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, Resources, gpus_of

META = ObjectMeta(name="default")


def a_queue(**spec: Any) -> Queue:
    """A queue with this spec."""
    return Queue(metadata=META, spec=msgspec.convert(spec, QueueSpec))


def test_a_pool_lists_its_flavors_in_order() -> None:
    """A pool lists its flavors in order; a repeated name is one flavor, with the last definition."""
    flavors = [{"name": name, "nodeLabels": {"gpu": label}} for name, label in (("h", "1"), ("a", "2"), ("h", "3"))]
    spec = msgspec.convert({"flavors": flavors}, ResourcePoolSpec)
    fact = pool_fact(ResourcePool(metadata=META, spec=spec))
    assert fact.flavors == (FlavorFact("h", {"gpu": "3"}), FlavorFact("a", {"gpu": "2"}))


def test_limits_of_flavors_stand_beside_those_of_the_queue() -> None:
    """Limits of flavors are read beside those of the queue, in `GPU_UNITS`, with zeros; a flavor without a limit is
    unbounded."""
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
    """The queue sets when the next flavor is tried; by default the scheduler borrows first and preempts last."""
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
    """An invalid limit excludes the queue from planning, with the path of the limit."""
    assert queue_fact(a_queue(flavors=[{"name": "h", "nominal": nominal}])).invalid.startswith(why)


def test_an_allocation_says_which_flavors_it_accepts() -> None:
    """An allocation lists the flavors that it accepts, in its order, each once."""
    wanted = Allocation(metadata=ObjectMeta(name="job"), spec=AllocationSpec(kind=Kind.NOTEBOOK, flavors=["h", "a"]))
    assert allocation_fact(wanted, None).flavors == ("h", "a")
    twice = msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, flavors=["h", "h"]))
    pool = ResourcePool(metadata=META)
    assert "/flavors/1" in [error.pointer for error in resolve(twice, pool).errors]
