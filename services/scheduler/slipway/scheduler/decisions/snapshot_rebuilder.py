"""Rebuilds the planner's snapshots from a chain of records, by the tables of a leader. Pure.

It uses the same tables and the same view as the live leader, so a fold returns what the leader saw. The digest of the
facts and the hash of the inputs are compared; a difference is an error.
"""

import msgspec

from slipway.errors import InvalidError
from slipway.kube.facts import FEED_KINDS, decode_fact
from slipway.model.decay import DecayedUsage
from slipway.model.facts import VOLUMES, VolumeFact
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.decisions.facts import EncodedFacts
from slipway.scheduler.decisions.record import ACCOUNTS, ANSWERS, GONE, PAST, DecisionRecord, answer_key, input_hash
from slipway.scheduler.plan.state.budgets import QueueUsage
from slipway.scheduler.plan.state.extender_results import Answers, ExtenderAnswer, Key
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.pool_view import PlannerView


class BrokenChainError(InvalidError):
    """A record does not follow the previous one, because a record between them is missing."""


class SnapshotRebuilder:
    """One chain, up to the last record that was applied."""

    def __init__(self, base: DecisionRecord) -> None:
        if base.number != 0:
            raise BrokenChainError(f"tick {base.tick}: its base record no longer exists")
        self.chain = base.chain
        self._cluster = Cluster()
        self._view = PlannerView(base.pool, self._cluster)
        self._facts = EncodedFacts()
        self._next = 0
        self._answers: dict[Key, ExtenderAnswer] = {}

    @property
    def answers(self) -> Answers:
        """The answers of extenders."""
        return self._answers

    def apply(self, record: DecisionRecord) -> PoolSnapshot:
        """Apply the next record and return the snapshot on which it was planned.

        Raises:
            BrokenChainError: an earlier record is missing.
            InvalidError: the rebuilt inputs differ from the recorded ones.
        """
        if (record.chain, record.number) != (self.chain, self._next):
            raise BrokenChainError(f"tick {record.tick}: the record before it no longer exists")
        self._next += 1
        for kind, facts in record.facts.items():
            for key, raw in facts.items():
                self._apply_fact(record.tick, kind, key, None if raw == GONE else bytes(raw))
        if input_hash(self._facts.digest, record.ledger, record.at, record.seed) != record.input_hash:
            raise InvalidError(f"tick {record.tick}: the inputs differ from the recorded ones")
        return self._view.snapshot(record.ledger, record.at)

    def _apply_fact(self, tick: int, kind: str, key: str, data: bytes | None) -> None:
        self._facts.put(kind, key, data)
        try:
            if kind == ANSWERS:
                self._put_answer(answer_key(key), data)
            elif kind == ACCOUNTS:
                self._cluster.set_accounts(msgspec.json.decode(data or b"{}", type=QueueUsage))
            elif kind == PAST:
                self._cluster.set_decayed(msgspec.json.decode(data or b"{}", type=DecayedUsage))
            elif kind == VOLUMES:
                self._put_volume(key, data)
            else:
                self._put(tick, kind, key, data)
        except (msgspec.DecodeError, ValueError) as exc:
            raise InvalidError(f"tick {tick}: {kind} {key}: {exc}") from exc

    def _put(self, tick: int, kind: str, key: str, data: bytes | None) -> None:
        table = self._cluster.table(kind)
        if table is None or kind not in FEED_KINDS:
            raise InvalidError(f"tick {tick}: unknown kind {kind}")
        if data is None:
            table.drop(key, self._next)
        else:
            table.put(key, decode_fact(kind, data), self._next)

    def _put_volume(self, key: str, data: bytes | None) -> None:
        volumes = self._cluster.volumes
        if data is None:
            volumes.drop(key, self._next)
        else:
            volumes.put(key, msgspec.json.decode(data, type=VolumeFact), self._next)

    def _put_answer(self, key: Key, data: bytes | None) -> None:
        if data is None:
            self._answers.pop(key, None)
        else:
            self._answers[key] = msgspec.json.decode(data, type=ExtenderAnswer)
