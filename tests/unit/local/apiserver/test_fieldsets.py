"""The operations on claimed fields are those of sets of paths, and a set that loses nothing stays the same object."""

from hypothesis import given
from hypothesis import strategies as st

from slipway.local.apiserver.fields.paths import FieldSet, Path, of_json

PATHS = st.sets(st.lists(st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}']), min_size=1, max_size=3).map(tuple))


def a_set(paths: set[Path]) -> FieldSet:
    made = FieldSet()
    for path in paths:
        made.insert(path)
    return made


def is_above(path: Path, other: Path) -> bool:
    return path[: len(other)] == other


@given(PATHS, PATHS)
def test_sets_are_sets_of_paths(one: set[Path], other: set[Path]) -> None:
    """Union, intersection and difference compare paths only; `without` also removes the paths below one."""
    left, right = a_set(one), a_set(other)
    assert set(left.union(right).paths()) == one | other
    assert set(left.intersection(right).paths()) == one & other
    assert set(left.difference(right).paths()) == one - other
    assert set(left.without(right).paths()) == {path for path in one if not any(is_above(path, up) for up in other)}
    assert (set(left.paths()), set(right.paths())) == (one, other)


@given(PATHS, PATHS)
def test_only_a_set_that_loses_something_is_made_anew(one: set[Path], other: set[Path]) -> None:
    """Only a set that loses something becomes a new object, because callers detect a change by identity."""
    left = a_set(one)
    assert (left.difference(a_set(other)) is left) == one.isdisjoint(other)


@given(PATHS, PATHS)
def test_what_is_left_reads_back_as_itself(one: set[Path], other: set[Path]) -> None:
    """The rest of a set is equal after a conversion to FieldsV1 and back, without empty branches."""
    for made in (a_set(one).difference(a_set(other)), a_set(one).intersection(a_set(other))):
        assert of_json(made.to_json()) == made
