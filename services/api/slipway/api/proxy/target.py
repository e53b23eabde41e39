"""Chooses the target of a proxied request: always a port that the allocation declares, on a pod of its release.

Owns the path grammar `/proxy/{id}[/{port}]/...`, which workloads see the prefix in their paths, and which addresses a
pod may have. The target depends only on the id and the port in the request.

Invariants
- The proxy connects to the address that was checked, never to a name.
- A pod address is refused if it is that of this process's own machine, a link-local one, that of a cloud's metadata
  service, or that of a node, unless an operator named the network.
- Nothing is sent over a new connection until `confirm` has read the pod again and found it running with the same uid at
  the same address. So nothing is sent to an address that has passed to another pod.

Not promised:
- that the address is the pod's own. A node reports the addresses of its pods; a compromised node can report the address
  of another pod, of a Service, or of a machine which is no node of the cluster;
- that Kubernetes knows at once that a pod has ended. The end of its sandbox frees the address. Until the kubelet
  reports that end, the pod still seems to run.

The proxy never connects to an address of this machine, whatever a pod's status claims. The check sends nothing: the
kernel binds a socket only to an address of its own machine.
"""

import ipaddress
import socket
from collections.abc import Callable, Sequence

import msgspec

from slipway.api.allocations.explain import state_sentence
from slipway.api.allocations.lookup import Lookup
from slipway.api.cluster.seen_nodes import BY_ADDRESS, SeenNode
from slipway.api.http.errors import ForbiddenError, NotListeningError
from slipway.api.http.networks import IP, METADATA, Network, inner, is_within, normal_text, parse_networks
from slipway.api.http.ttl_cache import LoadingCache
from slipway.api.ports import Kube
from slipway.api.queues.queue_view import gate_of, is_waiting
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

