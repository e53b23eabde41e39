"""What the doctor finds: one line each, with the command that mends it. Pure."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class FindingState(StrEnum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    """it could not be looked at; the finding says why, and what it takes"""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `mend` is what to do: a command as it is typed, or a sentence where no command will do."""

    check: str
    state: FindingState
    found: str
    mend: str = ""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check=check, state=FindingState.OK, found=found)


def warning(check: str, found: str, mend: str) -> Finding:
    """It works, and should be looked at."""
    return Finding(check=check, state=FindingState.WARNING, found=found, mend=mend)


def failed(check: str, found: str, mend: str) -> Finding:
    """Something that is needed is not there."""
    return Finding(check=check, state=FindingState.FAILED, found=found, mend=mend)


def skipped(check: str, found: str, mend: str = "") -> Finding:
    """It could not be looked at."""
    return Finding(check=check, state=FindingState.SKIPPED, found=found, mend=mend)


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing failed."""
    return all(each.state is not FindingState.FAILED for each in findings)
