"""How pods of one machine find each other: by names without a name server, addresses, and rendezvous ports.

Names: in a pod's command and environment, `<hostname>.<subdomain>[.<namespace>[.svc[...]]]` is replaced by an address,
from an index of pods by hostname and subdomain. Invariant: an unknown name below the pod's own subdomain belongs to a
peer, so the pod waits for it; any other unknown name is left unchanged, because it may be the name of a real host.

Addresses: one loopback address for each pod. Linux answers on all of 127.0.0.0/8, so all pods on one machine can listen
on the same port, as in a cluster. On other systems every pod has 127.0.0.1.

Invariants: two live pods never share an address (on a machine with several); the address is a function of the pod's uid
unless it is already in use, so that a restarted node chooses the same address again.

Ports: each gang on this machine has a rendezvous port of its own. In a cluster each pod has its own network, so all
gangs can use the same port. Local pods share one network, and the usual stores listen on every address of the machine.
With one port, the second gang would fail to bind, or would reach the store of the first gang.

Invariants: two live gangs never share a port; a gang keeps its port until its last pod is gone; the first gang gets the
usual port if it is free. A port that a user sets to another value is never changed.

Non-promises: a port is tested once, so another program of the machine may bind it before the gang listens. Two node
processes on one machine do not know each other's gangs.
"""

import hashlib
import ipaddress
import re
import socket

from slipway.crd.roleresources import JsonMap, objects_of
from slipway.local.node.podview import NodePod
from slipway.pods.rendezvous import MASTER_PORT

_TOKEN = re.compile(r"(?<![A-Za-z0-9_.-])[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_SUFFIXES = ("", "svc", "svc.cluster.local")


class PeerNames:
    """The index of pods' names and addresses."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, str, str], str] = {}

    def put(self, pod: NodePod, address: str) -> None:
        """Store the address of a pod."""
        if pod.subdomain and address:
            self._addresses[_key(pod)] = address

    def drop(self, pod: NodePod) -> None:
        """Remove a deleted pod."""
        self._addresses.pop(_key(pod), None)

    def resolve(self, text: str, pod: NodePod) -> tuple[str, set[str]]:
        """Return `text` for `pod` with names replaced by addresses, and the names of peers that have no address yet."""
        if "." not in text:
            return text, set()
        missing: set[str] = set()

        def address_of(match: re.Match[str]) -> str:
            name = match.group()
            parsed = _parse(name, pod.metadata.namespace)
            if parsed is None:
                return name
            address = self._addresses.get(parsed)
            if address is not None:
                return address
            if parsed[0] == pod.metadata.namespace and parsed[1] == pod.subdomain:
                missing.add(name)
            return name

        return _TOKEN.sub(address_of, text), missing


def _key(pod: NodePod) -> tuple[str, str, str]:
    return (pod.metadata.namespace, pod.subdomain, pod.hostname)


def _parse(name: str, namespace: str) -> tuple[str, str, str] | None:
    """Return (namespace, subdomain, hostname) of a name that may be a pod's, else None."""
    hostname, subdomain, *rest = name.split(".", 3)
    where = rest[0] if rest else namespace
    suffix = rest[1] if len(rest) > 1 else ""
    return (where, subdomain, hostname) if suffix in _SUFFIXES else None


SHARED = "127.0.0.1"
_FIRST = int(ipaddress.IPv4Address("127.64.0.0"))
_COUNT = 1 << 22


class Addresses:
    """The addresses in use. `several`: whether this machine has several loopback addresses; None means find out."""

    def __init__(self, *, several: bool | None = None) -> None:
        self._several = _has_several() if several is None else several
        self._by_uid: dict[str, str] = {}
        self._taken: set[str] = set()

    def claim(self, uid: str, wanted: str = "") -> str:
        """Return the pod's address; `wanted` is the address that the pod already has, if any."""
        held = self._by_uid.get(uid)
        if held is not None:
            return held
        address = SHARED
        if self._several:
            address = wanted if wanted and wanted not in self._taken else self._free(uid)
            self._taken.add(address)
        self._by_uid[uid] = address
        return address

    def release(self, uid: str) -> None:
        """Free the address of a pod that no longer exists."""
        self._taken.discard(self._by_uid.pop(uid, ""))

    def _free(self, uid: str) -> str:
        index = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4])
        while True:
            index = (index + 1) % _COUNT
            address = str(ipaddress.IPv4Address(_FIRST + index))
            if index & 0xFF not in (0, 0xFF) and address not in self._taken:
                return address


def _has_several() -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((str(ipaddress.IPv4Address(_FIRST + 1)), 0))
        except OSError:
            return False
        return True


PORT_VARIABLE = "MASTER_PORT"
_PORT_COUNT = 1000
_LISTEN_ON_ALL = ""

_Gang = tuple[str, str]


class RendezvousPorts:
    """The ports in use, by gang."""

    def __init__(self) -> None:
        self._by_gang: dict[_Gang, int] = {}
        self._pods: dict[str, _Gang] = {}

    def with_gang_port(self, container: JsonMap, pod: NodePod) -> JsonMap:
        """Return the container with the usual port replaced by the port of the pod's gang."""
        env = objects_of(container.get("env"))
        if not any(_is_usual(item) for item in env):
            return container
        port = str(self._claim(pod))
        return {**container, "env": [{**item, "value": port} if _is_usual(item) else item for item in env]}

    def release(self, uid: str) -> None:
        """Remove a pod; with the last pod of a gang its port becomes free."""
        gang = self._pods.pop(uid, None)
        if gang is not None and gang not in self._pods.values():
            self._by_gang.pop(gang, None)

    def _claim(self, pod: NodePod) -> int:
        gang = (pod.metadata.namespace, pod.subdomain or pod.metadata.uid)
        self._pods[pod.metadata.uid] = gang
        if gang not in self._by_gang:
            taken = set(self._by_gang.values())
            candidates = (port for port in range(MASTER_PORT, MASTER_PORT + _PORT_COUNT) if port not in taken)
            self._by_gang[gang] = next((port for port in candidates if _is_free(port)), MASTER_PORT)
        return self._by_gang[gang]


def _is_usual(variable: JsonMap) -> bool:
    return variable.get("name") == PORT_VARIABLE and variable.get("value") == str(MASTER_PORT)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LISTEN_ON_ALL, port))
        except OSError:
            return False
        return True
