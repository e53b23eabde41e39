"""Decides whether this replica acts at once, or first leaves the work to the primary replica for a moment.

Owns this one decision, which several loops need. The lease is no fence: two replicas may act at once, and every write
is fenced by itself.
"""

from slipway.kube.lease import Leadership
from slipway.runtime.clock import Clock

STAND_IN_S = 5.0
"""For how many seconds a standby acts at once after it has made a write that the primary should have made."""


class ReplicaRole:
    """The role of one replica: primary or standby. `alone` is True in a single pass without other replicas (`--once`).

    For its first `grace_s` a replica acts at once: it may replace the only replica, whose lease has not expired yet.
    """

    def __init__(self, clock: Clock, *, standby_delay_s: float, grace_s: float) -> None:
        self._clock = clock
        self._standby_delay_s = standby_delay_s
        self._stands_in_until = clock.monotonic() + grace_s
        self.leadership: Leadership | None = None
        self.alone = False

    @property
    def is_primary(self) -> bool:
        """Whether this replica holds the lease."""
        return self.alone or (self.leadership is not None and self.leadership.is_valid())

    @property
    def delay_s(self) -> float:
        """For how many seconds a change is left to the primary: 0 on the primary and on a standby that stands in."""
        acts = self.is_primary or self._clock.monotonic() < self._stands_in_until
        return 0.0 if acts else self._standby_delay_s

    def stand_in(self) -> None:
        """Act at once for a while: this replica has found a write that a working primary would have made."""
        self._stands_in_until = max(self._stands_in_until, self._clock.monotonic() + STAND_IN_S)
