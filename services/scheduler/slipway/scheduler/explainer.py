"""Writes to each pending allocation, as a condition, why it waits: only what is new, and without delaying decisions.

Owns the rate of these writes. The planner makes the text; `apply.py` makes the write. Allocations that are alike wait
for the same reason, so a tick looks at what has changed and at groups whose text has changed, not at the whole queue.

A new gate, or the first text, is written at once: up to `WRITES_MAX` per tick. While work is being admitted the rate is
`TOLD_PER_S`, because most of what waits then is admitted before a user could read the reason. Another text under the
same gate (mostly other numbers) is written at `RETOLD_PER_S`: for one allocation first after `INTERVAL_S`, then after
twice that, up to `INTERVAL_MAX_S`. What cannot be written now is written later: `Said.again_at` says when.
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
from slipway.scheduler.plan.explanation.explanations import Alike, Explained
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.rate_limit import RateLimit

WRITES_MAX = 20
"""Explanations written in one tick; the rest follow in the next ones."""
LOOKS_MAX = 2000
"""Members of groups with a new text, and allocations that have changed, that are looked at in one tick."""
BUSY_S = 1.0
"""So long after a decision, work counts as being decided."""
TOLD_PER_S, TOLD_BURST = 10.0, WRITES_MAX
"""First words and new gates written while work is being decided."""
RETOLD_PER_S, RETOLD_BURST = 2.0, 10
"""Other texts under the same gate, of all allocations together."""
INTERVAL_S, INTERVAL_MAX_S = 2.0, 64.0
"""One allocation's text is rewritten no sooner than this after its last one, while its gate stays the same."""

Observe = Callable[[str, Allocation | None, AllocationFact | None], None]
"""Told of each write: the key, the object as it stands now, the fact that was known before."""
Text = tuple[Gate, str]

_log = log.get_logger(__name__)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """How many texts were written, and when (epoch seconds) there is more to write, if there is."""

    written: int
    again_at: float | None


class _News(Enum):
    """How an explanation differs from what the object says."""

    NONE = "none"
    TEXT = "text"
    GATE = "gate"


class _Scan(msgspec.Struct):
    """A group whose members are told its text one after another; `after` is the place of the last looked at."""

    text: Text
    after: WorkKey | None = None
    is_done: bool = False


