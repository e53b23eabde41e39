"""The input of one reduction, read once: the object, its pods, its gang, the time and the rules.

Pure values. Owns the times of transitions: never before the last one, never in the future.
"""

from collections.abc import Mapping, Set

import msgspec

from slipway.crd.transitions import stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.reasons import Reason
from slipway.model.times import parse_time
from slipway.watcher import exits
from slipway.watcher.dependencies import NOTHING_SEEN, Seen
from slipway.watcher.ends import LifecyclePolicy
from slipway.watcher.gang import ObservedGang
from slipway.watcher.podwarnings import PodWarning

GRAIN_S = 1.0
"""Kubernetes cuts times to whole seconds: the moment may be up to this much later."""


class ReductionView(msgspec.Struct, frozen=True, kw_only=True):
    """All that a reduction may read; `allocation` is the object as read, with corrected times."""

    allocation: Allocation
    pods: tuple[Pod, ...]
    gang: ObservedGang
    now: float
    policy: LifecyclePolicy
    namespace_terminating: bool
    nodes_gone: Set[str]
    consistent: bool
    written_at: float
    warnings: Mapping[str, PodWarning] = {}
    """{uid of a pod: what an Event said last of its start}"""
    dependencies: Seen = NOTHING_SEEN
    """what was seen of the allocations that it waits for"""

    @property
    def stop(self) -> Reason | None:
        """Why this attempt has to stop."""
        return stop_reason(self.allocation, namespace_terminating=self.namespace_terminating)

    @property
    def live_pods(self) -> list[Pod]:
        """Pods of any attempt that may still run, or may yet be bound."""
        return [pod for pod in self.pods if not exits.is_over(pod)]

    def moment(self, allocation: Allocation, seen: float | None) -> float:
        """The time of the next transition for something that the node dated `seen`."""
        if seen is None:
            return self.now
        return max(last_transition_at(allocation), min(self.now, seen + GRAIN_S))

    def blocked_until(self, held: exits.BlockedStart) -> float:
        """When a container that cannot start is given up."""
        since = self.written_at if held.since is None else held.since
        return since + self.policy.image_pull_limit_s


def last_transition_at(allocation: Allocation) -> float:
    """The time of the last transition (epoch seconds)."""
    ring = allocation.status.transitions
    stamp = ring[-1].time if ring else allocation.metadata.creation_timestamp
    return parse_time(stamp) if stamp else 0.0
