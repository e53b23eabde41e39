"""The printed result of a run: one line for each kind of fault, and the sums. Pure.

Owns the form: 80 columns, the same columns in every run.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import msgspec

WIDTH = 80
NO_FAULT = "(between faults)"
_FORM = "{:<28}{:>7}{:>11}{:>11}{:>11}{:>12}"


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """One injected fault. Times are epoch seconds."""

    kind: str
    wave: int
    began_at: float
    ended_at: float
    recovered_at: float | None
    """None: not recovered within the limit"""
    recovery_s: float
    """seconds from the end of all faults of its wave"""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    seed: int
    minutes: float
    suffered: Sequence[InjectedFault]
    violations: Sequence[str]
    at: Sequence[str]
    """for each violation, the kind of fault during which it occurred, or NO_FAULT"""
    launches: int
    lost: int
    doubled: int
    answers: int
    unanswered: int
    rest_s: float | None
    """seconds from the last fault until everything was as desired"""
    writes_at_rest: int
    versions: int
    starts: int
    took_s: float
    bystanders_s: Sequence[float] = ()
    """seconds of launches, from request to end, while only other workspaces had trouble"""
    skipped: Sequence[str] = ()
    unknown: Sequence[str] = ()
    """what the audit could not check"""
    subjects: Sequence[str] = ()
    """the subject of each violation"""
    share: float = 1.0
    share_lowest: float = 1.0
    """the share of a processor that a process got: on average, and at worst"""
    asked_of_next: int = 0
    """launches that the next version accepted; 0 without an upgrade"""
    of_both: int = 0
    """launches whose status both versions wrote"""

    logs: int = 0
    """logs that were read, from the store and through the api"""
    logs_judged: int = 0
    """starts whose log had to be complete in the end"""
    lines: int = 0
    """lines read of all logs"""
    holes: int = 0
    """holes in these lines"""

    @property
    def is_good(self) -> bool:
        """Whether there was no finding."""
        return not self.violations and self.rest_s is not None


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that is not exceeded by this share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def lines(outcome: Outcome) -> Iterator[str]:
    """The table."""
    yield _FORM.format("fault", "count", "lasted s", "p50 s", "p99 s", "violations")
    kinds: dict[str, list[InjectedFault]] = {}
    for item in outcome.suffered:
        kinds.setdefault(item.kind, []).append(item)
    broken: Mapping[str, int] = {kind: list(outcome.at).count(kind) for kind in {*kinds, NO_FAULT}}
    for kind, items in sorted(kinds.items()):
        yield _row(kind, items, broken[kind])
    if broken[NO_FAULT]:
        yield _FORM.format(NO_FAULT, "", "", "", "", broken[NO_FAULT])
    yield "-" * WIDTH
    yield _row("all faults", list(outcome.suffered), len(outcome.violations))
    rest = f"{outcome.rest_s:.1f} s after the last fault" if outcome.rest_s is not None else "NOT reached"
    yield f"rest: {rest}, then {outcome.writes_at_rest} writes"
    yield f"launches {outcome.launches}, lost {outcome.lost}, doubled {outcome.doubled}; containers {outcome.starts}"
    yield f"answers {outcome.answers}, of them {outcome.unanswered} never came; versions {outcome.versions}"
    yield f"logs {outcome.logs}: {outcome.lines} lines, {outcome.holes} holes; {outcome.logs_judged} held to their end"
    if outcome.bystanders_s:
        p50, p99 = percentile(outcome.bystanders_s, 0.5), percentile(outcome.bystanders_s, 0.99)
        yield f"launches beside others' trouble {len(outcome.bystanders_s)}: p50 {p50:.1f} s, p99 {p99:.1f} s"
    if outcome.asked_of_next:
        yield f"upgrade: {outcome.asked_of_next} launches by the next version, {outcome.of_both} written by both"
    yield f"this machine: {outcome.share:.2f} of a processor for who wants one, at worst {outcome.share_lowest:.2f}"
    for what in outcome.skipped:
        yield f"not done: {what}"
    if outcome.unknown:
        yield from textwrap.wrap("not looked at: " + "; ".join(outcome.unknown), WIDTH, subsequent_indent="  ")
    verdict = "everything holds" if outcome.is_good else "NOT everything holds"
    counted = f"{len(outcome.suffered)} faults, {len(outcome.violations)} violations"
    yield f"make chaos: {verdict}: {counted}, seed {outcome.seed}, {outcome.took_s:.0f} s"


def blame(at: float, suffered: Sequence[InjectedFault]) -> str:
    """The fault during which something occurred: the last one that had begun and was not recovered from."""
    found = NO_FAULT
    for item in suffered:
        if item.began_at <= at <= (item.recovered_at or math.inf):
            found = item.kind
    return found


def _row(name: str, items: Sequence[InjectedFault], violations: int) -> str:
    if not items:
        return _FORM.format(name, 0, "", "", "", violations)
    recoveries = [item.recovery_s for item in items]
    lasted = max(item.ended_at - item.began_at for item in items)
    p50, p99 = percentile(recoveries, 0.5), percentile(recoveries, 0.99)
    return _FORM.format(name, len(items), f"{lasted:.1f}", f"{p50:.1f}", f"{p99:.1f}", violations)
