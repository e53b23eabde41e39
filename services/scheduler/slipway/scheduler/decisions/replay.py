"""Plans recorded ticks again, from snapshots that are rebuilt from a chain of records. Pure.

Without another policy a replay must yield the recorded decisions, bit for bit; every difference is reported. With
another policy (a given one, or the shadow policy that the pool had then) it reports the decisions that would differ.

The rebuilding uses the same tables and the same view as the live leader, so a fold returns what the leader saw. The
digest of the facts and the hash of the inputs are compared; a difference is an error.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from slipway.errors import InvalidError
from slipway.facts.core_objects import FEED_KINDS, decode_fact
from slipway.model.decay import DecayedUsage
from slipway.model.facts import VOLUMES, PoolFact, VolumeFact
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.decisions.record import (
    ACCOUNTS,
    ANSWERS,
    GONE,
    PAST,
    DecisionRecord,
    Divergence,
    EncodedFacts,
    OtherFormatError,
    RecordedDecisions,
    answer_key,
    canonical,
    decisions_of,
    divergences,
    input_hash,
    policy_hash,
    unpack,
)
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.tick_state import PlanTrace
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import Answers, ExtenderAnswer, Key
from slipway.scheduler.plan.state.past_use import QueueUsage
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


CHAINS_MAX = 2
"""The number of chains that are folded at the same time: that of a leader, and one that was just replaced."""

OtherPolicy = Callable[[PoolFact], PoolFact | None]
"""Returns the pool with the policy for a replay; None when this tick has no other policy."""


class ReplayDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One value that a replay does not reproduce. `allocation` is empty when it is about the whole tick."""

    tick: int
    what: str
    allocation: str = ""
    recorded: Any = None
    replayed: Any = None


class SkippedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that could not be replayed, although it is not damaged."""

    tick: int
    why: str


class PolicyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of one tick that would differ under another policy."""

    tick: int
    same: int
    different: tuple[Divergence, ...]


