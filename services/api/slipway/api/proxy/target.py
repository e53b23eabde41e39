"""Where a proxied request goes: only ever to a port that the allocation declares, on the pod that its release names.

Owns the path grammar `/proxy/{id}[/{port}]/...`, which workloads see the prefix of their paths, and which addresses are
those of a pod. Nothing of the request but id and port takes part in the choice of the target.

Invariants: what is connected to is the very address that was checked, never a name; a pod whose address is that of
this process's own machine, of its neighbours on the link, of a cloud's metadata service or of a node leads nowhere,
unless an operator named the network. Nothing is sent over a new connection before a read that began after it was made
has shown that the pod of that uid still runs at that address (`confirm`): one that has passed to another pod leads
nowhere.

Not promised:
- that the address is the pod's own. A node says which addresses its pods have: one that is taken over can name that of
  another pod, of a Service, or of a machine which is no node of the cluster;
- that Kubernetes knows at once that a pod has ended. Between the end of its sandbox, which sets the address free, and
  the kubelet's report of it, the pod still seems to run.
"""

import ipaddress
from collections.abc import Callable, Sequence

import msgspec

from slipway.api.explain import standing
from slipway.api.http_errors import ForbiddenError, NotListeningError
from slipway.api.lookup import Lookup
from slipway.api.networks import IP, METADATA, Network, inner, is_within, normal_text, parse_networks
from slipway.api.ports import Kube
from slipway.api.proxy.own_addresses import is_own
from slipway.api.queue_view import gate_of, is_waiting
from slipway.api.seen_nodes import BY_ADDRESS, SeenNode
from slipway.api.ttl_cache import Recent
from slipway.crd.kinds import defaults_of
from slipway.crd.members import pod_uids
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, PortSpec
from slipway.errors import NotFoundError
from slipway.kube.objects import Pod
from slipway.kube.resources import PODS
from slipway.kube.store import ObjectStore
from slipway.model.ids import AllocationId, pod_name
from slipway.model.lifecycle import Kind, Phase
from slipway.runtime.clock import Clock

