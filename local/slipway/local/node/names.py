"""The names by which pods find each other, without a name server.

Owns the index of pods by hostname and subdomain, and the replacement of names
`<hostname>.<subdomain>[.<namespace>[.svc[...]]]` in a pod's command and environment by addresses. Pure, except for its
index.

Invariant: an unknown name below the pod's own subdomain belongs to a peer, so the pod waits for it; any other unknown
name is left unchanged, because it may be the name of a real host.
"""

import re

from slipway.local.node.podview import NodePod

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
