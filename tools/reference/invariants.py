"""The invariants reference: what the audit checks, what each check needs to know, and where it runs."""

import inspect

from slipway.ops.audit.check import INVARIANTS, EvidenceKind, Invariant, InvariantCheck
from tools.reference.markdown import table

TOP = """# What is checked

One register (`shared/slipway/ops/audit/check.py`) contains every invariant. The
[simulation](../reliability.md#simulation) checks them after each run, [chaos](../reliability.md#chaos) at the end, and
[`slipway audit`](../reliability.md#audit) all the time against a live system. The ids are stable: gauges and reports
use them as names.
"""
CHECKS = """## The checks, one by one

A check runs where the data that it needs is available. Elsewhere, the audit reports the missing data instead of
"holds". If the history began with a listing or has gaps, a check covers less of it, but reports no false violation.
"""
TESTS = """Tests run each check on the smallest history that violates it, and on a similar history that does not:
`tests/unit/ops/audit/test_lives.py`, `tests/unit/ops/audit/test_clients.py`, `tests/unit/ops/audit/test_logs.py`.
"""
CHAOS = frozenset(EvidenceKind) - {
    EvidenceKind.ACKS,
    EvidenceKind.DELIVERIES,
    EvidenceKind.TENANTS,
    EvidenceKind.RULES,
    EvidenceKind.SILENCE,
}
SIMULATION = frozenset(EvidenceKind) - {EvidenceKind.CONSUMERS, EvidenceKind.RULES}
LIVE = frozenset(
    {EvidenceKind.EVERY_VERSION, EvidenceKind.REST, EvidenceKind.STREAMS, EvidenceKind.DELIVERIES, EvidenceKind.RULES}
)
PLACES = (("simulation", SIMULATION), ("chaos", CHAOS), ("slipway audit", LIVE))
"""The evidence that each place can have; `tests/unit/ops/audit/test_needs.py` compares it with the code of each."""


def page() -> str:
    """Return the promises, followed by the checks behind them."""
    return "\n".join(
        [
            TOP,
            table(("id", "promise", "checks"), [_promise(each) for each in INVARIANTS]),
            CHECKS,
            table(("id", "what it looks for", "needs", "where"), _checks()),
            TESTS,
        ]
    )


def _promise(invariant: Invariant) -> tuple[str, ...]:
    return invariant.id, invariant.promise, str(len(invariant.checks))


def _checks() -> list[tuple[str, ...]]:
    return [
        (invariant.id, _sentence(check), "; ".join(check.needs) or "the history", ", ".join(_places(check)))
        for invariant in INVARIANTS
        for check in invariant.checks
    ]


def _sentence(check: InvariantCheck) -> str:
    text = " ".join((inspect.getdoc(check.find) or "").split("\n\n")[0].split())
    name, _, rest = text.partition(": ")
    return rest if name.isupper() or name[1:].isdigit() else text


def _places(check: InvariantCheck) -> list[str]:
    return [name for name, known in PLACES if known.issuperset(check.needs)]
