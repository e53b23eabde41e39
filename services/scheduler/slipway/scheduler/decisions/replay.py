"""Plans recorded ticks again. Pure.

Without another policy a replay must yield the recorded decisions, bit for bit; every difference is reported. With
another policy (a given one, or the shadow policy that the pool had then) it reports the decisions that would differ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from slipway.errors import InvalidError
from slipway.model.facts import PoolFact
from slipway.scheduler.decisions.plan_comparison import decisions_of, divergences
from slipway.scheduler.decisions.record import (
    DecisionRecord,
    Divergence,
    OtherFormatError,
    RecordedDecisions,
    canonical,
    policy_hash,
    unpack,
)
from slipway.scheduler.decisions.snapshot_rebuilder import BrokenChainError, SnapshotRebuilder
from slipway.scheduler.plan.placement.plan_trace import PlanTrace
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import Answers
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

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
