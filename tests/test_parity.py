"""The page that compares us with Determined's master names only tests that exist, and answers every row."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "parity.md"
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def _rows() -> list[tuple[str, str, str]]:
    """The behaviour, answer and evidence of each row of each table."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert all(len(row) == 3 for row in cells), [row for row in cells if len(row) != 3]
    return [(row[0], row[1], row[2]) for row in cells if row[2] not in ("shown by", "---")]


@cache
def _tests_of(path: str) -> frozenset[str]:
    file = TESTS / path
    if not file.exists():
        return frozenset()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, kinds))


def _missing() -> list[str]:
    named = [match for _, _, evidence in _rows() for match in REFERENCE.findall(evidence)]
    return sorted({f"{path}::{name}" for path, name in named if name not in _tests_of(path)})


def test_every_named_test_exists() -> None:
    """Every test that a row names exists."""
    assert _missing() == []


def test_every_behaviour_has_a_test_or_a_reason() -> None:
    """A row names a test that shows the behaviour, or the reason why the behaviour is not ours."""
    rows = _rows()
    assert len(rows) > 200, "the tables of docs/parity.md were not found"
    bare = [f"{behaviour}: {answer}" for behaviour, answer, evidence in rows if not _is_answered(answer, evidence)]
    assert not bare, "rows of docs/parity.md without a test or a reason:\n" + "\n".join(bare)


def _is_answered(answer: str, evidence: str) -> bool:
    is_refused = evidence == "—" and answer.startswith("— ") and len(answer.split()) > 4
    return bool(REFERENCE.search(evidence)) or is_refused
