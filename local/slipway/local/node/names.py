"""The names that pods find each other by, without a name server.

Owns the index of pods by hostname and subdomain, and the rewriting of `<hostname>.<subdomain>[.<namespace>[.svc[...]]]`
in what a pod is told. Pure but for its index.

Invariant: a name below the pod's own subdomain is of a peer, so the pod waits for it; any other unknown name is left
as it is, since it may well be somebody's real host.
"""

import re

from slipway.local.node.podview import NodePod

_TOKEN = re.compile(r"(?<![A-Za-z0-9_.-])[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_SUFFIXES = ("", "svc", "svc.cluster.local")


class PeerNames:
    """Who is called what, and where it is."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, str, str], str] = {}

    def put(self, pod: NodePod, address: str) -> None:
        """The pod has that address."""
        if pod.subdomain and address:
            self._addresses[_key(pod)] = address

    def drop(self, pod: NodePod) -> None:
        """The pod is gone."""
        self._addresses.pop(_key(pod), None)

    def resolve(self, text: str, pod: NodePod) -> tuple[str, set[str]]:
        """`text` as `pod` is to be told it, and the names of peers in it that nobody has yet."""
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
    """(namespace, subdomain, hostname) of a name that may be a pod's."""
    hostname, subdomain, *rest = name.split(".", 3)
    where = rest[0] if rest else namespace
    suffix = rest[1] if len(rest) > 1 else ""
    return (where, subdomain, hostname) if suffix in _SUFFIXES else None
