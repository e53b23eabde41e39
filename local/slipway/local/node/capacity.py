"""The free resources of a node: the last check before a pod runs.

Owns the sums of one node. Pure. The scheduler decides; this check only refuses a pod that does not fit, as a kubelet
does.

Invariant: the used resources never exceed the node's, except by pods that already ran when they were added.
"""

import msgspec

from slipway.model.resources import PODS, Resources, total


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a pod is refused, with a kubelet's message."""

    reason: str
    message: str


class Capacity:
    """The resources of one node and the pods that use them."""

    def __init__(self, allocatable: Resources) -> None:
        self.allocatable = allocatable
        self._held: dict[str, Resources] = {}
        self._leaving: set[str] = set()

    @property
    def is_leaving(self) -> bool:
        """Whether a pod that still uses resources is about to release them."""
        return bool(self._leaving)

    def hold(self, uid: str, asks: Resources) -> None:
        """Add a pod that already runs."""
        self._held[uid] = asks

    def admit(self, uid: str, asks: Resources) -> Shortage | None:
        """Add the pod and return None, or return the shortage that prevents it."""
        used = total(held for other, held in self._held.items() if other != uid)
        for name in sorted(asks):
            has = self.allocatable.get(name)
            if used.get(name) + asks.get(name) > has:
                told = "pods" if name == PODS else name
                words = f"requested: {asks.get(name)}, used: {used.get(name)}, capacity: {has}"
                return Shortage(
                    reason=f"OutOf{told}",
                    message=f"Pod was rejected: Node didn't have enough resource: {told}, {words}",
                )
        self._held[uid] = asks
        return None

    def leaving(self, uid: str) -> None:
        """Mark that the pod is about to release its resources."""
        if uid in self._held:
            self._leaving.add(uid)

    def release(self, uid: str) -> None:
        """Release the pod's resources, because no process of the pod runs any more."""
        self._held.pop(uid, None)
        self._leaving.discard(uid)
