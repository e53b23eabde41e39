"""Recorded ticks planned again. Pure.

Without another policy a replay must say, bit for bit, what was recorded; every difference is reported. With another
policy (one that is given, or the shadow of the pool as it stood then) it says what would have been decided otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from slipway.errors import InvalidError
from slipway.model.facts import PoolFact
from slipway.scheduler.decisions.decided import decided_of, divergences
from slipway.scheduler.decisions.fold import BrokenChainError, Fold
from slipway.scheduler.decisions.record import (
    Decided,
    DecisionRecord,
    Divergence,
    OtherFormatError,
    canonical,
    policy_hash,
    unpack,
)
from slipway.scheduler.plan.placement.plan_trace import Trail
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import Answers
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

CHAINS_MAX = 2
"""Chains that are folded at the same time: a leader's, and one that was just replaced."""

OtherPolicy = Callable[[PoolFact], PoolFact | None]
"""The pool as it shall be for a replay; None: this tick has no other policy."""


class ReplayDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a replay does not reproduce. `allocation` is empty where it is about the whole tick."""

    tick: int
    what: str
    allocation: str = ""
    recorded: Any = None
    replayed: Any = None


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that could not be replayed, for no fault of theirs."""

    tick: int
    why: str


class Would(msgspec.Struct, frozen=True, kw_only=True):
    """What another policy would have decided otherwise in one tick."""

    tick: int
    same: int
    different: tuple[Divergence, ...]


class ReplayReport(msgspec.Struct, kw_only=True, rename="camel"):
    """What became of a replay."""

    pool: str = ""
    first: int | None = None
    """ticks that were replayed"""
    last: int | None = None
    ticks: int = 0
    decisions: int = 0
    """recorded decisions in them"""
    same: int = 0
    differences: list[ReplayDifference] = []
    would: list[Would] = []
    """by another policy; ticks in which it would have done the same are left out"""
    skipped: list[Skipped] = []
    planners: list[str] = []
    """versions of Slipway that recorded them"""


class Replayer:
    """Takes entries in the order of the log, of one pool, and keeps the report."""

    def __init__(self, *, first: int = 0, last: int | None = None, other: OtherPolicy | None = None) -> None:
        self.report = ReplayReport()
        self._first = first
        self._last = last
        self._other = other
        self._folds: dict[str, Fold] = {}

    def take(self, data: bytes, tick: int) -> None:
        """One entry of the log; `tick` is what the log says of it, for what cannot be read.

        Raises:
            InvalidError: it is damaged, or its inputs are not those that were recorded.
        """
        try:
            record = unpack(data)
            if self._last is not None and record.tick > self._last:
                return
            fold, snapshot = self._snapshot(record)
        except (OtherFormatError, BrokenChainError) as exc:
            if tick >= self._first:
                self.report.skipped.append(Skipped(tick=tick, why=str(exc)))
            return
        if record.tick >= self._first:
            self._compare(record, snapshot, fold.answers if record.consulted else None)

    def _snapshot(self, record: DecisionRecord) -> tuple[Fold, PoolSnapshot]:
        fold = self._folds.pop(record.chain, None)
        if fold is None or record.number == 0:
            fold = Fold(record)
        snapshot = fold.apply(record)
        self._folds[record.chain] = fold
        while len(self._folds) > CHAINS_MAX:
            del self._folds[next(iter(self._folds))]
        return fold, snapshot

    def _compare(self, record: DecisionRecord, snapshot: PoolSnapshot, answers: Answers | None) -> None:
        report, decided = self.report, record.decided
        report.pool = record.pool
        report.first = record.tick if report.first is None else report.first
        report.last = record.tick
        report.ticks += 1
        report.decisions += len(decided.admits) + len(decided.evictions)
        if record.planner and record.planner not in report.planners:
            report.planners.append(record.planner)
        if self._other is not None:
            pool = self._other(snapshot.pool)
            if pool is not None:
                self._plan_otherwise(record, snapshot, answers, pool)
            return
        again = replayed(record, snapshot, answers)
        report.same += divergences(decided, again)[0]
        report.differences += differences(record, again, policy_hash(policy_of(snapshot.pool)))

    def _plan_otherwise(
        self, record: DecisionRecord, snapshot: PoolSnapshot, answers: Answers | None, pool: PoolFact
    ) -> None:
        decided = replayed(record, msgspec.structs.replace(snapshot, pool=pool), answers)
        same, different = divergences(record.decided, decided)
        self.report.same += same
        if different:
            self.report.would.append(Would(tick=record.tick, same=same, different=tuple(different)))


def replayed(record: DecisionRecord, snapshot: PoolSnapshot, answers: Answers | None = None) -> Decided:
    """What the planner says of a recorded tick now, under the policy of the snapshot's pool."""
    trail = Trail()
    policy = policy_of(snapshot.pool)
    return decided_of(
        plan(snapshot, policy, record.at, record.seed, answers=answers, watch=trail, grows=record.grows), trail
    )


def differences(record: DecisionRecord, again: Decided, policy: str) -> list[ReplayDifference]:
    """Everything in which a replay differs from what was recorded."""
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


def _parts(before: Decided, after: Decided) -> Iterator[tuple[str, Any, Any]]:
    """(name, recorded, replayed) of all that must be the same; of the trail, where both have looked."""
    for name in ("admits", "evictions", "grows", "deferred", "dropped", "kept", "waiting", "reasons"):
        yield name, getattr(before, name), getattr(after, name)
    looked = set(before.looked) & set(after.looked)
    one, two = ([key for key in each.looked if key in looked] for each in (before, after))
    if not (_is_within(one, two) or _is_within(two, one)):
        yield "looked", one, two
    scored = before.scores.keys() & after.scores.keys()
    yield "scores", {key: before.scores[key] for key in scored}, {key: after.scores[key] for key in scored}


def _is_within(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Whether `part` is in `whole` in its order. What a planner remembers it does not look at again, so that of several
    looks at one allocation some may be in one trail alone."""
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
    """All of (data, tick), in order.

    Raises:
        InvalidError: there is nothing to replay, or what is there is damaged.
    """
    for data, tick in entries:
        replayer.take(data, tick)
    if not replayer.report.ticks and not replayer.report.skipped:
        raise InvalidError("there is no recorded tick to replay")
    return replayer.report
