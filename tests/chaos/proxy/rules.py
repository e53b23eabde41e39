"""The effects of the proxy on traffic: rules that are added and dropped while it runs, and the draw whether a rule
strikes.

Owns the names. Must not know sockets. One seeded generator draws for all rules, so that equal traffic gives equal
draws.
"""

import asyncio
import random
from collections.abc import Iterator
from enum import StrEnum

import msgspec


class Effect(StrEnum):
    """The effect on a request, a watch, or a connection to Redis."""

    ANSWER = "answer"
    """refused with a status, not forwarded"""
    RESET_BODY = "reset-body"
    """the connection is reset in the middle of the answer's body"""
    SLOW_BODY = "slow-body"
    """the body of the answer is sent at one byte a second"""
    TIMEOUT_APPLIED = "timeout-applied"
    """forwarded; the answer is dropped, and the connection stays open"""
    TIMEOUT_NOT_APPLIED = "timeout-not-applied"
    """not forwarded, and the connection stays open"""
    WATCH_STALLED = "watch-stalled"
    """nothing more is sent on an open connection, neither events nor its end, also after the rule is dropped"""
    WATCH_CLOSED = "watch-closed"
    WATCH_GONE = "watch-gone"
    """an ERROR event with 410 inside the answer 200"""
    WATCH_DUPLICATED = "watch-duplicated"
    WATCH_DELAYED = "watch-delayed"
    REDIS_CUT = "redis-cut"
    """connections are reset, new ones too"""
    REDIS_STALLED = "redis-stalled"
    """connections stay open, nothing passes; connections of that time stay dead"""
    REDIS_SLOW = "redis-slow"
    REDIS_TORN = "redis-torn"
    """replies are cut off in the middle"""


OF_CALLS = frozenset(
    {
        Effect.ANSWER,
        Effect.RESET_BODY,
        Effect.SLOW_BODY,
        Effect.TIMEOUT_APPLIED,
        Effect.TIMEOUT_NOT_APPLIED,
    }
)
OF_WATCHES = frozenset(kind for kind in Effect if kind.value.startswith("watch-"))
OF_REDIS = frozenset(kind for kind in Effect if kind.value.startswith("redis-"))


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One effect. `listeners` are the names of the affected processes; none: all."""

    kind: Effect
    listeners: tuple[str, ...] = ()
    share: float = 1.0
    """the share of requests that it strikes, from 0 to 1"""
    status: int = 503
    retry_after_s: int = 0
    delay_s: float = 0.0

    def is_for(self, listener: str) -> bool:
        """Whether the rule affects traffic of that process."""
        return not self.listeners or listener in self.listeners


class ActiveRule:
    """A rule that is active until `ended`."""

    def __init__(self, number: int, rule: Rule) -> None:
        self.number = number
        self.rule = rule
        self.ended = asyncio.Event()
        self.struck = 0


class Rules:
    """The active rules."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._standing: dict[int, ActiveRule] = {}
        self._last = 0

    def add(self, rule: Rule) -> ActiveRule:
        """Activate a rule."""
        self._last += 1
        made = self._standing[self._last] = ActiveRule(self._last, rule)
        return made

    def drop(self, number: int) -> int:
        """Drop a rule and return how often it struck."""
        ended = self._standing.pop(number, None)
        if ended is None:
            return 0
        ended.ended.set()
        return ended.struck

    def draw(self, listener: str, kinds: frozenset[Effect]) -> ActiveRule | None:
        """The rule that strikes this request of that process, which is counted; None for most requests."""
        for active_rule in self._of(listener, kinds):
            if active_rule.rule.share >= 1.0 or self._random.random() < active_rule.rule.share:
                active_rule.struck += 1
                return active_rule
        return None

    def holding(self, listener: str, kind: Effect) -> ActiveRule | None:
        """The first active rule of that kind for that process."""
        return next(self._of(listener, frozenset({kind})), None)

    def _of(self, listener: str, kinds: frozenset[Effect]) -> Iterator[ActiveRule]:
        return (item for item in self._standing.values() if item.rule.kind in kinds and item.rule.is_for(listener))
