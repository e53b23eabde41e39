"""The last Event about each pod that has not started which says that something keeps it from starting.

Owns which Events are such warnings, and which show that the pod got past one. Must not know what follows from that.

Promises: at most `PODS_MAX` pods are remembered, the longest unheard first out; what a kubelet says of one obstacle in
its general words ("timed out waiting for the condition") does not replace the words that name the cause. Not promised:
that every warning is seen. Only the primary reads Events.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from slipway.kube.objects import KubeEvent

PODS_MAX = 20_000
WARNING = "Warning"
_OF_CONTAINERS = frozenset({"Failed", "BackOff", "Unhealthy", "FailedScheduling", "InspectFailed", "ErrImageNeverPull"})
"""What the status of the pod says better."""
_PROGRESS = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""Said of a pod whose volumes and sandbox are there."""
_GENERAL = ("timed out waiting for the condition", "context deadline exceeded", "unmounted volumes=")


class PodWarning(msgspec.Struct, frozen=True):
    """What keeps a pod from starting; without a reason: what kept it has been overcome."""

    reason: str
    text: str

    def __bool__(self) -> bool:
        return bool(self.reason)


OVERCOME = PodWarning("", "")


class PodWarnings:
    """By the pods' uids."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, PodWarning] = OrderedDict()

    def note(self, event: KubeEvent, text: str) -> bool:
        """Take in an Event about a pod, in words for people; whether it changes what is known."""
        uid = event.involved_object.uid
        known = self._known.get(uid)
        if event.reason in _PROGRESS:
            # A pod that nothing was wrong with needs no memory.
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
        """{uid of a pod: what is known}, for those of whom anything is known."""
        return {uid: self._known[uid] for uid in uids if uid in self._known}

    def forget_all(self) -> None:
        """Events are not followed any more: what is known grows old."""
        self._known.clear()

    def gone(self, uid: str) -> None:
        """The pod is gone."""
        self._known.pop(uid, None)


def _says_less(event: KubeEvent, known: PodWarning | None) -> bool:
    """Whether it is the same obstacle in words that do not name it."""
    return known is not None and known.reason == event.reason and _is_general(event.message)


def _is_general(message: str) -> bool:
    return any(words in message for words in _GENERAL)
