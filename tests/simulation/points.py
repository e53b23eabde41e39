"""Which faults to try: every boundary of every effect, every way a call can fail, and random handfuls.

Owns the enumeration. A run without faults tells which effects there are; each of them gives some points. Pure.
"""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum

from tests.support.faults import ERRORS, Effect, Fault, Kind


class Family(StrEnum):
    """Kinds of points."""

    CRASH = "crash"
    ERROR = "error"
    FLUSH = "flush"
    FREEZE = "freeze"


def points(effects: Sequence[Effect], families: Sequence[Family], *, has_redis: bool) -> Iterator[Fault]:
    """Every single fault of these families."""
    for effect in effects:
        moments = ("before", "after") if effect.has_before else ("after",)
        if Family.CRASH in families:
            yield from (Fault(Kind.CRASH, effect.role, effect.number, moment) for moment in moments)
        if Family.ERROR in families:
            yield from _errors(effect)
        if Family.FLUSH in families and has_redis:
            yield Fault(Kind.FLUSH, effect.role, effect.number, "after")
        if Family.FREEZE in families and effect.has_before:
            yield Fault(Kind.FREEZE, effect.role, effect.number, "before")


def handful(effects: Sequence[Effect], seed: int, *, has_redis: bool) -> tuple[Fault, ...]:
    """A few faults of any family in one run."""
    chance = random.Random(seed)
    every = list(points(effects, list(Family), has_redis=has_redis))
    return tuple(chance.sample(every, min(len(every), chance.randint(2, 5))))


def _errors(effect: Effect) -> Iterator[Fault]:
    if not effect.has_before:
        return
    kinds = ERRORS if effect.is_kube else (Kind.SERVER_ERROR, Kind.TIMEOUT_APPLIED)
    for kind in kinds:
        if kind is Kind.CONFLICT and effect.verb in ("create", "bind"):
            # The API server has no such answer for these: a name that exists is another error.
            continue
        yield Fault(kind, effect.role, effect.number, "after" if kind is Kind.TIMEOUT_APPLIED else "before")
