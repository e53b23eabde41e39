"""Decayed usage: each half-life halves the usage before it. Pure, whole numbers only.

Owns the arithmetic: the remainder of a usage of some age, and of a usage that was spread over a period (the integral in
closed form). There is no floating point, so two processes that read the same usage compute the same value and order
queues and users in the same way. `DecayedUsage` is the usage up to one time, by queue and user, and the GPUs in use at
that time.

Invariants: after one half-life exactly half remains, rounded down; of two usages of the same amount, the older never
has the larger remainder. Source: Slurm's PriorityDecayHalfLife, Kueue's usageHalfLifeTime.
"""

from collections.abc import Mapping
from math import isqrt

import msgspec

from slipway.model.mig import GPU_UNITS
from slipway.model.position import milliseconds

HALF_LIVES_READ = 10
"""Usage older than this number of half-lives is ignored: less than a thousandth of it would remain."""
_BITS = 80
_ONE = 1 << _BITS
"""the remainder of a usage that has not decayed"""
_FRACTION_BITS = 62
_LOG2E = 0x171547652B82FE177
"""1 / ln 2 in 64 binary digits behind the point"""
_LOG2E_BITS = 64
_UNIT = 1 << 20
"""parts into which one GPU is divided, so that the GPU time of many GPUs is rounded only once"""

LEVEL_GPU_MS = 60_000
"""Usages are compared in GPU-minutes: if two differ by less, they are equal and the next rule decides."""
LEAD_MS = 600_000
"""Running ranks are charged this much extra time, so that users who start at the same time take turns."""

ByUser = Mapping[str, Mapping[str, int]]
"""{queue: {user: an amount}}"""


def _roots() -> tuple[int, ...]:
    """Return the remainders after a half, a quarter, an eighth ... of a half-life."""
    found = [isqrt(_ONE * _ONE // 2)]
    while len(found) < _FRACTION_BITS:
        found.append(isqrt(found[-1] << _BITS))
    return tuple(found)


_ROOTS = _roots()


def _left(age_ms: int, half_life_ms: int) -> int:
    """Return the part of `_ONE` that remains after `age_ms`."""
    halves, rest = divmod(max(0, age_ms), half_life_ms)
    fraction = (rest << _FRACTION_BITS) // half_life_ms
    left = _ONE
    for number, root in enumerate(_ROOTS, 1):
        if fraction >> (_FRACTION_BITS - number) & 1:
            left = left * root >> _BITS
    return left >> halves


def decayed(amount: int, age_ms: int, half_life_ms: int) -> int:
    """Return the part of `amount` that remains after `age_ms`."""
    return amount * _left(age_ms, half_life_ms) >> _BITS


def spread(amount: int, begin_ms: int, end_ms: int, now_ms: int, half_life_ms: int) -> int:
    """Return the part of `amount` that remains at `now_ms`; it was used evenly from `begin_ms` to `end_ms`."""
    if end_ms <= begin_ms:
        return decayed(amount, now_ms - end_ms, half_life_ms)
    gone = _left(now_ms - end_ms, half_life_ms) - _left(now_ms - begin_ms, half_life_ms)
    return amount * half_life_ms * _LOG2E * gone // (end_ms - begin_ms) >> (_BITS + _LOG2E_BITS)


def constant(amount: int, half_life_ms: int) -> int:
    """Return the constant remainder of a usage of `amount` per millisecond that never started and never ends."""
    return amount * half_life_ms * _LOG2E >> _LOG2E_BITS


def level(gpu_ms: int, gpu_units: int = 0) -> int:
    """Return the sort key of a user of a queue who used `gpu_ms` and has `gpu_units` in use now; the lowest key is
    first."""
    return (gpu_ms + gpu_units * LEAD_MS // GPU_UNITS) // LEVEL_GPU_MS


class DecayedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The decayed GPU time at one time, and the GPUs in use at that time. Later values are computed from both."""

    at_ms: int = 0
    """epoch milliseconds"""
    half_life_ms: int = 0
    """0: no usage is known"""
    used: ByUser = {}
    """GPU-milliseconds"""
    held: ByUser = {}
    """GPUs, in `GPU_UNITS`"""

    def at(self, now: float) -> ByUser:
        """Return {queue: {user: GPU-milliseconds that remain at `now` (epoch seconds)}}, sorted by name."""
        if not self.half_life_ms:
            return {}
        now_ms = max(milliseconds(now), self.at_ms)
        left = _left(now_ms - self.at_ms, self.half_life_ms)
        one_held = spread(_UNIT * (now_ms - self.at_ms), self.at_ms, now_ms, now_ms, self.half_life_ms)
        found: dict[str, dict[str, int]] = {}
        for queue in sorted(self.used.keys() | self.held.keys()):
            used, held = self.used.get(queue, {}), self.held.get(queue, {})
            found[queue] = {
                user: (used.get(user, 0) * left >> _BITS) + held.get(user, 0) * one_held // (_UNIT * GPU_UNITS)
                for user in sorted(used.keys() | held.keys())
            }
        return found

    def going_on(self, now: float, held: ByUser) -> "DecayedUsage":
        """Return the usage at `now`; `held` replaces the GPUs in use from then on."""
        used = {
            queue: left
            for queue, users in self.at(now).items()
            if (left := {user: amount for user, amount in users.items() if amount})
        }
        at_ms = max(milliseconds(now), self.at_ms)
        return DecayedUsage(at_ms=at_ms, half_life_ms=self.half_life_ms, used=used, held=held)
