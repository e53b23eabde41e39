"""The facts about an allocation's roles that placement uses."""

from typing import Any

import pytest

from slipway.crd.homes import claim_name
from slipway.crd.meta import ANNOTATION_USER, ObjectMeta
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, PortSpec, ResourcePool, ResourcePoolSpec
from slipway.facts.custom_resources import allocation_fact
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
    """The fact contains the host ports of a rank, so that two ranks with the same one are not placed on one node; with
    host networking all ports are host ports."""
    assert _ports([PortSpec(name="board", port=6006)], **pod) == held


def test_the_claim_of_a_home_is_mounted_by_every_role() -> None:
    """Every role mounts the claim of the home, and a plan uses the place of its volume as for any other claim. An
    allocation that was applied without a user has no home."""
    spec = AllocationSpec(kind=Kind.COMMAND, template={"spec": {"containers": [_container()]}}, home=True)
    meta = ObjectMeta(name="job", uid="u", annotations={ANNOTATION_USER: "ada"})
    fact = allocation_fact(Allocation(metadata=meta, spec=spec), PRIVILEGED)
    assert (fact.home, fact.roles[0].claims) == (claim_name("ada"), (claim_name("ada"),))
    nobody = allocation_fact(Allocation(metadata=ObjectMeta(name="job", uid="u"), spec=spec), PRIVILEGED)
    assert (nobody.home, nobody.roles[0].claims) == ("", ())
