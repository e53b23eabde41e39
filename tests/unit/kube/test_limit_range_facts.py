"""LimitRanges and the facts that depend on them: an allocation is planned with the requests that its pods will have."""

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.facts.core_objects import fact_of, ranges_by_namespace
from slipway.kube.objects import LimitRange
from slipway.model.facts import AllocationFact, RangeBounds
from slipway.model.resources import Resources
from tests.support.allocations import Json, a_pool, an_allocation

NAMESPACE = an_allocation().metadata.namespace
TEMPLATE: Json = {
    "spec": {
        "containers": [
            {"name": "main", "image": "i:1", "command": ["run"], "resources": {"requests": {"memory": "3Gi"}}},
            {"name": "beside", "image": "i:1", "resources": {"limits": {"cpu": "2"}}},
        ]
    }
}


def a_limit_range(*items: Json, namespace: str = NAMESPACE) -> LimitRange:
    return msgspec.convert(
        {"metadata": {"name": "bounds", "namespace": namespace}, "spec": {"limits": [*items]}}, LimitRange
    )


def _fact(allocation: Allocation, *limit_ranges: LimitRange) -> AllocationFact:
    found = fact_of(allocation, {"default": a_pool()}, ranges=ranges_by_namespace(limit_ranges))
    assert isinstance(found, AllocationFact)
    return found


def test_a_rank_asks_for_what_its_pod_will_have() -> None:
    """A rank requests what its pod will have: the LimitRange adds cpu to the main container and memory to the other,
    and limits for quotas of limits."""
    item = {"type": "Container", "default": {"memory": "4Gi"}, "defaultRequest": {"cpu": "500m", "memory": "1Gi"}}
    (role,) = _fact(an_allocation(kind="command", template=TEMPLATE), a_limit_range(item)).roles
    assert role.requests == Resources.parse({"cpu": "2500m", "memory": "4Gi"})
    assert role.limits == Resources.parse({"cpu": "2", "memory": "8Gi"})


def test_a_range_of_another_namespace_changes_nothing() -> None:
    allocation = an_allocation(kind="command", template=TEMPLATE)
    item = {"type": "Container", "defaultRequest": {"cpu": "500m"}}
    assert _fact(allocation, a_limit_range(item, namespace="elsewhere")) == _fact(allocation)


def test_a_container_of_ours_is_given_what_it_lacks() -> None:
    """Our own containers, which fetch uploaded files or wait for another role, get defaults too: a LimitRange of
    devices adds devices to each."""
    item = {"type": "Container", "default": {"nvidia.com/gpu": "4"}, "defaultRequest": {"nvidia.com/gpu": "4"}}
    work: Json = {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], "workingDir": "/work"}]}}
    ranks = [{"resources": {"nvidia.com/gpu": 1}}]
    plain = _fact(an_allocation(kind="command", template=work, ranks=ranks), a_limit_range(item))
    fetching = _fact(an_allocation(kind="command", template=work, ranks=ranks, context="0" * 64), a_limit_range(item))
    assert [each.roles[0].requests.gpus() for each in (plain, fetching)] == [1, 4]
    after: Json = {"name": "b", **ranks[0], "dependsOn": [{"role": "a"}]}
    ordered = _fact(
        an_allocation(kind="command", template=work, ranks=[{"name": "a", **ranks[0]}, after]), a_limit_range(item)
    )
    assert [role.requests.gpus() for role in ordered.roles] == [1, 4]


def test_what_a_range_refuses_is_in_the_fact() -> None:
    """The fact contains what the LimitRange refuses, and names the role when there are several."""
    two = [
        {"name": "a", "resources": {"memory": "1Gi"}},
        {"name": "b", "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "4Gi"}}},
    ]
    item = {"type": "Container", "max": {"memory": "2Gi"}, "default": {"memory": "2Gi"}}
    fact = _fact(an_allocation(kind="command", template=TEMPLATE, ranks=two), a_limit_range(item))
    assert fact.out_of_range == (
        f"role b: LimitRange bounds of namespace {NAMESPACE} allows at most 2Gi of memory per container, but container "
        "main has a limit of 4Gi"
    )


@pytest.mark.parametrize("amount", ["many", "-1", "99999999999E"])
def test_what_cannot_be_read_is_left_to_the_api_server(amount: str) -> None:
    item = {"type": "Container", "default": {"cpu": amount, "memory": "1Gi"}}
    (own,) = ranges_by_namespace([a_limit_range(item)])[NAMESPACE]
    assert own.container == RangeBounds(default={"memory": "1Gi"})


def test_a_bound_of_many_petabytes_is_kept() -> None:
    """Each amount is read in its own unit: 64 bits of bytes, or of thousandths of a core."""
    (fact,) = ranges_by_namespace([a_limit_range({"type": "Pod", "max": {"memory": "20Pi", "cpu": "20P"}})])[NAMESPACE]
    assert fact.pod.max == {"memory": "20Pi"}
