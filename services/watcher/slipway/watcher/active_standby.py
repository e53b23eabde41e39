"""Whether this replica acts at once, or leaves the work to another for a moment.

Owns the one answer that several loops need. The lease is no fence: two replicas may act at once, and every write is
fenced by itself.
"""

from slipway.kube.lease import Leadership
from slipway.runtime.clock import Clock

STAND_IN_S = 5.0
"""How long a standby acts at once after a write that the primary had left undone."""


class Duty:
    """The standing of one replica. `alone`: there is nobody else, for one pass.

    For its first `grace_s` a replica acts at once: it may be the successor of the only one, whose lease still runs.
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
        """How long to leave a change to the primary: not at all for itself, or while standing in for it."""
        acts = self.is_primary or self._clock.monotonic() < self._stands_in_until
        return 0.0 if acts else self._standby_delay_s

    def stand_in(self) -> None:
        """There was something to write: if somebody else is the primary, it is not doing its work."""
        self._stands_in_until = max(self._stands_in_until, self._clock.monotonic() + STAND_IN_S)
