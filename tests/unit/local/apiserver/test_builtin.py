"""The table of the built-in kinds."""

from collections import Counter

from slipway.local.apiserver.builtin import builtin_kinds
from slipway.local.apiserver.custom import DefinitionStrategy


def test_each_kind_is_in_the_table_once() -> None:
    """Each kind is in the table once, because a second row for a resource is never used."""
    kinds = builtin_kinds(DefinitionStrategy({}, str, allow_unknown_rules=False))
    rows = Counter((kind.group, kind.version, kind.plural) for kind in kinds)
    assert [row for row, count in rows.items() if count > 1] == []
