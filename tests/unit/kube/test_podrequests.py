"""The resources that a pod requests of its node: every part that kube-scheduler counts, and nothing else."""

from typing import Any

import msgspec
import pytest

from slipway.facts.core_objects import host_ports_of, requests_of
from slipway.kube.objects import Pod

Json = dict[str, Any]


def _pod(status: Json | None = None, **spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": status or {}}, Pod)


def _container(name: str, **requests: str) -> Json:
    return {"name": name, "resources": {"requests": requests}}


def _asks(pod: Pod) -> dict[str, str]:
    return requests_of(pod).quantities()


def test_containers_are_summed() -> None:
    """The requests of the containers are summed, because all run at the same time."""
    pod = _pod(containers=[_container("a", cpu="500m", memory="1Gi"), _container("b", cpu="1")])
    assert _asks(pod) == {"cpu": "1500m", "memory": "1Gi"}


def test_largest_init_step_counts_when_it_is_larger() -> None:
    """The largest init container counts when it is larger than the sum, because init containers run one after the
    other, before the others."""
    pod = _pod(
        containers=[_container("a", cpu="1", memory="1Gi")],
        initContainers=[_container("big", cpu="3"), _container("fat", memory="4Gi")],
    )
    assert _asks(pod) == {"cpu": "3", "memory": "4Gi"}


def test_sidecars_run_beside_everything_that_follows() -> None:
    """The requests of sidecars are added to the containers, and to each init step after them."""
    sidecar = {**_container("side", cpu="2"), "restartPolicy": "Always"}
    first, last = _container("first", cpu="3"), _container("last", cpu="3")
    assert _asks(_pod(containers=[_container("a", cpu="1")], initContainers=[first, sidecar])) == {"cpu": "3"}
    assert _asks(_pod(containers=[_container("a", cpu="2")], initContainers=[first, sidecar])) == {"cpu": "4"}
    assert _asks(_pod(containers=[_container("a", cpu="1")], initContainers=[sidecar, last])) == {"cpu": "5"}


def test_overhead_comes_on_top() -> None:
    """The overhead of the runtime class is added."""
    pod = _pod(containers=[_container("a", cpu="1")], overhead={"cpu": "250m", "memory": "64Mi"})
    assert _asks(pod) == {"cpu": "1250m", "memory": "64Mi"}


def test_pod_level_requests_take_the_place_of_the_sum() -> None:
    """Pod-level requests replace the sum for cpu, memory and huge pages; overhead is still added, and devices are the
    containers' own."""
    pod = _pod(
        containers=[_container("a", cpu="1", memory="1Gi", **{"nvidia.com/gpu": "1"})],
        resources={"requests": {"cpu": "3", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "9"}},
        overhead={"cpu": "1"},
    )
    assert _asks(pod) == {"cpu": "4", "hugepages-2Mi": "4Mi", "memory": "1Gi", "nvidia.com/gpu": "1"}


def test_limit_without_a_request_is_the_request() -> None:
    """A limit without a request is the request, as the API server defaults it."""
    assert _asks(_pod(containers=[{"name": "a", "resources": {"limits": {"cpu": "2"}}}])) == {"cpu": "2"}


@pytest.mark.parametrize(
    ("in_force", "granted", "counts"),
    [("4", "4", "4"), ("1", "4", "4"), ("1", "1", "2"), ("2", "2", "2")],
)
def test_largest_counts_during_a_resize(in_force: str, granted: str, counts: str) -> None:
    """During a resize the largest of the requested, granted and actual amounts counts, so that a shrink frees nothing
    before it is done."""
    status = {"name": "a", "resources": {"requests": {"cpu": in_force}}, "allocatedResources": {"cpu": granted}}
    pod = _pod({"containerStatuses": [status]}, containers=[_container("a", cpu="2")])
    assert _asks(pod) == {"cpu": counts}


def test_resize_that_can_not_be_is_not_counted() -> None:
    """An infeasible resize is not counted, because the node will never grant it."""
    status = {
        "containerStatuses": [
            {"name": "a", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}},
        ],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
    }
    assert _asks(_pod(status, containers=[_container("a", cpu="64")])) == {"cpu": "1"}
    # Containers that the kubelet does not report count as nothing then, as in kube-scheduler from 1.37 on.
    assert _asks(_pod(status, containers=[_container("a", cpu="64"), _container("b", cpu="1")])) == {"cpu": "1"}


def test_three_sums_are_compared_during_a_resize() -> None:
    """When one container grows and another shrinks, the requested, granted and actual amounts are each summed before
    they are compared."""
    reports = [
        {"name": name, "resources": {"requests": {"cpu": held}}, "allocatedResources": {"cpu": held}}
        for name, held in (("a", "1"), ("b", "4"))
    ]
    pod = _pod({"containerStatuses": reports}, containers=[_container("a", cpu="3"), _container("b", cpu="1")])
    assert _asks(pod) == {"cpu": "5"}


def test_a_resize_without_an_actual_value_counts_the_larger_request() -> None:
    """A grant without a reported actual amount counts as both; it is the time between the grant and the change of the
    control group."""
    report = {"name": "a", "allocatedResources": {"cpu": "4"}}
    assert _asks(_pod({"containerStatuses": [report]}, containers=[_container("a", cpu="2")])) == {"cpu": "4"}


def test_resize_of_an_init_step_is_counted() -> None:
    """A resize of a running init container is counted as for the others."""
    report = {"name": "i", "resources": {"requests": {"cpu": "9"}}, "allocatedResources": {"cpu": "9"}}
    pod = _pod(
        {"initContainerStatuses": [report]},
        containers=[_container("a", cpu="1")],
        initContainers=[_container("i", cpu="3")],
    )
    assert _asks(pod) == {"cpu": "9"}


def test_what_the_pod_as_a_whole_holds_takes_the_place_of_the_sum_of_its_containers() -> None:
    """The amount of the pod as a whole replaces the sum of its containers; a kubelet reports both from 1.36 on, also
    for a pod without requests of its own."""
    report = {"name": "a", "resources": {"requests": {"cpu": "9"}}, "allocatedResources": {"cpu": "9"}}
    status = {
        "containerStatuses": [report],
        "resources": {"requests": {"cpu": "2"}},
        "allocatedResources": {"cpu": "3"},
    }
    assert _asks(_pod(status, containers=[_container("a", cpu="1")])) == {"cpu": "3"}
    refused = {**status, "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
    assert _asks(_pod(refused, containers=[_container("a", cpu="64")])) == {"cpu": "3"}


def test_resize_of_the_pod_itself_is_counted_too() -> None:
    """A resize of the pod itself is counted as for a container."""
    status = {"resources": {"requests": {"cpu": "5"}}, "allocatedResources": {"cpu": "5"}}
    pod = _pod(status, containers=[_container("a", cpu="1")], resources={"requests": {"cpu": "2"}})
    assert _asks(pod) == {"cpu": "5"}
    refused = {**status, "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
    pod = _pod(refused, containers=[_container("a", cpu="1")], resources={"requests": {"cpu": "64"}})
    assert _asks(pod) == {"cpu": "5"}


def test_host_ports_are_those_that_last() -> None:
    """The host ports are those of containers and sidecars; an init step frees its port before the others start."""
    ports = {"ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}
    pod = _pod(
        containers=[{"name": "a", **ports}],
        initContainers=[
            {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 9100}]},
            {"name": "i", "ports": [{"containerPort": 2, "hostPort": 9200}]},
        ],
    )
    assert host_ports_of(pod) == (9100, 8080)
