"""A separate rendezvous port for each gang on this machine.

In a cluster each pod has its own network, so all gangs can use the same port. Local pods share one network, and the
usual stores listen on every address of the machine. With one port, the second gang would fail to bind, or would reach
the store of the first gang.

Owns the assignment of ports to gangs. Invariants: two live gangs never share a port; a gang keeps its port until its
last pod is gone; the first gang gets the usual port if it is free. A port that a user sets to another value is never
changed.

Non-promises: a port is tested once, so another program of the machine may bind it before the gang listens. Two node
processes on one machine do not know each other's gangs.
"""

import socket

from slipway.crd.roleresources import JsonMap, objects_of
from slipway.local.node.podview import NodePod
from slipway.pods.rendezvous import MASTER_PORT

VARIABLE = "MASTER_PORT"
_COUNT = 1000
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
            candidates = (port for port in range(MASTER_PORT, MASTER_PORT + _COUNT) if port not in taken)
            self._by_gang[gang] = next((port for port in candidates if _is_free(port)), MASTER_PORT)
        return self._by_gang[gang]


def _is_usual(variable: JsonMap) -> bool:
    return variable.get("name") == VARIABLE and variable.get("value") == str(MASTER_PORT)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LISTEN_ON_ALL, port))
        except OSError:
            return False
        return True
