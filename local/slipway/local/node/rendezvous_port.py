"""A rendezvous port of its own for each gang of this machine.

Pods of a cluster have a network each, so every gang can meet at the same port. Here they share one, and the usual
stores listen on every address of the machine: the second gang would fail to bind, or reach the store of the first.

Owns which gang has which port. Invariants: two live gangs never share a port; a gang keeps its port until its last
pod is gone; the first gang gets the usual port when it is free. A port that a user names is never changed.

Non-promises: a port is tried once, so another program of the machine may take it before the gang listens. Processes of
other local nodes do not know of the gangs of these.
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
    """The ports in use."""

    def __init__(self) -> None:
        self._by_gang: dict[_Gang, int] = {}
        self._pods: dict[str, _Gang] = {}

    def told(self, container: JsonMap, pod: NodePod) -> JsonMap:
        """The container with the port of the pod's gang in the place of the usual one."""
        env = objects_of(container.get("env"))
        if not any(_is_usual(item) for item in env):
            return container
        port = str(self._claim(pod))
        return {**container, "env": [{**item, "value": port} if _is_usual(item) else item for item in env]}

    def release(self, uid: str) -> None:
        """The pod is gone."""
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
