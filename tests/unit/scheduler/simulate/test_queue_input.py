"""Queues in a scenario that make no sense are refused, with the path of the field."""

import pytest

from slipway.errors import InvalidError
from slipway.scheduler.simulate.scenario import decode

NODES = "nodes: [{name: n, cpu: 1}]\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("queues: [{name: a, parent: a}]", "queues[0].parent: the parents form a cycle: a -> a"),
        (
            "queues: [{name: x}, {name: a, parent: c}, {name: b, parent: a}, {name: c, parent: b}]",
            "queues[1].parent: the parents form a cycle: a -> c -> b -> a",
        ),
        ("queues: [{name: a, parent: gone}]", "queues[0].parent: there is no queue gone"),
        ("queues: [{name: a}, {name: a}]", "queues[1].name: a is defined twice"),
        ("queues: [{name: root}]", "queues[0].name: root is the root of all queues"),
        ("queues: [{name: a, nominal: {cpu: -1}}]", "queues[0].nominal.cpu: -1 is negative"),
        ("queues: [{name: a, borrowingLimit: {memory: 9e30}}]", "queues[0].borrowingLimit.memory: '9e30' is larger"),
        ("queues: [{name: a, limit: {gpus: many}}]", "queues[0].limit.gpus: 'many' is not a quantity"),
        ("queues: [{name: a, lendingLimit: {cpu: .nan}}]", "queues[0].lendingLimit.cpu: "),
        ("queues: [{name: a, weight: 0}]", "queues[0].weight: "),
        ("queues: [{name: a, weight: 1.5}]", "queues[0].weight: "),
        ("queues: [{name: a, ordering: Fair}]", "queues[0].ordering: "),
        ("queues: [{name: a, preemption: {reclaim: Some}}]", "queues[0].preemption.reclaim: "),
        ("queues: [{name: a, nominals: {cpu: 1}}]", "queues[0].nominals: "),
        ("queues: [{name: a, maxRuntime: soon}]", "queues[0].maxRuntime: 'soon' is not a duration"),
        ("queues: [{name: a, maxRuntime: 0}]", "queues[0].maxRuntime: 0.0 is too short"),
        ("pool: {fairShare: {halfLife: 0s}}", "pool.fairShare.halfLife: 0s is too short"),
        ("pool: {fairShare: {}}", "pool.fairShare"),
        ("queues: [{name: a, userOrder: Random}]", "queues[0].userOrder: "),
        (
            "queues: [{name: a}]\nhistory: [{queue: a, gpuHours: 1}]",
            "history[0]: past use needs a fair share; set pool.fairShare.halfLife",
        ),
        (
            "pool: {fairShare: {halfLife: 7d}}\nqueues: [{name: a}]\nhistory: [{queue: b, gpuHours: 1}]",
            "history[0].queue: there is no queue b",
        ),
        ("queues: [{name: a, budgets: [{gpuHours: 0, window: 24h}]}]", "queues[0].budgets[0].gpuHours: "),
        ("queues: [{name: a, budgets: [{gpuHours: 1, window: 0s}]}]", "queues[0].budgets[0].window: 0s is too short"),
        ("queues: [{name: a, budgets: [{gpuHours: 1}]}]", "queues[0].budgets[0].window: "),
        ("pool: {aging: -1}", "pool.aging: "),
        ("jobs: [{name: j, position: first}]", "jobs[0].position: first is not a position"),
        ("jobs: [{name: j, weight: 0}]", "jobs[0].weight: "),
        ("allocations: [{name: a, position: -3, ranks: [{}]}]", "allocations[0].position: "),
    ],
)
def test_bad_queues(text: str, complaint: str) -> None:
    """Each complaint begins with the path of the field."""
    with pytest.raises(InvalidError) as caught:
        decode(NODES + text)
    assert str(caught.value).startswith(complaint)


def test_places_may_be_numbers() -> None:
    """A place is a number of YAML, or text."""
    found = decode(
        NODES + "allocations: [{name: a, position: 12.50, ranks: [{}]}, {name: b, position: '7', ranks: [{}]}]"
    )
    assert [item.position for item in found.allocations] == [12.5, "7"]
