"""The rendezvous port of gangs that share a machine."""

import socket
from typing import Any

from slipway.crd.meta import ObjectMeta
from slipway.local.node.names import RendezvousPorts
from slipway.local.node.podview import NodePod
from slipway.pods.rendezvous import MASTER_PORT


def a_pod(gang: str, rank: int = 0) -> NodePod:
    """A rank of a gang; without a name of the gang, a single rank."""
    name = f"{gang or 'alone'}-{rank}"
    return NodePod(
        metadata=ObjectMeta(name=name, namespace="team", uid=f"uid-{name}"),
        spec={"hostname": name, **({"subdomain": gang} if gang else {})},
    )


def master_port_of(ports: RendezvousPorts, pod: NodePod, value: str = str(MASTER_PORT)) -> str:
    """The MASTER_PORT that the pod starts with."""
    env: list[dict[str, Any]] = [{"name": "A", "value": "29500"}, {"name": "MASTER_PORT", "value": value}]
    found = ports.with_gang_port({"name": "main", "env": env}, pod)["env"]
    assert found[0] == env[0]
    return str(found[1]["value"])


def test_the_ranks_of_a_gang_share_a_port_and_two_gangs_do_not() -> None:
    """The ranks of a gang share a port, and two gangs have different ports; otherwise the second gang would reach the
    store of the first."""
    ports = RendezvousPorts()
    first = {master_port_of(ports, a_pod("a", rank)) for rank in range(3)}
    second = {master_port_of(ports, a_pod("b", rank)) for rank in range(3)}
    assert len(first) == len(second) == 1
    assert first.isdisjoint(second)


def test_ranks_that_are_alone_have_ports_of_their_own() -> None:
    """Single ranks have their own ports, because each may start several processes."""
    ports = RendezvousPorts()
    assert master_port_of(ports, a_pod("", 0)) != master_port_of(ports, a_pod("", 1))


def test_a_port_is_free_again_when_the_last_rank_is_gone() -> None:
    """A port is free again when the last rank is gone, not before."""
    ports = RendezvousPorts()
    port = master_port_of(ports, a_pod("a", 0))
    master_port_of(ports, a_pod("a", 1))
    ports.release(a_pod("a", 0).metadata.uid)
    assert master_port_of(ports, a_pod("b")) != port
    ports.release(a_pod("a", 1).metadata.uid)
    assert master_port_of(ports, a_pod("c")) == port


def test_a_port_on_which_another_program_listens_is_passed_over() -> None:
    """A port on which another program listens is skipped, also when it listens on one address only, because the usual
    stores listen on all."""
    ports = RendezvousPorts()
    port = int(master_port_of(ports, a_pod("a")))
    ports.release(a_pod("a").metadata.uid)
    with socket.create_server(("127.70.0.1", port)):
        assert master_port_of(ports, a_pod("b")) != str(port)


def test_a_port_that_a_user_names_stays() -> None:
    """A port that a user sets stays."""
    ports = RendezvousPorts()
    assert {master_port_of(ports, a_pod("a"), "4444"), master_port_of(ports, a_pod("b"), "4444")} == {"4444"}
