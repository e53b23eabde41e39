"""What a pod takes from its node: every part of it that kube-scheduler counts, and nothing else."""

from typing import Any

import msgspec
import pytest

from slipway.kube.objects import Pod
from slipway.kube.podrequests import host_ports_of, requests_of

Json = dict[str, Any]


def _pod(status: Json | None = None, **spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": status or {}}, Pod)


def _container(name: str, **requests: str) -> Json:
    return {"name": name, "resources": {"requests": requests}}


def _asks(pod: Pod) -> dict[str, str]:
    return requests_of(pod).quantities()


def test_containers_are_summed() -> None:
    """All of them run at the same time."""
    pod = _pod(containers=[_container("a", cpu="500m", memory="1Gi"), _container("b", cpu="1")])
    assert _asks(pod) == {"cpu": "1500m", "memory": "1Gi"}


def test_largest_init_step_counts_when_it_is_larger() -> None:
    """Init containers run one after the other, before the others."""
    pod = _pod(
        containers=[_container("a", cpu="1", memory="1Gi")],
        initContainers=[_container("big", cpu="3"), _container("fat", memory="4Gi")],
    )
    assert _asks(pod) == {"cpu": "3", "memory": "4Gi"}


def test_sidecars_run_beside_everything_that_follows() -> None:
    """They are added to the containers, and to each init step after them."""
    sidecar = {**_container("side", cpu="2"), "restartPolicy": "Always"}
    first, last = _container("first", cpu="3"), _container("last", cpu="3")
    assert _asks(_pod(containers=[_container("a", cpu="1")], initContainers=[first, sidecar])) == {"cpu": "3"}
    assert _asks(_pod(containers=[_container("a", cpu="2")], initContainers=[first, sidecar])) == {"cpu": "4"}
    assert _asks(_pod(containers=[_container("a", cpu="1")], initContainers=[sidecar, last])) == {"cpu": "5"}


def test_overhead_comes_on_top() -> None:
    """What the runtime class adds."""
    pod = _pod(containers=[_container("a", cpu="1")], overhead={"cpu": "250m", "memory": "64Mi"})
    assert _asks(pod) == {"cpu": "1250m", "memory": "64Mi"}


def test_pod_level_requests_take_the_place_of_the_sum() -> None:
    """For cpu, memory and huge pages; overhead still comes on top, devices are the containers' own."""
    pod = _pod(
        containers=[_container("a", cpu="1", memory="1Gi", **{"nvidia.com/gpu": "1"})],
        resources={"requests": {"cpu": "3", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "9"}},
        overhead={"cpu": "1"},
    )
    assert _asks(pod) == {"cpu": "4", "hugepages-2Mi": "4Mi", "memory": "1Gi", "nvidia.com/gpu": "1"}


def test_limit_without_a_request_is_the_request() -> None:
    """As the API server fills it in."""
    assert _asks(_pod(containers=[{"name": "a", "resources": {"limits": {"cpu": "2"}}}])) == {"cpu": "2"}


@pytest.mark.parametrize(
    ("in_force", "granted", "counts"),
    [("4", "4", "4"), ("1", "4", "4"), ("1", "1", "2"), ("2", "2", "2")],
)
def test_largest_counts_during_a_resize(in_force: str, granted: str, counts: str) -> None:
    """Asked for, granted and in force: a shrink gives nothing back before it is done."""
    status = {"name": "a", "resources": {"requests": {"cpu": in_force}}, "allocatedResources": {"cpu": granted}}
    pod = _pod({"containerStatuses": [status]}, containers=[_container("a", cpu="2")])
    assert _asks(pod) == {"cpu": counts}


def test_resize_that_can_not_be_is_not_counted() -> None:
    """The node will never grant it."""
    status = {
        "containerStatuses": [
            {"name": "a", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}},
        ],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
    }
    assert _asks(_pod(status, containers=[_container("a", cpu="64")])) == {"cpu": "1"}
    # What the kubelet reports nothing of counts nothing then, as to kube-scheduler from 1.37 on.
    assert _asks(_pod(status, containers=[_container("a", cpu="64"), _container("b", cpu="1")])) == {"cpu": "1"}


def test_three_sums_are_compared_during_a_resize() -> None:
    """One container grows and another shrinks: what is asked for, granted and in force is summed first."""
    reports = [
        {"name": name, "resources": {"requests": {"cpu": held}}, "allocatedResources": {"cpu": held}}
        for name, held in (("a", "1"), ("b", "4"))
    ]
    pod = _pod({"containerStatuses": reports}, containers=[_container("a", cpu="3"), _container("b", cpu="1")])
    assert _asks(pod) == {"cpu": "5"}


def test_grant_without_a_word_of_what_is_in_force_counts_as_both() -> None:
    """Between the grant and the change of the control group."""
    report = {"name": "a", "allocatedResources": {"cpu": "4"}}
    assert _asks(_pod({"containerStatuses": [report]}, containers=[_container("a", cpu="2")])) == {"cpu": "4"}


def test_resize_of_an_init_step_is_counted() -> None:
    """An init container that runs can be resized as the others can."""
    report = {"name": "i", "resources": {"requests": {"cpu": "9"}}, "allocatedResources": {"cpu": "9"}}
    pod = _pod(
        {"initContainerStatuses": [report]},
        containers=[_container("a", cpu="1")],
        initContainers=[_container("i", cpu="3")],
    )
    assert _asks(pod) == {"cpu": "9"}


def test_what_the_pod_as_a_whole_holds_takes_the_place_of_the_sum_of_its_containers() -> None:
    """A kubelet reports both from 1.36 on, also of a pod that asks for nothing itself."""
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
    """As for a container."""
    status = {"resources": {"requests": {"cpu": "5"}}, "allocatedResources": {"cpu": "5"}}
    pod = _pod(status, containers=[_container("a", cpu="1")], resources={"requests": {"cpu": "2"}})
    assert _asks(pod) == {"cpu": "5"}
    refused = {**status, "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
    pod = _pod(refused, containers=[_container("a", cpu="1")], resources={"requests": {"cpu": "64"}})
    assert _asks(pod) == {"cpu": "5"}


def test_host_ports_are_those_that_last() -> None:
    """Of containers and sidecars; an init step gives its port back before the others start."""
    ports = {"ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}
    pod = _pod(
        containers=[{"name": "a", **ports}],
        initContainers=[
            {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 9100}]},
            {"name": "i", "ports": [{"containerPort": 2, "hostPort": 9200}]},
        ],
    )
    assert host_ports_of(pod) == (9100, 8080)
