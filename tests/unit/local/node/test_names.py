"""Names and addresses of pods on one machine."""

import pytest

from slipway.crd.meta import ObjectMeta
from slipway.local.node.names import SHARED, Addresses, PeerNames
from slipway.local.node.podview import NodePod

RANK = NodePod(
    metadata=ObjectMeta(name="run-1-0", namespace="team", uid="u0"),
    spec={"hostname": "run-1-0", "subdomain": "run-1"},
)


@pytest.fixture
def peers() -> PeerNames:
    names = PeerNames()
    names.put(RANK, "127.70.1.2")
    return names


@pytest.mark.parametrize(
    "name",
    ["run-1-0.run-1", "run-1-0.run-1.team", "run-1-0.run-1.team.svc", "run-1-0.run-1.team.svc.cluster.local"],
)
def test_every_form_of_a_name_is_resolved(peers: PeerNames, name: str):
    """Every form of a name is resolved: with and without namespace, `svc` and the cluster's domain, anywhere in a
    text."""
    assert peers.resolve(name, RANK) == ("127.70.1.2", set())
    assert peers.resolve(f"tcp://{name}:29500/x,{name}", RANK)[0] == "tcp://127.70.1.2:29500/x,127.70.1.2"


@pytest.mark.parametrize(
    "text",
    ["example.org", "run-1-0.run-2.team.svc", "my.run-1-0.run-1x", "1.5", "v1.2.3", "run-1-0", "a.run-1.other.svc"],
)
def test_other_names_stay_and_are_not_waited_for(peers: PeerNames, text: str):
    """Other names stay unchanged and are not waited for, because they may be real hosts."""
    assert peers.resolve(text, RANK) == (text, set())


def test_a_peer_that_is_not_there_is_missing(peers: PeerNames):
    """An unknown name below the own subdomain is a missing peer."""
    assert peers.resolve("run-1-7.run-1.team.svc", RANK) == ("run-1-7.run-1.team.svc", {"run-1-7.run-1.team.svc"})


def test_a_pod_that_is_gone_is_not_found(peers: PeerNames):
    """The name of a deleted pod is missing again."""
    peers.drop(RANK)
    assert peers.resolve("run-1-0.run-1", RANK)[1] == {"run-1-0.run-1"}


def test_addresses_are_stable_and_never_shared():
    """An address is a function of the pod's uid, or another one when it is in use; after the release it is free
    again."""
    addresses = Addresses(several=True)
    first = addresses.claim("a")
    assert addresses.claim("a") == first
    assert Addresses(several=True).claim("a") == first
    assert addresses.claim("b", wanted=first) != first
    addresses.release("a")
    assert addresses.claim("c", wanted=first) == first
    taken = [addresses.claim(f"u{index}") for index in range(3000)]
    assert len(set(taken)) == len(taken)
    assert all(64 <= int(each.split(".")[1]) < 128 for each in taken)
    assert not any(each.endswith((".0", ".255")) for each in taken)


def test_a_machine_with_one_address_shares_it():
    """On a machine with one address all pods share it, as on systems that answer only on 127.0.0.1."""
    addresses = Addresses(several=False)
    assert {addresses.claim("a"), addresses.claim("b", "127.70.0.1")} == {SHARED}
