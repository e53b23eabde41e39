"""What the proxy does to which traffic: rules, added and dropped while it runs, and who draws when a rule strikes.

Owns the words. Must not know sockets. One generator, seeded, draws for all rules, so that a run with the same traffic
draws the same.
"""

import asyncio
import random
from collections.abc import Iterator
from enum import StrEnum

import msgspec


class Trouble(StrEnum):
    """What may happen to a request, a watch, or a connection to Redis."""

    ANSWER = "answer"
    """refused with a status, not forwarded"""
    RESET_BODY = "reset-body"
    """the connection is reset in the middle of the answer's body"""
    SLOW_BODY = "slow-body"
    """the body of the answer comes one byte a second"""
    TIMEOUT_APPLIED = "timeout-applied"
    """forwarded; the answer is dropped, and the connection stays open"""
    TIMEOUT_NOT_APPLIED = "timeout-not-applied"
    """not forwarded, and the connection stays open"""
    WATCH_STALLED = "watch-stalled"
    """nothing more comes on an open connection: neither events nor its end, also when the rule is gone"""
    WATCH_CLOSED = "watch-closed"
    WATCH_GONE = "watch-gone"
    """an ERROR event with 410 inside the answer 200"""
    WATCH_DUPLICATED = "watch-duplicated"
    WATCH_DELAYED = "watch-delayed"
    REDIS_CUT = "redis-cut"
    """connections are reset, new ones as well"""
    REDIS_STALLED = "redis-stalled"
    """connections stay open, nothing passes; those of that time stay dead"""
    REDIS_SLOW = "redis-slow"
    REDIS_TORN = "redis-torn"
    """replies are broken off in the middle"""


OF_CALLS = frozenset(
    {
        Trouble.ANSWER,
        Trouble.RESET_BODY,
        Trouble.SLOW_BODY,
        Trouble.TIMEOUT_APPLIED,
        Trouble.TIMEOUT_NOT_APPLIED,
    }
)
OF_WATCHES = frozenset(kind for kind in Trouble if kind.value.startswith("watch-"))
OF_REDIS = frozenset(kind for kind in Trouble if kind.value.startswith("redis-"))


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One trouble. `doors` are the names of the processes that it strikes; none: all."""

    kind: Trouble
    doors: tuple[str, ...] = ()
    share: float = 1.0
    """how many of the requests it strikes, from 0 to 1"""
    status: int = 503
    retry_after_s: int = 0
    delay_s: float = 0.0

    def is_for(self, door: str) -> bool:
        """Whether traffic of that process is meant."""
        return not self.doors or door in self.doors


class Standing:
    """A rule that is in force until `ended`."""

    def __init__(self, number: int, rule: Rule) -> None:
        self.number = number
        self.rule = rule
        self.ended = asyncio.Event()
        self.struck = 0


class Rules:
    """The rules in force."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._standing: dict[int, Standing] = {}
        self._last = 0

    def add(self, rule: Rule) -> Standing:
        """It holds from now on."""
        self._last += 1
        made = self._standing[self._last] = Standing(self._last, rule)
        return made

    def drop(self, number: int) -> int:
        """It holds no more; how often it struck."""
        ended = self._standing.pop(number, None)
        if ended is None:
            return 0
        ended.ended.set()
        return ended.struck

    def draw(self, door: str, kinds: frozenset[Trouble]) -> Standing | None:
        """The rule that strikes a request of that process now, counted; None for most."""
        for standing in self._of(door, kinds):
            if standing.rule.share >= 1.0 or self._random.random() < standing.rule.share:
                standing.struck += 1
                return standing
        return None

    def holding(self, door: str, kind: Trouble) -> Standing | None:
        """The first rule of that kind for that process."""
        return next(self._of(door, frozenset({kind})), None)

    def _of(self, door: str, kinds: frozenset[Trouble]) -> Iterator[Standing]:
        return (item for item in self._standing.values() if item.rule.kind in kinds and item.rule.is_for(door))
