"""Usage as it is stored in objects: whole milliseconds, so that sums are exact.

Only wire structs: the days of one allocation (`status.usage`), and the daily totals that outlive allocations.
`usage.py` and `totals.py` compute them.
"""

import msgspec

Milliseconds = dict[str, int]
"""{phase: milliseconds}"""


class Figures(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    """Base: camelCase, zeros omitted."""


class DayUsage(Figures, kw_only=True, frozen=True):
    """What was used on one day (UTC)."""

    ms: Milliseconds = {}
    """by phase: milliseconds"""
    slot_ms: Milliseconds = {}
    """by phase: milliseconds, each times the GPUs that were held"""
    gpu_types: dict[str, Milliseconds] = {}
    """by flavor of the pool, those of `slot_ms` whose flavor is known"""
    admitted: int = 0
    """how often it got a place"""
    waited_ms: int = 0
    """how long it had waited for those, from when it began to wait"""


class Usage(Figures, kw_only=True, frozen=True):
    """What an allocation used, up to a transition; what came after it follows from the transitions that are kept."""

    seq: int = 0
    """the last transition that is counted"""
    until: str = ""
    """its time: everything before it is in `days`"""
    days: dict[str, DayUsage] = {}
    """by day (UTC), such as 2026-01-02"""


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
