"""Writes why each pending allocation waits, as a condition: only new texts, and without delaying decisions.

Owns the rate of these writes. The planner makes the text; `apply.py` makes the write. Similar allocations wait for the
same reason, so a tick checks changed allocations and groups whose text has changed, not the whole queue.

A new gate, or the first text, is written at once: up to `WRITES_MAX` per tick. While allocations are being admitted,
the rate is `GATES_PER_S`, because most waiting allocations are then admitted before a user could read the reason.
Another text under the same gate (mostly with other numbers) is written at `TEXTS_PER_S`: for one allocation first
after `INTERVAL_S`, then after twice that, up to `INTERVAL_MAX_S`. Texts that cannot be written now are written later,
at `ExplainResult.again_at`.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from enum import Enum
from heapq import heappop, heappush
from itertools import islice

import msgspec

from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, StaleError, TransientError
from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.position import WorkKey
from slipway.model.reasons import Gate
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.scheduler.apply import Applier, EffectOutcome
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.plan.explanation.explanations import Explanations, WaitingGroup
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.rate_limit import RateLimit

WRITES_MAX = 20
"""The number of explanations that are written in one tick; later ticks write the rest."""
LOOKS_MAX = 2000
"""The number of allocations that one tick checks: changed ones, and members of groups with a new text."""
BUSY_S = 1.0
"""Allocations are regarded as being admitted until so long after the last decision."""
GATES_PER_S, GATES_BURST = 10.0, WRITES_MAX
"""The rate and burst of first texts and new gates while allocations are being admitted."""
TEXTS_PER_S, TEXTS_BURST = 2.0, 10
"""The rate and burst of other texts under the same gate, for all allocations together."""
INTERVAL_S, INTERVAL_MAX_S = 2.0, 64.0
"""The least time between two texts of one allocation under the same gate:
its first value, and the limit of its doubling."""

Observe = Callable[[str, Allocation | None, AllocationFact | None], None]
"""Called after each write: (key, the object after the write, the fact before it)."""
Text = tuple[Gate, str]

_log = log.get_logger(__name__)


class ExplainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number of written texts, and when there is more to write (epoch seconds; None: nothing more)."""

    written: int
    again_at: float | None


class _TextChange(Enum):
    """How an explanation differs from the condition in the object."""

    NONE = "none"
    TEXT = "text"
    GATE = "gate"


class _GroupScan(msgspec.Struct):
    """The scan of a group whose members get its text one after another;
    `after` is the place of the last one checked."""

    text: Text
    after: WorkKey | None = None
    is_done: bool = False


class _WrittenText(msgspec.Struct, frozen=True):
    """Until when the last text of an allocation is kept while its gate stays the same (monotonic seconds), and how
    long."""

    uid: str
    until: float
    lasts_s: float


