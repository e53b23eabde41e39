"""Usage that fades: each half-life halves what was used before it. Pure, whole numbers only.

Owns the arithmetic: what is left of a use of some age, and of a use that was spread over a stretch of time (the
integral in closed form). There is no floating point, so two processes that read the same usage compute the same value
and order queues and users alike. `DecayedUsage` is what was used up to one moment, by queue and user, and what was
held then.

Invariants: one half-life later exactly half is left, rounded down; an older use never leaves more than a younger one of
the same amount. Source: Slurm's PriorityDecayHalfLife, Kueue's usageHalfLifeTime.
"""

from collections.abc import Mapping
from math import isqrt

import msgspec

from slipway.model.mig import GPU_UNITS
from slipway.model.position import milliseconds

HALF_LIVES_READ = 10
"""What is older than so many half-lives is left out: less than a thousandth of it would be left."""
_BITS = 80
_ONE = 1 << _BITS
"""all of a use is left"""
_FRACTION_BITS = 62
_LOG2E = 0x171547652B82FE177
"""1 / ln 2 in 64 binary digits behind the point"""
_LOG2E_BITS = 64
_UNIT = 1 << 20
"""one GPU, so finely that the GPU time of many is rounded once"""

LEVEL_GPU_MS = 60_000
"""Uses are compared in GPU-minutes: what differs by less is equal, and the next rule decides."""
LEAD_MS = 600_000
"""What runs counts as if it had run so much longer: users who begin at the same moment take turns."""

ByUser = Mapping[str, Mapping[str, int]]
"""{queue: {user: an amount}}"""


def _roots() -> tuple[int, ...]:
    """What is left after a half, a quarter, an eighth ... of a half-life."""
    found = [isqrt(_ONE * _ONE // 2)]
    while len(found) < _FRACTION_BITS:
        found.append(isqrt(found[-1] << _BITS))
    return tuple(found)


_ROOTS = _roots()


def _left(age_ms: int, half_life_ms: int) -> int:
    """The part that is left after `age_ms`, of `_ONE`."""
    halves, rest = divmod(max(0, age_ms), half_life_ms)
    fraction = (rest << _FRACTION_BITS) // half_life_ms
    left = _ONE
    for number, root in enumerate(_ROOTS, 1):
        if fraction >> (_FRACTION_BITS - number) & 1:
            left = left * root >> _BITS
    return left >> halves


def decayed(amount: int, age_ms: int, half_life_ms: int) -> int:
    """What is left of `amount` after `age_ms`."""
    return amount * _left(age_ms, half_life_ms) >> _BITS


def spread(amount: int, begin_ms: int, end_ms: int, now_ms: int, half_life_ms: int) -> int:
    """What is left at `now_ms` of `amount` that was used evenly from `begin_ms` to `end_ms`."""
    if end_ms <= begin_ms:
        return decayed(amount, now_ms - end_ms, half_life_ms)
    gone = _left(now_ms - end_ms, half_life_ms) - _left(now_ms - begin_ms, half_life_ms)
    return amount * half_life_ms * _LOG2E * gone // (end_ms - begin_ms) >> (_BITS + _LOG2E_BITS)


def constant(amount: int, half_life_ms: int) -> int:
    """What is left at any time of a use of `amount` in each millisecond that has always gone on."""
    return amount * half_life_ms * _LOG2E >> _LOG2E_BITS


def level(gpu_ms: int, gpu_units: int = 0) -> int:
    """By what users of one queue are compared who used `gpu_ms` and hold `gpu_units`: ascending, who goes first."""
    return (gpu_ms + gpu_units * LEAD_MS // GPU_UNITS) // LEVEL_GPU_MS


class DecayedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time at one moment, as far as it had not faded, and what was held then: from that it goes on."""

    at_ms: int = 0
    """epoch milliseconds"""
    half_life_ms: int = 0
    """0: nothing is known"""
    used: ByUser = {}
    """GPU-milliseconds"""
    held: ByUser = {}
    """GPUs, in `GPU_UNITS`"""

    def at(self, now: float) -> ByUser:
        """{queue: {user: GPU-milliseconds left at `now` (epoch seconds)}}, in order of the names."""
        if not self.half_life_ms:
            return {}
        now_ms = max(milliseconds(now), self.at_ms)
        left = _left(now_ms - self.at_ms, self.half_life_ms)
        one_held = spread(_UNIT * (now_ms - self.at_ms), self.at_ms, now_ms, now_ms, self.half_life_ms)
        return {
            queue: {
                user: (self.used.get(queue, {}).get(user, 0) * left >> _BITS)
                + self.held.get(queue, {}).get(user, 0) * one_held // (_UNIT * GPU_UNITS)
                for user in sorted(self.used.get(queue, {}).keys() | self.held.get(queue, {}).keys())
            }
            for queue in sorted(self.used.keys() | self.held.keys())
        }

    def going_on(self, now: float, held: ByUser) -> "DecayedUsage":
        """The usage at `now`, from when on `held` is held."""
        used = {
            queue: left
            for queue, users in self.at(now).items()
            if (left := {user: amount for user, amount in users.items() if amount})
        }
        at_ms = max(milliseconds(now), self.at_ms)
        return DecayedUsage(at_ms=at_ms, half_life_ms=self.half_life_ms, used=used, held=held)
