"""A node refuses pods that do not fit, in the words of a kubelet 1.36."""

from typing import Any

import pytest

from tests.conformance.kubelets.admission import NodeResources, mismatch
from tests.conformance.kubelets.builders import a_pod
from tests.conformance.kubelets.nodes import Shape
from tests.conformance.kubelets.objects import Json, Pod, Taint

GPU = "nvidia.com/gpu"


def asking(uid: str = "u-1", **requests: str) -> Pod:
    """A pod of one container that requests these resources."""
    asked = {name.replace("gpu", GPU): value for name, value in requests.items()}
    resources = {"requests": asked, "limits": {name: value for name, value in asked.items() if name == GPU}}
    return a_pod(metadata={"uid": uid}, containers=[{"name": "main", "resources": resources}])


def room(**more: Any) -> NodeResources:
    """A small node."""
    return NodeResources(Shape(cpu="4", memory="1Gi", pods=3, **more).allocatable())


@pytest.mark.parametrize(
    ("requests", "reason", "words"),
    [
        ({"cpu": "3500m"}, "OutOfcpu", "cpu, requested: 3500, used: 1000, capacity: 4000"),
        ({"memory": "2Gi"}, "OutOfmemory", "memory, requested: 2147483648, used: 0, capacity: 1073741824"),
        ({"cpu": "9", "memory": "2Gi"}, "OutOfcpu", "cpu, requested: 9000, used: 1000, capacity: 4000"),
    ],
)
def test_what_does_not_fit_is_named(requests: dict[str, str], reason: str, words: str) -> None:
    """The refusal names the first lacking resource in the kubelet's order, with the requested, used and total
    amounts."""
    node = room()
    assert node.admit(asking("first", cpu="1")) is None
    rejection = node.admit(asking(**requests))
    assert rejection is not None
    assert (rejection.reason, rejection.message) == (reason, f"Node didn't have enough resource: {words}")


def test_a_released_pod_frees_its_pod_slot() -> None:
    """A node refuses a pod with OutOfpods until another one has ended."""
    node = room()
    assert [node.admit(asking(f"u-{index}")) for index in range(3)] == [None, None, None]
    rejection = node.admit(asking("u-3"))
    assert rejection is not None
    assert rejection.reason == "OutOfpods"
    node.release("u-0")
    assert node.admit(asking("u-3")) is None


def test_devices_are_refused_by_their_plugin() -> None:
    """UnexpectedAdmissionError names the number of devices that are left."""
    node = room(extended={GPU: "2"})
    assert node.admit(asking("first", gpu="1")) is None
    rejection = node.admit(asking(gpu="2"))
    assert rejection is not None
    assert rejection.reason == "UnexpectedAdmissionError"
    words = "requested number of devices unavailable for nvidia.com/gpu. Requested: 2, Available: 1"
    assert rejection.message == f"Allocate failed due to {words}, which is unexpected"


def test_an_unknown_resource_is_no_reason_to_refuse() -> None:
    """A node admits a request for a resource that it does not know, as a kubelet does: the manager of the resource
    decides."""
    assert room().admit(asking(gpu="2")) is None


def terms(key: str, operator: str, *values: str) -> Json:
    """An affinity of one expression."""
    expression = {"key": key, "operator": operator, "values": list(values)}
    wanted = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": wanted}}}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, ""),
        ({"nodeSelector": {"disk": "fast"}}, ""),
        ({"nodeSelector": {"disk": "slow"}}, "NodeAffinity"),
        (terms("disk", "In", "fast", "slow"), ""),
        (terms("disk", "NotIn", "fast"), "NodeAffinity"),
        (terms("zone", "DoesNotExist"), ""),
        (terms("zone", "Exists"), "NodeAffinity"),
        (terms("size", "Gt", "7"), ""),
        (terms("size", "Lt", "7"), "NodeAffinity"),
        ({"tolerations": [{"operator": "Exists"}]}, ""),
    ],
)
def test_selectors_and_affinity_must_match(spec: Json, reason: str) -> None:
    """A node refuses a pod whose selector or affinity does not match, whichever scheduler bound it."""
    rejection = mismatch(a_pod(**spec), "node-0", {"disk": "fast", "size": "8"}, ())
    assert (rejection.reason if rejection else "") == reason


def test_only_noexecute_taints_are_checked() -> None:
    """A node ignores NoSchedule taints: only a scheduler uses them."""
    taints = [Taint(key="gpu", effect="NoSchedule")]
    assert mismatch(a_pod(), "node-0", {}, taints) is None
    taints.append(Taint(key="dying", effect="NoExecute"))
    rejection = mismatch(a_pod(), "node-0", {}, taints)
    assert rejection is not None
    assert rejection.reason == "TaintToleration"
    tolerant = a_pod(tolerations=[{"key": "dying", "operator": "Exists", "effect": "NoExecute"}])
    assert mismatch(tolerant, "node-0", {}, taints) is None
