"""Reads the daily totals of usage that the watcher writes: one read of the API server for each day."""

import asyncio
from collections.abc import Sequence

import msgspec

from slipway.api.deps import ApiDeps
from slipway.crd import totals
from slipway.crd.figures import DayTotals
from slipway.errors import NotFoundError, UnavailableError
from slipway.kube.resources import CONFIG_MAPS

READS_AT_ONCE = 8


async def read_days(parts: ApiDeps, days: Sequence[str]) -> dict[str, DayTotals]:
    """Return {day: its totals}; the totals of a day without usage are empty.

    Raises:
        UnavailableError: the ConfigMap of a day cannot be decoded.
    """
    slots = asyncio.Semaphore(READS_AT_ONCE)

    async def read(day: str) -> DayTotals:
        name = totals.name_of(day)
        async with slots:
            try:
                found = await parts.whole.get(CONFIG_MAPS, name, namespace=parts.settings.namespace)
            except NotFoundError:
                return DayTotals()
        try:
            return totals.decode(found.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnavailableError(f"ConfigMap {name} does not contain totals of usage: {error}") from error

    return dict(zip(days, await asyncio.gather(*map(read, days)), strict=True))
