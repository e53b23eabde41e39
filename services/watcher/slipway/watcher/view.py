"""The input of one reduction: the object, its pods, its gang, the time and the settings.

Pure values. Owns the times of transitions: never before the last transition, never in the future.
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
"""Kubernetes rounds times down to whole seconds: the real time may be up to this much later."""


class ReductionView(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a reduction may read; `allocation` is the object as read, with corrected times."""

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
    """{uid of a pod: the last warning Event about its start}"""
    dependencies: Seen = NOTHING_SEEN
    """the observed states of the allocations that it waits for"""

    @property
    def stop(self) -> Reason | None:
        """Why this attempt has to stop; None when it has not."""
        return stop_reason(self.allocation, namespace_terminating=self.namespace_terminating)

    @property
    def live_pods(self) -> list[Pod]:
        """The pods of any attempt that may still run, or may still be bound."""
        return [pod for pod in self.pods if not exits.is_over(pod)]

    def moment(self, allocation: Allocation, seen: float | None) -> float:
        """Return the time of the next transition (epoch seconds),
        for an event at `seen` by the node's clock (None: now)."""
        if seen is None:
            return self.now
        return max(last_transition_at(allocation), min(self.now, seen + GRAIN_S))

    def blocked_until(self, held: exits.BlockedStart) -> float:
        """Return when a container that cannot start is given up (epoch seconds)."""
        since = self.written_at if held.since is None else held.since
        return since + self.policy.image_pull_limit_s


def last_transition_at(allocation: Allocation) -> float:
    """Return the time of the last transition (epoch seconds)."""
    ring = allocation.status.transitions
    stamp = ring[-1].time if ring else allocation.metadata.creation_timestamp
    return parse_time(stamp) if stamp else 0.0
