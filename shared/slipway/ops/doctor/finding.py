"""The findings of the doctor: one line each, with the command that fixes the problem. Pure."""

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
