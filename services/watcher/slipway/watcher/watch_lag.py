"""Decides how long the watch of pods may be behind the watch of allocations before missing pods are read directly.

Owns how long released pods that were never seen are waited for. Each resource has its own watch, so under load a
release is often known before its pods. Reading all of them by name would cost the API server more than creating them
did, at the time of highest load. Does not know what a missing pod means.

Pods are created before their release, so a pod watch that has reached the version of the release has shown them. The
versions of two resources can be compared if one etcd stores both; otherwise time decides.

Promises: there is no wait for a pod that was seen and is gone. There is none either once the ranks run or have to end,
or once the pod watch has reached that version. A missing pod is read `LATE_S` after it was first missed, and again
after each `LATE_S`.
"""

from collections.abc import Callable, Iterable, Set

from slipway.crd.transitions import stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.lifecycle import Phase
from slipway.runtime.clock import Clock

LATE_S = 10.0
AGAIN_S = 1.0
_STARTING = (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING)


class PodWatchLag:
    """Remembers since when released pods are missing. `reached`: the version that the watch of pods has reached."""

    def __init__(self, clock: Clock, reached: Callable[[], int]) -> None:
        self._clock = clock
        self._reached = reached
        self._missed: dict[str, tuple[float, int]] = {}
        """{uid of the allocation: (since when, monotonic; the version in which it first had the release)}"""

    def wait_s(self, allocation: Allocation, seen: Iterable[Pod], departed: Set[str]) -> float:
        """Return how many seconds to wait before the next check; 0: read the pods now.

        `departed`: the uids of its pods whose deletion was seen.
        """
        uid, release = allocation.metadata.uid, allocation.status.release
        if release is None or allocation.status.phase not in _STARTING or stop_reason(allocation) is not None:
            return 0.0
        missing = set(release.pod_uids) - {pod.metadata.uid for pod in seen}
        if not missing or missing & departed:
            return 0.0
        now = self._clock.monotonic()
        since, version = self._missed.setdefault(uid, (now, allocation.metadata.version))
        if self._reached() >= version:
            return 0.0
        wait_s = since + LATE_S - now
        if wait_s <= 0:
            self._missed[uid] = now, version
        return min(max(0.0, wait_s), AGAIN_S)

    def forget(self, uid: str) -> None:
        """Forget the allocation: all its pods were seen, or it is gone."""
        self._missed.pop(uid, None)
