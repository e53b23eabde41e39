"""Stores the last Event about an obstacle to the start of each pod that has not started.

Owns which Events are such warnings, and which Events show that the pod has overcome one. Must not know what follows
from that.

Promises: at most `PODS_MAX` pods are remembered; the one with the oldest Event is forgotten first. A general message of
the kubelet about an obstacle ("timed out waiting for the condition") does not replace a message that names the cause.
Not promised: that every warning is seen. Only the primary reads Events.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from slipway.kube.objects import KubeEvent

PODS_MAX = 20_000
WARNING = "Warning"
_OF_CONTAINERS = frozenset({"Failed", "BackOff", "Unhealthy", "FailedScheduling", "InspectFailed", "ErrImageNeverPull"})
"""Reasons that the status of the pod shows better."""
_PROGRESS = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""Reasons that show that the pod's volumes and sandbox exist."""
_GENERAL = ("timed out waiting for the condition", "context deadline exceeded", "unmounted volumes=")


class PodWarning(msgspec.Struct, frozen=True):
    """An obstacle to the start of a pod; an empty reason means that the obstacle was overcome."""

    reason: str
    text: str

    def __bool__(self) -> bool:
        return bool(self.reason)


OVERCOME = PodWarning("", "")


class PodWarnings:
    """The last warning of each pod, by its uid."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, PodWarning] = OrderedDict()

    def note(self, event: KubeEvent, text: str) -> bool:
        """Note an Event about a pod, with its text for users; return whether that changes the stored warning."""
        uid = event.involved_object.uid
        known = self._known.get(uid)
        if event.reason in _PROGRESS:
            # A pod without an earlier warning needs no entry.
            found = OVERCOME if known else None
        elif event.type != WARNING or event.reason in _OF_CONTAINERS or _says_less(event, known):
            found = None
        else:
            found = PodWarning(event.reason, text)
        if found is None or found == known or not uid:
            return False
        self._known[uid] = found
        self._known.move_to_end(uid)
        if len(self._known) > PODS_MAX:
            self._known.popitem(last=False)
        return True

    def of(self, uids: Iterable[str]) -> Mapping[str, PodWarning]:
        """Return {uid of a pod: its last warning}, without pods that have none."""
        return {uid: self._known[uid] for uid in uids if uid in self._known}

    def forget_all(self) -> None:
        """Forget all warnings, because Events are not watched any more."""
        self._known.clear()

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._known.pop(uid, None)


def _says_less(event: KubeEvent, known: PodWarning | None) -> bool:
    """Whether the Event is about the known obstacle, and its message does not name the cause."""
    return known is not None and known.reason == event.reason and _is_general(event.message)


def _is_general(message: str) -> bool:
    return any(words in message for words in _GENERAL)
