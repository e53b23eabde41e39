"""Usage as it is stored in objects: whole milliseconds, so that sums are exact.

Only wire structs: the days of one allocation (`status.usage`), and the daily totals that outlive allocations.
`usage.py` and `daily_totals.py` compute them.
"""

import msgspec

Milliseconds = dict[str, int]
"""{phase: milliseconds}"""


class Figures(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    """Base: camelCase, zeros omitted."""


class DayUsage(Figures, kw_only=True, frozen=True):
    """Usage on one day (UTC)."""

    ms: Milliseconds = {}
    """{phase: milliseconds}"""
    slot_ms: Milliseconds = {}
    """{phase: milliseconds multiplied by the GPUs that were held}"""
    gpu_types: dict[str, Milliseconds] = {}
    """{flavor of the pool: the part of `slot_ms` for that flavor}, as far as the flavor is known"""
    admitted: int = 0
    """number of admissions"""
    waited_ms: int = 0
    """milliseconds of wait before these admissions"""


class Usage(Figures, kw_only=True, frozen=True):
    """Usage of an allocation up to a transition; later usage follows from the transitions in the ring."""

    seq: int = 0
    """number of the last counted transition"""
    until: str = ""
    """time of that transition: `days` contains everything before it"""
    days: dict[str, DayUsage] = {}
    """usage by day (UTC), such as 2026-01-02"""


class TotalsRow(DayUsage, kw_only=True, frozen=True):
    """The totals of one day for one workspace, user, pool, queue and kind."""

    workspace: str
    user: str
    pool: str
    queue: str
    kind: str
    ended: int = 0
    """number of allocations that ended on that day"""


class DayTotals(Figures, kw_only=True, frozen=True):
    """The totals of one day. `booked` are the allocations in them whose object may still exist."""

    booked: dict[str, str] = {}
    """{minute of the epoch: their tokens, one after another}"""
    rows: list[TotalsRow] = []
