"""Shared by the tests of the reduction: reduce a story once, or until nothing changes."""

from typing import Any

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.watcher.reduce import Reduction, reduce
from tests.support.builders import T0, AllocationStory, PodStory, an_allocation

NOW = T0 + 20


def settled(allocation: Allocation, *pods: PodStory, now: float = NOW, **options: Any) -> Allocation:
    """Reduce the allocation with consistent reads, again and again, until nothing changes; return it."""
    for _ in range(6):
        done = reduce(allocation, [pod.it for pod in pods], now=now, consistent=True, **options)
        if not done.changed:
            return done.allocation
        allocation = done.allocation
    raise AssertionError("it never settles")


def once(allocation: Allocation, *pods: PodStory, now: float = NOW, **options: Any) -> Reduction:
    found: list[Pod] = [pod.it for pod in pods]
    return reduce(allocation, found, now=now, **options)


def ending(allocation: Allocation) -> tuple[Phase, Result | None, str]:
    status = allocation.status
    return status.phase, status.result, status.reason


def a_running(ranks: int | None = None, **spec: Any) -> AllocationStory:
    return an_allocation(ranks, **spec).assigned().released().running()
