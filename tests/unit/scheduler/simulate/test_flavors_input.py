"""Flavors in scenarios and in changes to a pool: bad values are refused with their path, and unnamed fields are
kept."""

from typing import Any

import pytest

from slipway.errors import InvalidError
from slipway.model.facts import FlavorFact, PoolFact, QueueFact, WorkspaceFact
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, Resources, gpus_of
from slipway.scheduler.simulate import changes
from slipway.scheduler.simulate.changes import PoolStanding
from slipway.scheduler.simulate.command import as_table
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import decode

NODES = "nodes: [{name: n, cpu: 1, gpus: 1, labels: {gpu: h}}]\n"
FLAVORS = NODES + "pool: {flavors: [{name: h, nodeLabels: {gpu: h}}]}\n"
H = gpus_of("h")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (NODES + "pool: {flavors: [{name: h, nodeLabels: {}}]}", "pool.flavors[0].nodeLabels: "),
        (NODES + "pool: {flavors: [{name: H_1, nodeLabels: {a: b}}]}", "pool.flavors[0].name: H_1 is not 1 to 63"),
        (
            NODES + "pool: {flavors: [{name: h, nodeLabels: {a: b}}, {name: h, nodeLabels: {a: c}}]}",
            "pool.flavors[1].name: h is defined twice",
        ),
        (FLAVORS + "queues: [{name: q, flavors: [{name: g}]}]", "queues[0].flavors[0].name: the pool has no flavor g"),
        (
            FLAVORS + "queues: [{name: q, flavors: [{name: h, limit: {cpu: 1}}]}]",
            "queues[0].flavors[0].limit.cpu: only GPUs are counted by flavor; write gpus, and cpu in queues[0].limit",
        ),
        (
            FLAVORS + "queues: [{name: q, flavors: [{name: h, nominal: {gpus: -1}}]}]",
            "queues[0].flavors[0].nominal.gpus",
        ),
        (FLAVORS + "queues: [{name: q, flavorFungibility: {whenCanBorrow: Never}}]", "queues[0].flavorFungibility."),
        (
            FLAVORS + "allocations: [{name: a, gpuType: g, ranks: [{}]}]",
            "allocations[0].gpuType: the pool has no flavor",
        ),
        (FLAVORS + "allocations: [{name: a, flavors: [h, g], ranks: [{}]}]", "allocations[0].flavors[1]: the pool has"),
        (
            FLAVORS + "allocations: [{name: a, flavors: [h, h], ranks: [{}]}]",
            "allocations[0].flavors[1]: h is defined twice",
        ),
        (
            FLAVORS + "allocations: [{name: a, flavors: [h], gpuType: h, ranks: [{}]}]",
            "allocations[0].gpuType: is the short form",
        ),
        (
            NODES + "allocations: [{name: a, gpuType: h, ranks: [{}]}]",
            "allocations[0].gpuType: the pool has no flavor h; add",
        ),
    ],
)
def test_flavors_that_make_no_sense(text: str, complaint: str) -> None:
    """Each complaint begins with the path of the field."""
    with pytest.raises(InvalidError) as caught:
        decode(text)
    assert str(caught.value).startswith(complaint)


def test_the_table_has_a_column_of_flavors_where_the_pool_has_some() -> None:
    """The table has no such column where the pool has no flavors."""
    work = "allocations: [{name: a, ranks: [{gpus: 1}]}, {name: b, ranks: [{cpu: 1}]}]"
    typed = as_table(simulate(decode(FLAVORS + work)), ()).splitlines()
    plain = as_table(simulate(decode(NODES + work)), ()).splitlines()
    assert typed[0].split()[-2:] == ["FLAVOR", "NODES"]
    assert [line.split()[-2:] for line in typed[1:3]] == [["h", "n"], ["-", "n"]]
    assert "FLAVOR" not in plain[0]


def changed(queue: QueueFact, **fields: Any) -> QueueFact:
    """A queue of a pool with one flavor, after a change."""
    pool = PoolFact(name="default", flavors=(FlavorFact("h", {"gpu": "h"}),))
    standing = PoolStanding(
        pool=pool,
        nodes={},
        queues={"q": queue},
        jobs=[],
        spaces=[WorkspaceFact(name="default")],
        allocations={},
        pods=[],
    )
    return changes.apply(standing, changes.decode({"queues": [{"name": "q", **fields}]})).queues["q"]


def test_a_change_of_a_queue_keeps_the_limits_that_it_does_not_name() -> None:
    """Limits of flavors stay when the flat limits change, and the other way round; null removes the flat limits
    alone."""
    before = QueueFact(
        name="q", nominal=Resources({GPU: 4, H: 2 * GPU_UNITS}), limit=Resources({H: 3 * GPU_UNITS}), flavors=("h",)
    )
    assert changed(before, nominal={"gpus": 8}).nominal == Resources({GPU: 8, H: 2 * GPU_UNITS})
    assert changed(before, nominal=None).nominal == Resources({H: 2 * GPU_UNITS})
    typed = changed(before, flavors=[{"name": "h", "nominal": {"gpus": 1}}])
    assert (typed.nominal, typed.limit) == (Resources({GPU: 4, H: GPU_UNITS}), None)
    none = changed(QueueFact(name="q", nominal=Resources({H: 2 * GPU_UNITS}), flavors=("h",)), flavors=[])
    assert (none.nominal, none.flavors) == (None, ())
    assert changed(QueueFact(name="q"), nominal={CPU: 1}).nominal == Resources({CPU: 1000})


def test_a_change_says_when_the_next_flavor_is_tried() -> None:
    """A change sets `flavorFungibility` as a scenario does."""
    found = changed(QueueFact(name="q"), flavorFungibility={"whenCanBorrow": "TryNextFlavor"})
    assert (found.when_can_borrow, found.when_can_preempt) == ("TryNextFlavor", "TryNextFlavor")