class ReplayReport(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of a replay."""

    pool: str = ""
    first: int | None = None
    """the first replayed tick; None while there is none"""
    last: int | None = None
    ticks: int = 0
    decisions: int = 0
    """the number of recorded decisions in these ticks"""
    same: int = 0
    differences: list[ReplayDifference] = []
    would: list[PolicyDifference] = []
    """the ticks in which another policy would decide differently"""
    skipped: list[SkippedEntry] = []
    planners: list[str] = []
    """the versions of Slipway that recorded these ticks"""


class Replayer:
    """Replays the entries of one pool's log, in order, and collects the report."""

    def __init__(self, *, first: int = 0, last: int | None = None, other: OtherPolicy | None = None) -> None:
        self.report = ReplayReport()
        self._first = first
        self._last = last
        self._other = other
        self._rebuilders: dict[str, SnapshotRebuilder] = {}

    def replay_entry(self, data: bytes, tick: int) -> None:
        """Replay one entry of the log; `tick` is its number by the log, for an entry that cannot be read.

        Raises:
            InvalidError: it is damaged, or its rebuilt inputs differ from the recorded ones.
        """
        try:
            record = unpack(data)
            if self._last is not None and record.tick > self._last:
                return
            rebuilder, snapshot = self._snapshot(record)
        except (OtherFormatError, BrokenChainError) as exc:
            if tick >= self._first:
                self.report.skipped.append(SkippedEntry(tick=tick, why=str(exc)))
            return
        if record.tick >= self._first:
            self._compare(record, snapshot, rebuilder.answers if record.consulted else None)

    def _snapshot(self, record: DecisionRecord) -> tuple[SnapshotRebuilder, PoolSnapshot]:
        rebuilder = self._rebuilders.pop(record.chain, None)
        if rebuilder is None or record.number == 0:
            rebuilder = SnapshotRebuilder(record)
        snapshot = rebuilder.apply(record)
        self._rebuilders[record.chain] = rebuilder
        while len(self._rebuilders) > CHAINS_MAX:
            del self._rebuilders[next(iter(self._rebuilders))]
        return rebuilder, snapshot

    def _compare(self, record: DecisionRecord, snapshot: PoolSnapshot, answers: Answers | None) -> None:
        report, decided = self.report, record.decided
        report.pool = record.pool
        report.first = record.tick if report.first is None else report.first
        report.last = record.tick
        report.ticks += 1
        report.decisions += len(decided.admits) + len(decided.evictions) + len(decided.grows)
        if record.planner and record.planner not in report.planners:
            report.planners.append(record.planner)
        if self._other is not None:
            pool = self._other(snapshot.pool)
            if pool is not None:
                self._plan_with_other_policy(record, snapshot, answers, pool)
            return
        again = replayed(record, snapshot, answers)
        report.same += divergences(decided, again)[0]
        report.differences += differences(record, again, policy_hash(policy_of(snapshot.pool)))

    def _plan_with_other_policy(
        self, record: DecisionRecord, snapshot: PoolSnapshot, answers: Answers | None, pool: PoolFact
    ) -> None:
        decided = replayed(record, msgspec.structs.replace(snapshot, pool=pool), answers)
        same, different = divergences(record.decided, decided)
        self.report.same += same
        if different:
            self.report.would.append(PolicyDifference(tick=record.tick, same=same, different=tuple(different)))


def replayed(record: DecisionRecord, snapshot: PoolSnapshot, answers: Answers | None = None) -> RecordedDecisions:
    """Return the planner's decisions for a recorded tick, under the policy of the snapshot's pool."""
    trace = PlanTrace()
    policy = policy_of(snapshot.pool)
    return decisions_of(
        plan(snapshot, policy, record.at, record.seed, answers=answers, watch=trace, grows=record.grows), trace
    )


def differences(record: DecisionRecord, again: RecordedDecisions, policy: str) -> list[ReplayDifference]:
    """Return all differences between a record and its replay."""
    found: list[ReplayDifference] = []
    if policy != record.policy_hash:
        found.append(ReplayDifference(tick=record.tick, what="policy", recorded=record.policy_hash, replayed=policy))
    _, different = divergences(record.decided, again)
    found += [
        ReplayDifference(
            tick=record.tick,
            what=each.kind,
            allocation=each.allocation,
            recorded=each.live or None,
            replayed=each.other or None,
        )
        for each in different
    ]
    for name, before, after in _parts(record.decided, again):
        if canonical(before) != canonical(after) and not (different and name in ("admits", "evictions", "grows")):
            found += _of_part(record.tick, name, msgspec.to_builtins(before), msgspec.to_builtins(after))
    return found


def _parts(before: RecordedDecisions, after: RecordedDecisions) -> Iterator[tuple[str, Any, Any]]:
    """Return (name, recorded, replayed) of all values that must be equal; of the trace, only allocations in both."""
    for name in ("admits", "evictions", "grows", "deferred", "dropped", "kept", "waiting", "reasons"):
        yield name, getattr(before, name), getattr(after, name)
    looked = set(before.looked) & set(after.looked)
    one, two = ([key for key in each.looked if key in looked] for each in (before, after))
    if not (_is_within(one, two) or _is_within(two, one)):
        yield "looked", one, two
    scored = before.scores.keys() & after.scores.keys()
    yield "scores", {key: before.scores[key] for key in scored}, {key: after.scores[key] for key in scored}


def _is_within(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Whether the items of `part` are in `whole`, in the same order.

    A planner does not search again when its cache has the result, so some of several searches for one allocation may be
    in only one of the two traces.
    """
    rest = iter(whole)
    return all(key in rest for key in part)


def _of_part(tick: int, name: str, before: Any, after: Any) -> list[ReplayDifference]:
    if not (isinstance(before, dict) and isinstance(after, dict)) or name == "waiting":
        return [ReplayDifference(tick=tick, what=name, recorded=before, replayed=after)]
    one, two = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
    return [
        ReplayDifference(tick=tick, what=name, allocation=key, recorded=one.get(key), replayed=two.get(key))
        for key in sorted(one.keys() | two.keys())
        if canonical(one.get(key)) != canonical(two.get(key))
    ]


def replay(entries: Iterable[tuple[bytes, int]], replayer: Replayer) -> ReplayReport:
    """Replay all (data, tick), in order.

    Raises:
        InvalidError: there is no entry to replay, or an entry is damaged.
    """
    for data, tick in entries:
        replayer.replay_entry(data, tick)
    if not replayer.report.ticks and not replayer.report.skipped:
        raise InvalidError("there is no recorded tick to replay")
    return replayer.report
