"""The defaults and refusals of LimitRanges for a pod, computed before the API server does it."""

import pytest

from slipway.model.facts import LimitRangeFact, RangeBounds
from slipway.model.namespace_limits import completed, refusal
from slipway.model.podresources import ContainerResources, PodResources, Quantities
from slipway.model.resources import Resources


def a_range(name: str = "bounds", *, pod: RangeBounds | None = None, **container: dict[str, str]) -> LimitRangeFact:
    return LimitRangeFact(namespace="team", name=name, container=RangeBounds(**container), pod=pod or RangeBounds())


def asks(
    requests: Quantities | None = None, limits: Quantities | None = None, name: str = "main"
) -> ContainerResources:
    return ContainerResources(name=name, requests=requests or {}, limits=limits or {})


@pytest.mark.parametrize(
    ("container", "requests", "limits"),
    [
        (asks(), {"cpu": "500m"}, {"cpu": "1"}),
        (asks({"cpu": "100m"}), {"cpu": "100m"}, {"cpu": "1"}),
        (asks(None, {"cpu": "300m"}), {"cpu": "300m"}, {"cpu": "300m"}),
        (asks({"memory": "1Gi"}), {"cpu": "500m", "memory": "1Gi"}, {"cpu": "1"}),
    ],
)
def test_a_container_is_given_what_it_does_not_state(
    container: ContainerResources, requests: Quantities, limits: Quantities
) -> None:
    """A container gets defaults for what it does not state; its own limit is its request before a default is."""
    ranges = (a_range(default={"cpu": "1"}, default_request={"cpu": "500m"}),)
    (given,) = completed(PodResources((container,)), ranges).containers
    assert (given.requests, given.limits) == (requests, limits)


def test_every_container_of_a_pod_counts_as_it_will_be() -> None:
    """Every container of a pod counts with its defaults: here two containers and a sidecar of 500m each, and a smaller
    init step."""
    pod = PodResources(
        (asks(), asks(name="second")),
        (ContainerResources(name="beside", sidecar=True), asks(name="step")),
    )
    given = completed(pod, (a_range(default_request={"cpu": "500m"}),))
    assert given.requests() == Resources.parse({"cpu": "1500m"})


def test_the_first_range_by_name_gives_what_several_have() -> None:
    ranges = (a_range("a", default_request={"cpu": "1"}), a_range("b", default_request={"cpu": "2", "memory": "1Gi"}))
    assert completed(PodResources((asks(),)), ranges).requests() == Resources.parse({"cpu": "1", "memory": "1Gi"})


_WHERE = "LimitRange bounds of namespace team"


@pytest.mark.parametrize(
    ("bounds", "container", "why"),
    [
        (
            a_range(max={"memory": "2Gi"}, default={"memory": "2Gi"}),
            asks(None, {"memory": "4Gi"}),
            f"{_WHERE} allows at most 2Gi of memory per container, but container main has a limit of 4Gi",
        ),
        (
            a_range(min={"cpu": "100m"}),
            asks({"cpu": "50m"}),
            f"{_WHERE} requires at least 100m of cpu per container, but container main requests 50m",
        ),
        (
            a_range(max_ratio={"cpu": "2"}),
            asks({"cpu": "1"}, {"cpu": "5"}),
            f"{_WHERE} allows a limit of at most 2 times the request of cpu per container, but container main "
            "requests 1 with a limit of 5: request at least 2500m, or lower the limit to 2",
        ),
        (
            a_range(default={"cpu": "1"}, default_request={"cpu": "1"}),
            asks({"cpu": "2"}),
            "container main requests 2 of cpu, and LimitRange bounds of namespace team gives it a limit of 1: state a "
            "limit too",
        ),
        (
            a_range(pod=RangeBounds(max={"cpu": "1"})),
            asks({"cpu": "2"}),
            f"{_WHERE} allows at most 1 of cpu per pod, but the pod states no limit",
        ),
    ],
)
def test_what_a_range_refuses_is_told_with_what_it_takes(
    bounds: LimitRangeFact, container: ContainerResources, why: str
) -> None:
    ranges = (bounds,)
    assert refusal(completed(PodResources((container,)), ranges), ranges) == why


@pytest.mark.parametrize(
    ("bounds", "container"),
    [
        (a_range(max={"memory": "2Gi"}, default={"memory": "2Gi"}), asks(None, {"memory": "2Gi"})),
        (a_range(min={"cpu": "100m"}, default_request={"cpu": "100m"}), asks()),
        (a_range(max_ratio={"cpu": "2"}), asks({"cpu": "1500m"}, {"cpu": "3"})),
        (a_range(pod=RangeBounds(max={"cpu": "2"})), asks({"cpu": "2"}, {"cpu": "2"})),
    ],
)
def test_what_is_within_its_range_is_not_refused(bounds: LimitRangeFact, container: ContainerResources) -> None:
    ranges = (bounds,)
    assert refusal(completed(PodResources((container,)), ranges), ranges) == ""


def test_many_refusals_are_cut_short() -> None:
    """Of many refusals three are shown, and the rest is counted."""
    ranges = (a_range(min={"cpu": "1"}),)
    pod = PodResources(tuple(asks({"cpu": "1m"}, name=f"c{number}") for number in range(5)))
    told = refusal(pod, ranges)
    assert told.count("requires at least") == 3
    assert told.endswith("; and 2 more")