class Explainer:
    """The explanations of one leadership."""

    def __init__(self, pool: str, applier: Applier, clock: Clock, cluster: Cluster) -> None:
        self._pool = pool
        self._applier = applier
        self._clock = clock
        self._cluster = cluster
        self._changed = cluster.allocations.changes()
        self._noted: dict[str, None] = {}
        """keys of changed allocations that were not checked yet"""
        self._scans: dict[bytes, _GroupScan] = {}
        self._own: dict[str, Text] = {}
        self._gates_due: dict[str, None] = {}
        """keys of allocations that may need a new gate written, in the order in which that was noticed"""
        self._texts_due: dict[str, None] = {}
        """keys of allocations that may need another text under the same gate, in the same order"""
        self._later: list[tuple[float, str]] = []
        """a heap of (when, key): allocations that are to be checked again"""
        self._put_off: set[str] = set()
        """the keys in that heap"""
        self._refused: set[str] = set()
        """the keys in it whose write the API server refused"""
        self._written: dict[str, _WrittenText] = {}
        """{key: the last text under its present gate}"""
        self._gate_rate = RateLimit(GATES_PER_S, GATES_BURST)
        self._text_rate = RateLimit(TEXTS_PER_S, TEXTS_BURST)
        self._decided_at = float("-inf")

    async def write(
        self, explanations: Mapping[str, Explanation], observe: Observe, *, is_deciding: bool
    ) -> ExplainResult:
        """Write the new texts of a plan's explanations; `is_deciding`: this tick has made decisions."""
        if not isinstance(explanations, Explanations):
            return ExplainResult(written=0, again_at=None)
        explained, moment = explanations, self._clock.monotonic()
        if is_deciding:
            self._decided_at = moment
        is_busy = moment < self._decided_at + BUSY_S
        self._find_changed(explained, moment)
        told = self._due(explained, moment, is_busy=is_busy)
        outcomes = await asyncio.gather(*(self._write_one(key, *each, observe) for key, each in told.items()))
        return ExplainResult(
            written=sum(outcome is EffectOutcome.APPLIED for outcome in outcomes),
            again_at=self._again_at(moment, is_busy=is_busy),
        )

    def _due(
        self, explained: Explanations, moment: float, *, is_busy: bool
    ) -> dict[str, tuple[AllocationFact, Explanation]]:
        """Return {key: (fact, explanation)} of the texts that this tick writes."""
        left = self._gate_rate.left(moment)
        told = self._next_batch(self._gates_due, explained, min(left, WRITES_MAX) if is_busy else WRITES_MAX)
        self._gate_rate.spend(min(len(told), left))
        again = self._next_batch(self._texts_due, explained, min(self._text_rate.left(moment), WRITES_MAX - len(told)))
        self._text_rate.spend(len(again))
        for key, (fact, why) in (told | again).items():
            known = self._written.get(key)
            lasts_s = INTERVAL_S
            if (
                known is not None
                and _text_change(fact, why) is _TextChange.TEXT
                and moment < known.until + known.lasts_s
            ):
                lasts_s = min(INTERVAL_MAX_S, 2 * known.lasts_s)
            self._written[key] = _WrittenText(fact.uid, moment + lasts_s, lasts_s)
        return told | again

    def _next_batch(
        self, keys: dict[str, None], explained: Explanations, most: int
    ) -> dict[str, tuple[AllocationFact, Explanation]]:
        """Return the first `most` of `keys` that still have news; remove them and the keys before them from `keys`."""
        taken: dict[str, tuple[AllocationFact, Explanation]] = {}
        while keys and len(taken) < most:
            key = next(iter(keys))
            del keys[key]
            fact = self._cluster.allocations.get(key)
            why = explained.of(fact) if fact is not None else None
            if fact is not None and why is not None and _text_change(fact, why) is not _TextChange.NONE:
                taken[key] = fact, why
        return taken

    def _again_at(self, moment: float, *, is_busy: bool) -> float | None:
        """Return when there is more to do (epoch seconds); None when there is nothing."""
        waits_s: list[float] = []
        if self._noted or not all(scan.is_done for scan in self._scans.values()):
            waits_s.append(0.0)
        if self._gates_due:
            waits_s.append(self._gate_rate.wait_s() if is_busy else 0.0)
        if self._texts_due:
            waits_s.append(self._text_rate.wait_s())
        if self._later:
            waits_s.append(max(0.0, self._later[0][0] - moment))
        return self._clock.now() + min(waits_s) if waits_s else None

    # --- which allocations may need a new text ------------------------------------------------------------------------

    def _find_changed(self, explained: Explanations, moment: float) -> None:
        """Find the allocations that may need a new text after this plan."""
        self._noted |= dict.fromkeys(self._changed.take())
        own = {key: (why.gate, why.message) for key, why in explained.own.items()}
        for key in self._own.keys() | own.keys():
            if self._own.get(key) != own.get(key):
                self._noted[key] = None
        self._own = own
        while self._later and self._later[0][0] <= moment:
            _, key = heappop(self._later)
            self._put_off.discard(key)
            self._refused.discard(key)
            self._noted[key] = None
        looks = LOOKS_MAX
        for key in list(islice(self._noted, looks)):
            del self._noted[key]
            looks -= 1
            self._check(key, explained, moment)
        seen: set[bytes] = set()
        for waiting_group in explained.groups():
            seen.add(waiting_group.key)
            looks -= self._scan(waiting_group, looks, moment)
        self._scans = {key: scan for key, scan in self._scans.items() if key in seen}

    def _scan(self, waiting_group: WaitingGroup, most: int, moment: float) -> int:
        """Continue the scan of a group whose text is new; return how many members were checked."""
        text = (waiting_group.why.gate, waiting_group.why.message)
        scan = self._scans.get(waiting_group.key)
        if scan is None or scan.text != text:
            scan = self._scans[waiting_group.key] = _GroupScan(text)
        if scan.is_done or most <= 0:
            return 0
        start = (
            0 if scan.after is None else bisect_right(waiting_group.members, scan.after, key=lambda member: member[0])
        )
        members = waiting_group.members[start : start + most]
        for order, fact in members:
            scan.after = order
            self._sort(fact, waiting_group.why, moment)
        scan.is_done = start + len(members) >= len(waiting_group.members)
        return len(members)

    def _check(self, key: str, explained: Explanations, moment: float) -> None:
        fact = self._cluster.allocations.get(key)
        if fact is None or fact.phase is not Phase.PENDING:
            self._gates_due.pop(key, None)
            self._texts_due.pop(key, None)
            self._written.pop(key, None)
        elif (why := explained.of(fact)) is not None:
            self._sort(fact, why, moment)

    def _sort(self, fact: AllocationFact, why: Explanation, moment: float) -> None:
        key, news = fact.key, _text_change(fact, why)
        if news is _TextChange.GATE:
            self._texts_due.pop(key, None)
            if key not in self._refused:
                self._gates_due.setdefault(key)
        elif news is _TextChange.TEXT and key not in self._gates_due:
            known = self._written.get(key)
            if known is None or known.uid != fact.uid or known.until <= moment:
                self._texts_due.setdefault(key)
            elif key not in self._put_off:
                self._postpone(known.until, key)

    def _postpone(self, at: float, key: str) -> None:
        self._put_off.add(key)
        heappush(self._later, (at, key))

    # --- writing ----------------------------------------------------------------------------------------------------

    async def _write_one(
        self, key: str, fact: AllocationFact, explanation: Explanation, observe: Observe
    ) -> EffectOutcome | None:
        """Write one explanation; return the outcome, or None when the API server did not accept the write."""
        try:
            applied = await self._applier.explain(fact, explanation.gate, explanation.message)
        except (StaleError, TransientError, DeniedError) as exc:
            _log.warning("explanation not written yet", allocation=key, error=str(exc))
            self._refused.add(key)
            self._postpone(self._clock.monotonic() + INTERVAL_S, key)
            return None
        finally:
            liveness.beat()
        observe(key, applied.allocation, fact)
        return applied.outcome


def _text_change(fact: AllocationFact, why: Explanation) -> _TextChange:
    if fact.phase is not Phase.PENDING or fact.stopping or why.gate is Gate.NOT_YET_CONSIDERED:
        return _TextChange.NONE
    if fact.gate != why.gate.value:
        return _TextChange.GATE
    return _TextChange.TEXT if fact.gate_message != why.message else _TextChange.NONE