TTL_S = 1.0
ROOT = "/proxy"
_TRANSLATED = parse_networks(("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "2001::/32"))
"""IPv6 addresses that a router may turn into any IPv4 one, in ways that only the router knows; no pod lives at one.

Source: RFC 4291 (IPv4-compatible), RFC 2765 (IPv4-translated), RFC 8215 (local NAT64), RFC 4380 (Teredo).
"""
_OF_NO_MACHINE = parse_networks(("0.0.0.0/8", "255.255.255.255/32"))
PREFIX_AWARE = (Kind.NOTEBOOK, Kind.TENSORBOARD)
"""Kinds whose servers are started with the prefix (`$(SLIPWAY_PROXY_PREFIX)`) and expect it in every path."""


class ProxyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A server to talk to. `path` is what it is asked for, with the query; `prefix` is where the client sees it."""

    allocation: AllocationId
    kind: Kind
    namespace: str
    pod: str
    pod_uid: str
    host: str
    port: int
    scheme: str
    path: bytes
    prefix: str
    is_stripped: bool

    @property
    def is_tls(self) -> bool:
        """Whether it speaks TLS."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NotYet(msgspec.Struct, frozen=True, kw_only=True):
    """There is nothing to talk to, now or any more."""

    allocation: AllocationId
    kind: Kind
    phase: Phase
    message: str
    has_ended: bool = False


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an allocation, whatever the path."""

    allocation: Allocation
    ip: str
    pod: str = ""
    pod_uid: str = ""


class Targets:
    """Finds targets; what it found is kept for a second, because a page asks for a hundred things at once."""

    def __init__(
        self,
        kube: Kube,
        lookup: Lookup,
        clock: Clock,
        nodes: ObjectStore[SeenNode],
        allowed: Sequence[Network] = (),
    ) -> None:
        """`nodes` has the index BY_ADDRESS; of nodes that it does not hold yet, nothing is known."""
        self._kube = kube
        self._allowed = allowed
        self._nodes = nodes
        self._lookup = lookup
        self._places = Recent[str, _Place](clock, ttl_s=TTL_S)

    async def find(self, given: str, path: bytes, query: bytes) -> ProxyTarget | NotYet:
        """The target of a request for `path` (raw, below `/proxy/{id}`; begins with a slash).

        Raises:
            NotFoundError: no such allocation, or it serves no such port.
            ForbiddenError: its pod has an address that is no pod's own.
        """
        place = await self._places.get(given, lambda: self._locate(given))
        allocation = place.allocation
        allocation_id = id_of(allocation)
        port, rest = _split_port(allocation, path)
        if not place.ip:
            return _not_yet(allocation)
        root = f"{ROOT}/{allocation_id}"
        is_stripped = allocation.spec.kind not in PREFIX_AWARE or port != next(iter(_http(allocation)), None)
        prefix = f"{root}/{port.port}" if is_stripped and rest != path else root
        sent = rest if is_stripped else root.encode() + rest
        return ProxyTarget(
            allocation=allocation_id,
            kind=allocation.spec.kind,
            namespace=allocation.metadata.namespace,
            pod=place.pod,
            pod_uid=place.pod_uid,
            host=place.ip,
            port=port.port,
            scheme=port.scheme,
            path=sent + (b"?" + query if query else b""),
            prefix=prefix,
            is_stripped=is_stripped,
        )

    async def confirm(self, target: ProxyTarget) -> None:
        """Reads whether the pod is still the one at that address; called after a connection was made, before its use.

        Raises:
            NotListeningError: it is not, or not any more.
            TransientError: it cannot be read.
        """
        try:
            pod = await self._kube.get(PODS, target.pod, namespace=target.namespace)
        except NotFoundError:
            pod = None
        is_same = pod is not None and pod.metadata.uid == target.pod_uid
        if pod is None or not is_same or pod.status.phase != "Running" or pod.status.pod_ip != target.host:
            raise NotListeningError(
                f"pod {target.pod} of {target.allocation} does not run at {target.host} any more; the address may "
                "belong to another pod by now, and was sent nothing"
            )

    def forget(self, given: str) -> None:
        """Look again next time: the target did not answer."""
        self._places.forget(given)

    def _is_a_nodes(self, address: str) -> bool:
        return self._nodes.count(BY_ADDRESS, address) > 0

    async def _locate(self, given: str) -> _Place:
        allocation = await self._lookup.find(given)
        status = allocation.status
        if status.phase not in (Phase.STARTING, Phase.RUNNING, Phase.TERMINATING):
            return _Place(allocation=allocation, ip="")
        name = pod_name(id_of(allocation), status.attempt, 0)
        try:
            pod = await self._kube.get(PODS, name, namespace=allocation.metadata.namespace)
        except NotFoundError:
            return _Place(allocation=allocation, ip="")
        ip = _ip(pod, allocation)
        if ip:
            check_pod_address(pod, self._allowed, is_a_nodes=self._is_a_nodes, is_ours=is_own)
        return _Place(allocation=allocation, ip=ip, pod=name, pod_uid=pod.metadata.uid)


def check_pod_address(
    pod: Pod, allowed: Sequence[Network], *, is_a_nodes: Callable[[str], bool], is_ours: Callable[[IP], bool]
) -> None:
    """Accepts the address of a pod that can be its own, or is of a network that is allowed.

    `is_a_nodes` says of an address (as `normal_text` spells it) whether a node has it, `is_ours` whether this machine.

    Raises:
        ForbiddenError: it is this machine's, its link's, a metadata service's, a node's, or none.
    """
    text = pod.status.pod_ip
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    # A zone is an interface of this machine, so an address with one is no pod's; and it would compare as another.
    if address is None or "%" in text:
        raise ForbiddenError(f"pod {pod.metadata.name} says that its address is {text[:80]!r}, which is none")
    if is_within(address, allowed):
        return
    own = inner(address)
    if pod.spec.host_network or normal_text(text) == normal_text(pod.status.host_ip):
        kind = "its node's own"
    elif own.is_loopback or own.is_unspecified:
        kind = "the api's own machine"
    elif is_a_nodes(normal_text(text)):
        kind = "that of a node"
    elif own.is_link_local:
        kind = "link-local, where clouds serve the credentials of machines"
    elif is_within(own, METADATA):
        kind = "that of a cloud's metadata service"
    elif own.is_multicast or is_within(own, _OF_NO_MACHINE):
        kind = "that of no machine"
    elif is_within(own, _TRANSLATED):
        kind = "one that leads to another"
    elif is_ours(own):  # last: sockets can be bound to multicast addresses too
        kind = "the api's own machine"
    else:
        return
    raise ForbiddenError(
        f"the address {text} of pod {pod.metadata.name} is {kind}: the proxy leads to addresses of pods only; use "
        "kubectl port-forward, or let an operator allow the network with SLIPWAY_PROXY_NETWORKS"
    )


def _ip(pod: Pod, allocation: Allocation) -> str:
    """The pod's address; empty unless it runs and our release names it: a name alone proves nothing."""
    return pod.status.pod_ip if pod.metadata.uid in pod_uids(allocation) and pod.status.phase == "Running" else ""


def _split_port(allocation: Allocation, path: bytes) -> tuple[PortSpec, bytes]:
    """The port that is meant, and the path without it: a first segment that is a declared port names it."""
    ports = _ports(allocation)
    first, slash, rest = path.removeprefix(b"/").partition(b"/")
    named = next((port for port in ports if first == str(port.port).encode()), None)
    if named is not None:
        return named, slash + rest or b"/"
    return _served(allocation)[0], path


def _served(allocation: Allocation) -> list[PortSpec]:
    """The ports that speak HTTP, the default one first. Raises NotFoundError when there is none."""
    served = _http(allocation)
    if not served:
        raise NotFoundError(
            f"allocation {id_of(allocation)} serves nothing: launch it with ports, such as "
            '[{"name": "http", "port": 8080}]'
        )
    return served


def _http(allocation: Allocation) -> list[PortSpec]:
    return [port for port in _ports(allocation) if port.scheme != "tcp"]


def _ports(allocation: Allocation) -> list[PortSpec]:
    """The declared ports; an object that was applied by hand has its kind's."""
    if allocation.spec.ports:
        return allocation.spec.ports
    default = defaults_of(allocation.spec.kind, {}).port
    return [PortSpec(name="http", port=default)] if default else []


def _not_yet(allocation: Allocation) -> NotYet:
    has_ended = allocation.status.phase is Phase.TERMINATED
    message = gate_of(allocation)[1] if is_waiting(allocation) else standing(allocation)
    return NotYet(
        allocation=id_of(allocation),
        kind=allocation.spec.kind,
        phase=allocation.status.phase,
        message=message,
        has_ended=has_ended,
    )
