"""Reads the scheduling policy of the led pool, and reports the mistakes in it.

Each mistake is reported once and never stops a tick. Only the wrong score or argument is ignored. An administrator
finds the mistake in the log, with its path in the ResourcePool, and as a number in `slipway_policy_faults`.
"""

from slipway.model.facts import PoolFact
from slipway.runtime import log, telemetry
from slipway.scheduler.plan.placement.policy import PlacementPolicy, faults_of, policy_of

_log = log.get_logger(__name__)


class Policies:
    """The policies of one leadership, as the pool changes."""

    def __init__(self) -> None:
        self._pool: PoolFact | None = None
        self._policy = PlacementPolicy()

    def of(self, pool: PoolFact) -> PlacementPolicy:
        """Return the pool's policy; report the mistakes of a changed one."""
        if pool != self._pool:
            self._pool, self._policy = pool, policy_of(pool)
            faults = faults_of(pool)
            telemetry.POLICY_FAULTS.labels(pool=pool.name).set(len(faults))
            for fault in faults:
                _log.warning("wrong part of the pool's policy ignored", pool=pool.name, fault=fault)
        return self._policy
