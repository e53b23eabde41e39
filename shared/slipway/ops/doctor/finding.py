"""The findings of the doctor: one line each, with the command that fixes the problem. Pure.

The limits on the difference between two clocks are here too. Leases and fences compare no wall clocks, so a wrong clock
breaks no promise. But time limits end early or late, tokens are valid for too long or not at all, and times in streams
are in the wrong order.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class FindingState(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The check could not run; the finding states why, and what is missing."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `mend` is the fix: a command to type, or a sentence when no command fixes it."""

    check: str
    state: FindingState
    found: str
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding: all is well."""
    return Finding(check=check, state=FindingState.OK, found=found)


def warning(check: str, found: str, mend: str) -> Finding:
    """Return a finding: it works, but needs attention."""
    return Finding(check=check, state=FindingState.WARNING, found=found, mend=mend)


def failed(check: str, found: str, mend: str) -> Finding:
    """Return a finding: a required part is missing or broken."""
    return Finding(check=check, state=FindingState.FAILED, found=found, mend=mend)


def skipped(check: str, found: str, mend: str = "") -> Finding:
    """Return a finding: the check could not run."""
    return Finding(check=check, state=FindingState.SKIPPED, found=found, mend=mend)


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether no check failed."""
    return all(each.state is not FindingState.FAILED for each in findings)


NOTICE_S = 2.0
BAD_S = 10.0


def judge_skew(check: str, ahead_s: float, whose: str, *, margin_s: float) -> Finding:
    """Judge a clock that is `ahead_s` seconds ahead of this machine, known to within `margin_s`."""
    off = max(0.0, abs(ahead_s) - margin_s)
    said = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine"
    mend = f"on {whose} and on this machine: timedatectl set-ntp true; chronyc tracking"
    if off > BAD_S:
        return failed(check, said, mend)
    if off > NOTICE_S:
        return warning(check, said, mend)
    return ok(check, f"within {max(margin_s, abs(ahead_s)):.1f} s of this machine")
