"""The past usage of queues and users, as the api shows it: read as the scheduler reads it, and cached for a minute.

Only pools with `fairShare` are read. The arithmetic is the scheduler's own (`model/decay.py`), so the api shows the
order that the scheduler applies, except for changes within that minute.

The daily totals of usage, which the watcher writes, cost one read of the API server for each day.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slipway.accounting import daily_totals
from slipway.accounting.usage import gpu_units_of
from slipway.api.deps import ApiDeps
from slipway.crd.figures import DayTotals
from slipway.crd.transitions import is_admitted, user_of
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.errors import NotFoundError, UnavailableError
from slipway.facts.custom_resources import fair_share
from slipway.kube.resources import CONFIG_MAPS, QUEUES
from slipway.model.decay import ByUser, DecayedUsage, level
from slipway.model.facts import LEAST_USED
from slipway.model.lifecycle import Phase
from slipway.model.position import milliseconds

READS_AT_ONCE = 8


async def read_days(parts: ApiDeps, days: Sequence[str]) -> dict[str, DayTotals]:
    """Return {day: its totals}; the totals of a day without usage are empty.

    Raises:
        UnavailableError: the ConfigMap of a day cannot be decoded.
    """
    slots = asyncio.Semaphore(READS_AT_ONCE)

    async def read(day: str) -> DayTotals:
        name = daily_totals.name_of(day)
        async with slots:
            try:
                found = await parts.whole.get(CONFIG_MAPS, name, namespace=parts.settings.namespace)
            except NotFoundError:
                return DayTotals()
        try:
            return daily_totals.decode(found.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnavailableError(f"ConfigMap {name} does not contain totals of usage: {error}") from error

    return dict(zip(days, await asyncio.gather(*map(read, days)), strict=True))


Levels = Mapping[tuple[str, str], Mapping[str, int]]
"""{(pool, queue): {user: the decayed usage that orders the users}}"""


async def past_use_of(parts: ApiDeps, pool: ResourcePool) -> ByUser:
    """Return the decayed usage of a pool, {queue: {user: GPU-milliseconds}}; empty without `fairShare`."""
    rule = fair_share(pool.spec.fair_share)
    if rule is None:
        return {}
    half_life_ms, name = milliseconds(rule.half_life_s), pool.metadata.name

    async def load() -> DecayedUsage:
        listed = await parts.seen.brief()
        days = daily_totals.undecayed_days(parts.clock.now(), half_life_ms)
        stored = await read_days(parts, days)
        now = parts.clock.now()
        used = daily_totals.add_decayed(
            {}, daily_totals.usage_intervals(days, stored, listed, name, now), now, half_life_ms
        )
        held = gpus_by_user(each for each in listed if each.spec.pool == name)
        return DecayedUsage(at_ms=milliseconds(now), half_life_ms=half_life_ms, used=used, held=held)

    found = await parts.catalog.past_usage.get((name, half_life_ms), load)
    return found.at(parts.clock.now())


def gpus_by_user(allocations: Iterable[Allocation]) -> dict[str, dict[str, int]]:
    """Return {queue: {user: GPUs of their admitted allocations, in `GPU_UNITS`}}."""
    found: dict[str, dict[str, int]] = {}
    for each in allocations:
        if is_admitted(each) and each.status.phase is not Phase.TERMINATED and each.status.slots:
            users = found.setdefault(each.spec.queue, {})
            users[user_of(each)] = users.get(user_of(each), 0) + gpu_units_of(each.status)
    return found


def levels(used: Mapping[str, int], held: Mapping[str, int]) -> dict[str, int]:
    """Return {user: the decayed usage that orders the users} of one queue."""
    return {user: level(used.get(user, 0), held.get(user, 0)) for user in sorted(used.keys() | held.keys())}


async def levels_of(parts: ApiDeps, pools: Iterable[ResourcePool]) -> Levels:
    """Return the levels of the queues of these pools that order their users by past usage (`userOrder: LeastUsed`)."""
    counting = {pool.metadata.name: pool for pool in pools if pool.spec.fair_share is not None}
    if not counting:
        return {}
    found: dict[tuple[str, str], Mapping[str, int]] = {}
    queues = [each for each in (await parts.kube.list(QUEUES)).items if each.spec.user_order == LEAST_USED]
    for name in sorted({each.spec.pool for each in queues} & counting.keys()):
        used = await past_use_of(parts, counting[name])
        held = gpus_by_user(each for each in await parts.seen.live() if each.spec.pool == name)
        for queue in queues:
            if queue.spec.pool == name:
                own = queue.metadata.name
                found[name, own] = levels(used.get(own, {}), held.get(own, {}))
    return found
