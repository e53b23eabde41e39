"""Writes why pending allocations wait, as a condition on each: bounded per tick, and only when it is news.

Owns the pace. The words are the planner's; the write is `apply.py`'s. What is alike waits for the same, so a tick looks
at what has changed and at groups whose text has, never at the whole queue. A text that can not be written now (too many
in this tick, or too soon after the last one) is written later: `Said.again_at` says when to look again.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping

import msgspec

from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, StaleError, TransientError
from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.position import WorkKey
from slipway.model.reasons import Gate
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.scheduler.apply import Applier, Outcome
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.plan.explained import Alike, Explained
from slipway.scheduler.plan.outcome import Explanation

WRITES_MAX = 20
"""Explanations written in one tick; the rest follow in the next ones."""
LOOKS_MAX = 2000
"""Members of groups with a new text that are looked at in one tick."""
INTERVAL_S = 2.0
"""One allocation's text is rewritten at most this often while its gate stays the same."""

Observe = Callable[[str, Allocation | None], None]
Text = tuple[Gate, str]

_log = log.get_logger(__name__)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """How many texts were written, and when (epoch seconds) there is more to write, if there is."""

    written: int
    again_at: float | None


class _Scan(msgspec.Struct):
    """A group whose members are told its text one after another; `after` is the place of the last looked at."""

    text: Text
    after: WorkKey | None = None
    is_done: bool = False


class Explainer:
    """The explanations of one leadership."""

    def __init__(self, pool: str, applier: Applier, clock: Clock, cluster: Cluster) -> None:
        self._pool = pool
        self._applier = applier
        self._clock = clock
        self._cluster = cluster
        self._changed = cluster.allocations.changes()
        self._last: dict[str, float] = {}
        self._scans: dict[bytes, _Scan] = {}
        self._own: dict[str, Text] = {}
        self._untold: dict[str, None] = {}
        """keys of those that may have to be told something, in the order in which that was noticed"""

    async def write(self, explanations: Mapping[str, Explanation], observe: Observe) -> Said:
        """Write what is news of a plan's explanations; `observe` is told each object as it stands after its write."""
        if not isinstance(explanations, Explained):
            return Said(written=0, again_at=None)
        explained = explanations
        moment, written = self._clock.monotonic(), 0
        self._notice(explained)
        kept: dict[str, None] = {}
        again_s: list[float] = []
        for key in self._untold:
            fact = self._cluster.allocations.get(key)
            explanation = explained.of(fact) if fact is not None else None
            if fact is None or explanation is None or not _is_news(fact, explanation):
                continue
            wait_s = self._wait_s(fact, explanation, moment)
            if wait_s > 0 or written >= WRITES_MAX:
                kept[key] = None
                again_s.append(wait_s)
                continue
            outcome = await self._write_one(key, fact, explanation, observe)
            written += outcome is Outcome.APPLIED
            if outcome is None:
                kept[key] = None
                again_s.append(INTERVAL_S)
        self._untold = kept
        if not all(scan.is_done for scan in self._scans.values()):
            again_s.append(0.0)
        self._last = {uid: at for uid, at in self._last.items() if moment - at < INTERVAL_S}
        return Said(written=written, again_at=self._clock.now() + min(again_s) if again_s else None)

    def _notice(self, explained: Explained) -> None:
        """Whom this plan may have something new to say to."""
        self._untold |= dict.fromkeys(self._changed.take())
        own = {key: (why.gate, why.message) for key, why in explained.own.items()}
        for key in self._own.keys() | own.keys():
            if self._own.get(key) != own.get(key):
                self._untold[key] = None
        self._own = own
        seen: set[bytes] = set()
        looks = LOOKS_MAX
        for alike in explained.alike():
            seen.add(alike.key)
            looks -= self._scan(alike, looks)
        self._scans = {key: scan for key, scan in self._scans.items() if key in seen}

    def _scan(self, alike: Alike, most: int) -> int:
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
            if _is_news(fact, alike.why):
                self._untold[fact.key] = None
        scan.is_done = start + len(members) >= len(alike.members)
        return len(members)

    async def _write_one(
        self, key: str, fact: AllocationFact, explanation: Explanation, observe: Observe
    ) -> Outcome | None:
        """What became of it; None: the API server did not take it."""
        self._last[fact.uid] = self._clock.monotonic()
        try:
            applied = await self._applier.explain(
                fact.namespace, fact.name, fact.uid, fact.attempt, explanation.gate, explanation.message
            )
        except (StaleError, TransientError, DeniedError) as exc:
            _log.warning("explanation not written yet", allocation=key, error=str(exc))
            return None
        observe(key, applied.allocation)
        return applied.outcome

    def _wait_s(self, fact: AllocationFact, explanation: Explanation, moment: float) -> float:
        if fact.gate != explanation.gate.value or fact.uid not in self._last:
            return 0.0
        return max(0.0, self._last[fact.uid] + INTERVAL_S - moment)


def _is_news(fact: AllocationFact, explanation: Explanation) -> bool:
    is_waiting = fact.phase is Phase.PENDING and not fact.stopping
    is_said = (fact.gate, fact.gate_message) == (explanation.gate.value, explanation.message)
    return is_waiting and not is_said and explanation.gate is not Gate.NOT_YET_CONSIDERED
