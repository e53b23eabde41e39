"""The page of the invariants lists for each place exactly the evidence that the code of the place provides."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.ops.audit.check import INVARIANTS, EvidenceKind, lacking, verdicts
from slipway.ops.audit.evidence import AuditEvidence, Canary
from tests.chaos import gather_texts
from tools.reference.invariants import PLACES

ROOT = Path(__file__).parents[4]
GIVERS = {
    "simulation": ("tests/support/world_evidence.py",),
    "chaos": ("tests/chaos/run.py",),
    "slipway audit": ("shared/slipway/ops/audit/live/collector.py", "shared/slipway/ops/audit/live/command.py"),
}
"""{place: the files that fill its evidence}."""
BEST: dict[str, Any] = {
    "is_sampled": False,
    "is_at_rest": True,
    "has_streams": True,
    "rest_from": 0.0,
    "canaries": [Canary(text="a", is_secret=True), Canary(text="b", workspace="w")],
}
"""The best value of a field that the code computes; for the other fields, any value."""
CANARIES = {"chaos": gather_texts.CANARIES}


def given(path: str) -> Iterator[tuple[str, ast.expr]]:
    """The fields of the evidence that a file fills, each with its value."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="AuditEvidence"), keywords=keywords):
                yield from ((str(each.arg), each.value) for each in keywords)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="evidence"), attr=name)], value=value):
                yield name, value
            case _:
                pass


@pytest.mark.parametrize(("place", "known"), PLACES, ids=[name for name, _ in PLACES])
def test_each_evidence_source_declares_its_evidence(place: str, known: frozenset[EvidenceKind]) -> None:
    evidence = AuditEvidence(versions=())
    for path in GIVERS[place]:
        for name, value in given(path):
            best = value.value if isinstance(value, ast.Constant) else BEST.get(name, ("something",))
            setattr(evidence, name, CANARIES.get(place, best) if name == "canaries" else best)
    assert known == frozenset(EvidenceKind) - lacking(evidence)


def test_each_kind_of_evidence_is_needed_by_a_check() -> None:
    needed = {need for invariant in INVARIANTS for check in invariant.checks for need in check.needs}
    assert needed == set(EvidenceKind)


def test_without_streams_nobody_says_that_no_hint_is_pending() -> None:
    """An audit without Redis does not report zero pending hints, because it reads no queue."""
    found = {verdict.invariant.id: verdict for verdict in verdicts(AuditEvidence(versions=(), has_streams=False))}
    assert found["I16"].judged == ()
    assert EvidenceKind.STREAMS in found["I16"].missing