_UNREACHABLE = (ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:db8::1"))
"""Addresses that no machine has: they are reserved for documentation. Source: RFC 5737, RFC 3849."""


def is_own(address: IP) -> bool:
    """Whether this machine has the address.

    True for multicast addresses too. Always False where the kernel binds sockets to any address (`ip_nonlocal_bind`),
    because a bind then proves nothing.
    """
    none = next(each for each in _UNREACHABLE if each.version == address.version)
    return _can_bind(address) and not _can_bind(none)


def _can_bind(address: IP) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.bind((str(address), 0))
    except OSError:
        return False
    return True


TTL_S = 1.0
ROOT = "/proxy"
_TRANSLATED = parse_networks(("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "2001::/32"))
"""IPv6 addresses that a router may translate to any IPv4 address, by rules that only it knows; no pod has one of them.

Source: RFC 4291 (IPv4-compatible), RFC 2765 (IPv4-translated), RFC 8215 (local NAT64), RFC 4380 (Teredo).
"""
_OF_NO_MACHINE = parse_networks(("0.0.0.0/8", "255.255.255.255/32"))
PREFIX_AWARE = (Kind.NOTEBOOK, Kind.TENSORBOARD)
"""Kinds whose servers are started with the prefix (`$(SLIPWAY_PROXY_PREFIX)`) and expect it in every path."""


class ProxyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The server for a request. `path` is the path that it receives, with the query.

    `prefix` is the path under which the client sees the server.
    """

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


class NoServer(msgspec.Struct, frozen=True, kw_only=True):
    """The allocation has no server to connect to: not yet, or not any more."""

    allocation: AllocationId
    kind: Kind
    phase: Phase
    message: str
    has_ended: bool = False


class _CachedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The cached part of a target, which does not depend on the path; `ip` is empty when there is no running pod."""

    allocation: Allocation
    ip: str
    pod: str = ""
    pod_uid: str = ""


class Targets:
    """Finds targets. A result is cached for a second, because a page makes a hundred requests at once."""

    def __init__(
        self,
        kube: Kube,
        lookup: Lookup,
        clock: Clock,
        nodes: ObjectStore[SeenNode],
        allowed: Sequence[Network] = (),
    ) -> None:
        """`nodes` has the index BY_ADDRESS; addresses of nodes that are not in it yet are not recognised."""
        self._kube = kube
        self._allowed = allowed
        self._nodes = nodes
        self._lookup = lookup
        self._places = LoadingCache[str, _CachedTarget](clock, ttl_s=TTL_S)

    async def find(self, given: str, path: bytes, query: bytes) -> ProxyTarget | NoServer:
        """Return the target of a request for `path` (raw, below `/proxy/{id}`; begins with a slash).

        Raises:
            NotFoundError: no such allocation, or it serves no such port.
            ForbiddenError: its pod has an address that the proxy does not connect to.
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
        """Check that the pod still runs at that address; called on each new connection before its use.

        Raises:
            NotListeningError: the pod does not run there, or not any more.
            TransientError: the pod cannot be read.
        """
        try:
            pod = await self._kube.get(PODS, target.pod, namespace=target.namespace)
        except NotFoundError:
            pod = None
        is_same = pod is not None and pod.metadata.uid == target.pod_uid
        if pod is None or not is_same or pod.status.phase != "Running" or pod.status.pod_ip != target.host:
            raise NotListeningError(
                f"pod {target.pod} of {target.allocation} no longer runs at {target.host}; nothing was sent, "
                "because the address may belong to another pod now"
            )

    def forget(self, given: str) -> None:
        """Remove a target from the cache, because it did not answer."""
        self._places.forget(given)

    def _is_a_nodes(self, address: str) -> bool:
        return self._nodes.count(BY_ADDRESS, address) > 0

    async def _locate(self, given: str) -> _CachedTarget:
        allocation = await self._lookup.find(given)
        status = allocation.status
        if status.phase not in (Phase.STARTING, Phase.RUNNING, Phase.TERMINATING):
            return _CachedTarget(allocation=allocation, ip="")
        name = pod_name(id_of(allocation), status.attempt, 0)
        try:
            pod = await self._kube.get(PODS, name, namespace=allocation.metadata.namespace)
        except NotFoundError:
            return _CachedTarget(allocation=allocation, ip="")
        ip = _ip(pod, allocation)
        if ip:
            check_pod_address(pod, self._allowed, is_a_nodes=self._is_a_nodes, is_ours=is_own)
        return _CachedTarget(allocation=allocation, ip=ip, pod=name, pod_uid=pod.metadata.uid)


def check_pod_address(
    pod: Pod, allowed: Sequence[Network], *, is_a_nodes: Callable[[str], bool], is_ours: Callable[[IP], bool]
) -> None:
    """Check that the address can be the pod's own, or is in an allowed network.

    `is_a_nodes` returns whether a node has an address (as `normal_text` spells it), `is_ours` whether this machine has
    it.

    Raises:
        ForbiddenError: the address is that of this machine, link-local, that of a metadata service or a node, or none.
    """
    text = pod.status.pod_ip
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    # A zone names an interface of this machine, so no pod has such an address; it also breaks comparisons.
    if address is None or "%" in text:
        raise ForbiddenError(f"pod {pod.metadata.name} has the address {text[:80]!r}, which is not valid")
    if is_within(address, allowed):
        return
    own = inner(address)
    if pod.spec.host_network or normal_text(text) == normal_text(pod.status.host_ip):
        kind = "that of its own node"
    elif own.is_loopback or own.is_unspecified:
        kind = "that of the api's own machine"
    elif is_a_nodes(normal_text(text)):
        kind = "that of a node"
    elif own.is_link_local:
        kind = "link-local, where clouds serve the credentials of machines"
    elif is_within(own, METADATA):
        kind = "that of a cloud's metadata service"
    elif own.is_multicast or is_within(own, _OF_NO_MACHINE):
        kind = "a multicast or reserved address"
    elif is_within(own, _TRANSLATED):
        kind = "a translated address"
    elif is_ours(own):  # last: sockets can be bound to multicast addresses too
        kind = "that of the api's own machine"
    else:
        return
    raise ForbiddenError(
        f"the address {text} of pod {pod.metadata.name} is {kind}: the proxy connects only to addresses of pods; "
        "use kubectl port-forward, or ask an operator to allow the network with SLIPWAY_PROXY_NETWORKS"
    )


def _ip(pod: Pod, allocation: Allocation) -> str:
    """Return the pod's address; empty unless the pod runs and its uid is in the release. Any pod may have its name."""
    return pod.status.pod_ip if pod.metadata.uid in pod_uids(allocation) and pod.status.phase == "Running" else ""


def _split_port(allocation: Allocation, path: bytes) -> tuple[PortSpec, bytes]:
    """Return (port, path without the port): a declared port as the first segment, else the default port."""
    ports = _ports(allocation)
    first, slash, rest = path.removeprefix(b"/").partition(b"/")
    named = next((port for port in ports if first == str(port.port).encode()), None)
    if named is not None:
        return named, slash + rest or b"/"
    return _served(allocation)[0], path


def _served(allocation: Allocation) -> list[PortSpec]:
    """Return the ports that speak HTTP, the default one first. Raises NotFoundError when there is none."""
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
    """Return the declared ports; an object that was applied by hand may have none, and gets those of its kind."""
    if allocation.spec.ports:
        return allocation.spec.ports
    default = defaults_of(allocation.spec.kind, {}).port
    return [PortSpec(name="http", port=default)] if default else []


def _not_yet(allocation: Allocation) -> NoServer:
    has_ended = allocation.status.phase is Phase.TERMINATED
    message = gate_of(allocation)[1] if is_waiting(allocation) else state_sentence(allocation)
    return NoServer(
        allocation=id_of(allocation),
        kind=allocation.spec.kind,
        phase=allocation.status.phase,
        message=message,
        has_ended=has_ended,
    )
