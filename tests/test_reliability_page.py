"""docs/reliability.md promises nothing without a test: every test that it names exists, and every section has one."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reliability.md"
NAMED = re.compile(r"`(tests/[\w/.-]+\.py)(?:::(\w+))?`")


def _sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("title", _sections())
def test_what_a_section_names_exists(title: str) -> None:
    """The files and functions that a section names exist."""
    named = NAMED.findall(_sections()[title])
    assert named, f"{title} shows no test"
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in names_in(ROOT / path))
    ]
    assert missing == []
