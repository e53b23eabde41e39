"""What a node has left: the last check before a pod runs.

Owns the sums of one node. Pure. The scheduler decides; this only refuses what cannot be, as a kubelet does.

Invariants: what is held never exceeds what the node has, but for pods that ran before they were counted.
"""

import msgspec

from slipway.model.resources import PODS, Resources, total


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """Why a pod is refused, in a kubelet's words."""

    reason: str
    message: str


class Capacity:
    """The resources of one node and who holds them."""

    def __init__(self, allocatable: Resources) -> None:
        self.allocatable = allocatable
        self._held: dict[str, Resources] = {}
        self._leaving: set[str] = set()

    @property
    def is_leaving(self) -> bool:
        """Whether a pod that still holds something is on its way out."""
        return bool(self._leaving)

    def hold(self, uid: str, asks: Resources) -> None:
        """Counts a pod that runs already."""
        self._held[uid] = asks

    def admit(self, uid: str, asks: Resources) -> Shortage | None:
        """Counts the pod, or says what is missing."""
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
        """What the pod holds is about to be given back."""
        if uid in self._held:
            self._leaving.add(uid)

    def release(self, uid: str) -> None:
        """Nothing of the pod runs any more."""
        self._held.pop(uid, None)
        self._leaving.discard(uid)
