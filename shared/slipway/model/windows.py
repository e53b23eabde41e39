"""The occurrences of a pool's windows as epoch seconds; a window repeats by the clock of its time zone. Pure.

Owns the arithmetic of repeats, and the checks of one window and of several together. Knows no allocations.
Invariant: occurrences of one window follow one another and do not overlap: a window is shorter than the time between
two of its starts.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec

from slipway.model.facts import WindowFact
from slipway.model.times import format_duration, parse_time

DAILY, WEEKLY = "Daily", "Weekly"
LEAD_S = 86_400.0
"""Default of a window's lead time in seconds. In it no allocation without a run limit starts on the window's nodes."""
STEP_DAYS = {DAILY: 1, WEEKLY: 7}
LONGEST_S = {DAILY: 23 * 3600.0, WEEKLY: 167 * 3600.0}
"""The longest duration of a window, in seconds: the shortest day of a year has 23 hours, when clocks are put
forward."""
ONCE_MAX_S = 366 * 86_400.0
START_LEAST_S = datetime(1000, 1, 1, tzinfo=UTC).timestamp()
START_END_S = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
"""A start lies from START_LEAST_S until before START_END_S: far from the first and the last day of the calendar."""


ENDS_BY = "a maxRuntime that ends it by "
"""Text before the time in the message of an allocation that could start with a shorter run limit. A condition has no
field for that time, so clients parse the message."""


class Occurrence(msgspec.Struct, frozen=True):
    """One time of a window: from `start` until before `end` (epoch seconds)."""

    start: float
    end: float

    def overlaps(self, other: "Occurrence") -> bool:
        """Whether both occurrences have an instant in common."""
        return self.start < other.end and other.start < self.end


def occurrence(window: WindowFact, at: float) -> Occurrence | None:
    """Return the occurrence that contains `at`, else the next one; None when no occurrence follows."""
    if window.invalid:
        return None
    step = STEP_DAYS.get(window.every)
    if step is None:
        once = Occurrence(window.start, window.start + window.duration)
        return once if once.end > at else None
    zone = zone_of(window.time_zone)
    first = datetime.fromtimestamp(window.start, zone).replace(tzinfo=None)
    number = max(0, int((at - window.start - window.duration) // (step * 86_400)) - 1)
    while True:
        start = (first + timedelta(days=step * number)).replace(tzinfo=zone).timestamp()
        if window.until is not None and start > window.until:
            return None
        if start + window.duration > at:
            return Occurrence(start, start + window.duration)
        number += 1


def occurrences(window: WindowFact, since: float, until: float, most: int) -> list[Occurrence]:
    """Return the occurrences that end after `since` and begin before `until`, at most `most`."""
    found: list[Occurrence] = []
    at = since
    while len(found) < most and (each := occurrence(window, at)) is not None and each.start < until:
        found.append(each)
        at = each.end
    return found


def latest_end(message: str) -> float | None:
    """Return the latest end, in epoch seconds, with which an allocation could start at once.

    It is parsed from the allocation's message; None when the message has no such time.
    """
    _, found, rest = message.partition(ENDS_BY)
    try:
        return parse_time(rest.split(" ", 1)[0]) if found else None
    except ValueError:
        return None


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """Return the time zone of an IANA name.

    Raises:
        ValueError: there is no such zone.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as exc:
        raise ValueError(f"there is no time zone {name!r}; write an IANA name such as Europe/Berlin, or UTC") from exc


def fault_of(window: WindowFact) -> tuple[str, str] | None:
    """Return (field, what is wrong with it) of one window; None when it is valid."""
    try:
        zone_of(window.time_zone)
    except ValueError as exc:
        return "timeZone", str(exc)
    if not START_LEAST_S <= window.start < START_END_S:
        return "start", "must be a time in the years 1000 to 8999; write another date"
    if window.duration <= 0:
        return "duration", "is 0; write how long the window is, such as 4h"
    longest = LONGEST_S.get(window.every, ONCE_MAX_S)
    if window.duration > longest:
        what = f"a window that repeats {window.every}" if window.every else "a window"
        return "duration", f"{what} lasts at most {format_duration(longest)}; shorten it, or write several windows"
    if window.until is not None and window.until < window.start:
        return "repeat/until", "is before start: the window would never occur; write a later time"
    return None


def notes_on(
    windows: Iterable[WindowFact],
    queues: Collection[str],
    nodes: Mapping[str, tuple[Mapping[str, str], int]],
    now: float,
) -> dict[str, list[str]]:
    """Return {window: its warnings}, given the pool's `queues` and `nodes` ({name: (labels, GPUs)})."""
    sound = [window for window in windows if not window.invalid]
    found: dict[str, list[str]] = {}
    for window in sound:
        notes = [f"the pool has no queue {name}; nothing may use the nodes for it" for name in window.queues]
        notes = [note for note, name in zip(notes, window.queues, strict=True) if name not in queues]
        notes += [f"the pool has no node {name}" for name in window.node_names if name not in nodes]
        found_nodes = matching(window, nodes)
        if not found_nodes:
            notes.append("no node of the pool matches; it reserves nothing")
        beside = [window, *(other for other in sound if other.name != window.name and _meets(window, other, now))]
        for what, asked in (("nodes", window.nodes), ("GPUs", window.gpus)):
            if asked is None or not found_nodes:
                continue
            has = len(found_nodes) if what == "nodes" else sum(nodes[name][1] for name in found_nodes)
            others = [other for other in beside[1:] if matching(other, nodes) & found_nodes]
            wanted = asked + sum(_wants(other, what, nodes, found_nodes) for other in others)
            if asked > has:
                notes.append(f"asks for {asked} {what}, and the nodes that match have {has}; ask for fewer")
            elif wanted > has:
                names = ", ".join(sorted(other.name for other in others))
                notes.append(f"it and {names} occur together and ask for {wanted} of {has} {what}; the later get fewer")
        if notes:
            found[window.name] = notes
    return found


def matching(window: WindowFact, nodes: Mapping[str, tuple[Mapping[str, str], int]]) -> set[str]:
    """Return the names in `nodes` ({name: (labels, GPUs)}) that match the window."""
    if window.node_names:
        return set(window.node_names) & nodes.keys()
    wanted = window.node_selector.items()
    return {name for name, (labels, _) in nodes.items() if all(labels.get(key) == value for key, value in wanted)}


def _meets(window: WindowFact, other: WindowFact, now: float) -> bool:
    """Whether the next occurrence of one window overlaps an occurrence of the other."""
    mine, theirs = occurrence(window, now), occurrence(other, now)
    if mine is None or theirs is None:
        return False
    at_mine, at_theirs = occurrence(other, mine.start), occurrence(window, theirs.start)
    return (at_mine is not None and at_mine.overlaps(mine)) or (at_theirs is not None and at_theirs.overlaps(theirs))


def _wants(
    window: WindowFact, what: str, nodes: Mapping[str, tuple[Mapping[str, str], int]], among: Collection[str]
) -> int:
    """Return what a window reserves of the nodes `among`, in nodes or GPUs."""
    stated = window.nodes if what == "nodes" else window.gpus
    shared = matching(window, nodes) & set(among)
    if stated is not None:
        return stated
    if window.nodes is not None or window.gpus is not None:
        return 0  # stated in the other unit: not comparable
    return len(shared) if what == "nodes" else sum(nodes[name][1] for name in shared)
