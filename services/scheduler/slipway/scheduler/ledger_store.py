"""Stores the ledger in the API server: in `ResourcePool.status`, written by compare-and-swap.

Owns the translation between the stored form and `model/ledger.py`, and what a refused or unanswered write means. This
is the fence of the whole system: a process that cannot write here cannot decide anything.
"""

import msgspec

from slipway.crd.pools import WireEvictionLevel
from slipway.crd.v1alpha1 import ResourcePool, WireDecision
from slipway.errors import StaleError, TransientError
from slipway.kube.resources import RESOURCE_POOLS
from slipway.model.eviction_rate import EvictionLevel
from slipway.model.ledger import Decision, DecisionKind, Ledger
from slipway.scheduler.ports import Kube


class DeposedError(StaleError):
    """Another leader has raised the epoch, so this leader's decisions are not valid any more."""


class LedgerStore:
    """One pool's ledger, as this leader last wrote or read it."""

    def __init__(self, kube: Kube, pool_name: str) -> None:
        self._kube = kube
        self._pool_name = pool_name
        self._epoch: int | None = None
        self.pool: ResourcePool | None = None
        """The pool whose status contains the ledger, as last read or written."""

    @property
    def version(self) -> int:
        """The version of the pool as last read or written; 0 before that."""
        return self.pool.metadata.version if self.pool is not None else 0

    async def load(self) -> Ledger:
        """Read the stored ledger.

        Raises:
            NotFoundError: the pool is gone.
            DeposedError: the stored epoch is not the one that this leader wrote.
        """
        self.pool = await self._kube.get(RESOURCE_POOLS, self._pool_name)
        ledger = _decoded(self.pool)
        if self._epoch is not None and ledger.epoch != self._epoch:
            raise DeposedError(f"pool {self._pool_name}: epoch {ledger.epoch} has replaced {self._epoch}")
        return ledger

    async def save(self, ledger: Ledger) -> bool:
        """Write the ledger; return True when it is committed, False when the pool has changed: then decide again.

        After a write without a response the stored ledger is read, which shows whether the write took effect.

        Raises:
            DeposedError: another leader has raised the epoch.
            TransientError: the API server cannot be reached, and whether the write took effect is not known.
        """
        if self.pool is None:
            raise DeposedError(f"pool {self._pool_name}: the ledger was never read")
        status = msgspec.structs.replace(
            self.pool.status,
            epoch=ledger.epoch,
            tick=ledger.tick,
            nodes=list(ledger.nodes),
            decisions=[_encoded(decision) for decision in ledger.decisions],
            through=ledger.through,
            evicted=[
                WireEvictionLevel(queue=each.scope, used=each.used, per_ms=each.per_ms, at_ms=each.at_ms)
                for each in ledger.evicted
            ],
        )
        written = msgspec.structs.replace(self.pool, status=status)
        try:
            self.pool = await self._kube.replace_status(RESOURCE_POOLS, written)
        except (StaleError, TransientError):
            stored = await self.load()
            if stored != ledger:
                return False
        self._epoch = ledger.epoch
        return True


def _decoded(pool: ResourcePool) -> Ledger:
    status = pool.status
    return Ledger(
        epoch=status.epoch,
        tick=status.tick,
        nodes=tuple(status.nodes),
        decisions=tuple(
            Decision(
                id=item.id,
                epoch=item.epoch,
                allocation=item.allocation,
                uid=item.uid,
                attempt=item.attempt,
                kind=DecisionKind.GROW if item.grows else DecisionKind(item.kind),
                placements=tuple(item.placements),
                devices={rank: tuple(devices) for rank, devices in item.devices.items()},
                ranks=tuple(item.ranks),
                victims=tuple(item.victims),
                spec_hash=item.spec_hash,
                reason=item.reason,
                by=item.by,
                at=item.at,
            )
            for item in status.decisions
        ),
        through=status.through,
        evicted=tuple(
            EvictionLevel(scope=item.queue, used=item.used, per_ms=item.per_ms, at_ms=item.at_ms)
            for item in status.evicted
        ),
    )


def _encoded(decision: Decision) -> WireDecision:
    return WireDecision(
        id=decision.id,
        epoch=decision.epoch,
        allocation=decision.allocation,
        uid=decision.uid,
        attempt=decision.attempt,
        # An older release, which does not know growth, reads it as an admission that cannot be applied any more.
        kind=(DecisionKind.ADMIT if decision.kind is DecisionKind.GROW else decision.kind).value,
        grows=decision.kind is DecisionKind.GROW,
        placements=list(decision.placements),
        devices={rank: list(devices) for rank, devices in decision.devices.items()},
        ranks=list(decision.ranks),
        victims=list(decision.victims),
        spec_hash=decision.spec_hash,
        reason=decision.reason,
        by=decision.by,
        at=decision.at,
    )
