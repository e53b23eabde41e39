"""What placement is told of an allocation's roles."""

from typing import Any

import pytest

from slipway.crd.facts import allocation_fact
from slipway.crd.meta import ObjectMeta
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, PortSpec, ResourcePool, ResourcePoolSpec
from slipway.model.lifecycle import Kind

PRIVILEGED = ResourcePool(metadata=ObjectMeta(name="default"), spec=ResourcePoolSpec(privileged_templates=True))


def _ports(ports: list[PortSpec], **pod: Any) -> tuple[int, ...]:
    spec = AllocationSpec(kind=Kind.COMMAND, template={"spec": pod}, ports=ports)
    fact = allocation_fact(Allocation(metadata=ObjectMeta(name="job", uid="u"), spec=spec), PRIVILEGED)
    assert not fact.invalid
    return fact.roles[0].host_ports


def _container(**fields: Any) -> dict[str, Any]:
    return {"name": "main", "image": "i:1", "command": ["x"], **fields}


@pytest.mark.parametrize(
    ("pod", "held"),
    [
        ({"containers": [_container(ports=[{"containerPort": 80}])]}, ()),
        ({"containers": [_container(ports=[{"containerPort": 80, "hostPort": 8080}])]}, (8080,)),
        ({"containers": [_container(ports=[{"containerPort": 80}])], "hostNetwork": True}, (80, 6006)),
        (
            {
                "containers": [_container()],
                "initContainers": [
                    {
                        "name": "s",
                        "image": "i:1",
                        "restartPolicy": "Always",
                        "ports": [{"hostPort": 91, "containerPort": 1}],
                    },
                    {"name": "i", "image": "i:1", "ports": [{"hostPort": 92, "containerPort": 2}]},
                ],
            },
            (91,),
        ),
    ],
)
def test_ports_of_the_node_that_a_rank_holds_are_told(pod: dict[str, Any], held: tuple[int, ...]) -> None:
    """So that two ranks that need the same one are not put on one node; on the host's network that is every port."""
    assert _ports([PortSpec(name="board", port=6006)], **pod) == held