class _Told(msgspec.Struct, frozen=True):
    """Until when (monotonic seconds) what one was told last is to stand while its gate stays the same, and for how long
    that was."""

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
        """keys of what has changed and was not looked at yet"""
        self._scans: dict[bytes, _Scan] = {}
        self._own: dict[str, Text] = {}
        self._untold: dict[str, None] = {}
        """keys of those that may have to be told another gate, in the order in which that was noticed"""
        self._outdated: dict[str, None] = {}
        """the same of those whose gate has stayed"""
        self._later: list[tuple[float, str]] = []
        """(when, key): a heap of those that are to be looked at again"""
        self._put_off: set[str] = set()
        """the keys in it"""
        self._refused: set[str] = set()
        """those of them of which the API server would not take a word"""
        self._told: dict[str, _Told] = {}
        """{key: what it was told under its present gate}"""
        self._telling = RateLimit(TOLD_PER_S, TOLD_BURST)
        self._retelling = RateLimit(RETOLD_PER_S, RETOLD_BURST)
        self._decided_at = float("-inf")

    async def write(self, explanations: Mapping[str, Explanation], observe: Observe, *, is_deciding: bool) -> Said:
        """Write what is news of a plan's explanations; `is_deciding`: work was decided in this tick."""
        if not isinstance(explanations, Explained):
            return Said(written=0, again_at=None)
        explained, moment = explanations, self._clock.monotonic()
        if is_deciding:
            self._decided_at = moment
        is_busy = moment < self._decided_at + BUSY_S
        self._notice(explained, moment)
        told = self._due(explained, moment, is_busy=is_busy)
        outcomes = await asyncio.gather(*(self._write_one(key, *each, observe) for key, each in told.items()))
        return Said(
            written=sum(outcome is EffectOutcome.APPLIED for outcome in outcomes),
            again_at=self._again_at(moment, is_busy=is_busy),
        )

    def _due(
        self, explained: Explained, moment: float, *, is_busy: bool
    ) -> dict[str, tuple[AllocationFact, Explanation]]:
        """Who is told in this tick, and what."""
        left = self._telling.left(moment)
        told = self._take(self._untold, explained, min(left, WRITES_MAX) if is_busy else WRITES_MAX)
        self._telling.spend(min(len(told), left))
        again = self._take(self._outdated, explained, min(self._retelling.left(moment), WRITES_MAX - len(told)))
        self._retelling.spend(len(again))
        for key, (fact, why) in (told | again).items():
            known = self._told.get(key)
            lasts_s = INTERVAL_S
            if known is not None and _news(fact, why) is _News.TEXT and moment < known.until + known.lasts_s:
                lasts_s = min(INTERVAL_MAX_S, 2 * known.lasts_s)
            self._told[key] = _Told(fact.uid, moment + lasts_s, lasts_s)
        return told | again

    def _take(
        self, keys: dict[str, None], explained: Explained, most: int
    ) -> dict[str, tuple[AllocationFact, Explanation]]:
        """The first `most` of `keys` for whom there still is news; they and those before them are gone from `keys`."""
        taken: dict[str, tuple[AllocationFact, Explanation]] = {}
        while keys and len(taken) < most:
            key = next(iter(keys))
            del keys[key]
            fact = self._cluster.allocations.get(key)
            why = explained.of(fact) if fact is not None else None
            if fact is not None and why is not None and _news(fact, why) is not _News.NONE:
                taken[key] = fact, why
        return taken

    def _again_at(self, moment: float, *, is_busy: bool) -> float | None:
        """When there is more to do (epoch seconds)."""
        waits_s: list[float] = []
        if self._noted or not all(scan.is_done for scan in self._scans.values()):
            waits_s.append(0.0)
        if self._untold:
            waits_s.append(self._telling.wait_s() if is_busy else 0.0)
        if self._outdated:
            waits_s.append(self._retelling.wait_s())
        if self._later:
            waits_s.append(max(0.0, self._later[0][0] - moment))
        return self._clock.now() + min(waits_s) if waits_s else None

    # --- whom there may be something to say to ------------------------------------------------------------------------

    def _notice(self, explained: Explained, moment: float) -> None:
        """Whom this plan may have something new to say to."""
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
            self._look(key, explained, moment)
        seen: set[bytes] = set()
        for alike in explained.alike():
            seen.add(alike.key)
            looks -= self._scan(alike, looks, moment)
        self._scans = {key: scan for key, scan in self._scans.items() if key in seen}

    def _scan(self, alike: Alike, most: int, moment: float) -> int:
        """Go on through the members of a group whose text is new; answers how many were looked at."""
        text = (alike.why.gate, alike.why.message)
        scan = self._scans.get(alike.key)
        if scan is None or scan.text != text:
            scan = self._scans[alike.key] = _Scan(text)
        if scan.is_done or most <= 0:
            return 0
        start = 0 if scan.after is None else bisect_right(alike.members, scan.after, key=lambda member: member[0])
        members = alike.members[start : start + most]
        for order, fact in members:
            scan.after = order
            self._sort(fact, alike.why, moment)
        scan.is_done = start + len(members) >= len(alike.members)
        return len(members)

    def _look(self, key: str, explained: Explained, moment: float) -> None:
        fact = self._cluster.allocations.get(key)
        if fact is None or fact.phase is not Phase.PENDING:
            self._untold.pop(key, None)
            self._outdated.pop(key, None)
            self._told.pop(key, None)
        elif (why := explained.of(fact)) is not None:
            self._sort(fact, why, moment)

    def _sort(self, fact: AllocationFact, why: Explanation, moment: float) -> None:
        key, news = fact.key, _news(fact, why)
        if news is _News.GATE:
            self._outdated.pop(key, None)
            if key not in self._refused:
                self._untold.setdefault(key)
        elif news is _News.TEXT and key not in self._untold:
            known = self._told.get(key)
            if known is None or known.uid != fact.uid or known.until <= moment:
                self._outdated.setdefault(key)
            elif key not in self._put_off:
                self._put_off_until(known.until, key)

    def _put_off_until(self, at: float, key: str) -> None:
        self._put_off.add(key)
        heappush(self._later, (at, key))

    # --- saying it ----------------------------------------------------------------------------------------------------

    async def _write_one(
        self, key: str, fact: AllocationFact, explanation: Explanation, observe: Observe
    ) -> EffectOutcome | None:
        """What became of it; None: the API server did not take it."""
        try:
            applied = await self._applier.explain(fact, explanation.gate, explanation.message)
        except (StaleError, TransientError, DeniedError) as exc:
            _log.warning("explanation not written yet", allocation=key, error=str(exc))
            self._refused.add(key)
            self._put_off_until(self._clock.monotonic() + INTERVAL_S, key)
            return None
        finally:
            liveness.beat()
        observe(key, applied.allocation, fact)
        return applied.outcome


def _news(fact: AllocationFact, why: Explanation) -> _News:
    if fact.phase is not Phase.PENDING or fact.stopping or why.gate is Gate.NOT_YET_CONSIDERED:
        return _News.NONE
    if fact.gate != why.gate.value:
        return _News.GATE
    return _News.TEXT if fact.gate_message != why.message else _News.NONE
