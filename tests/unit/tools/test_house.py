"""The figures of the house are those of the checkout."""

from collections import Counter

import pytest

from tools import code_figures

TEXT = '''"""A module."""


class Shown:
    class Inner: ...


class _Hidden: ...
'''


def test_public_classes_are_those_at_the_top_without_an_underscore() -> None:
    """Public classes are those at the top level without an underscore; inner classes do not count."""
    assert list(code_figures.public_classes(TEXT)) == ["Shown"]


def test_a_launch_walks_through_every_service() -> None:
    """A launch runs through every service; only code of the services is counted, not of the local cluster or the
    tests."""
    ran = code_figures.launched()
    files = {file.removeprefix(f"{code_figures.ROOT}/") for file, _, _ in ran}
    services = Counter(file.split("/")[1] for file in files if file.startswith("services/"))
    assert set(services) == {"api", "scheduler", "podworker", "watcher"}
    assert not [file for file in files if "/local/" in file or file.startswith("tests/")]


@pytest.mark.parametrize(
    ("below", "floors"),
    [
        ({"a": set[str]()}, 1),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}, 3),
        ({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}, 3),
    ],
    ids=["alone", "a chain and a short cut", "a circle in the middle"],
)
def test_floors_are_the_longest_chain_of_imports(below: dict[str, set[str]], floors: int) -> None:
    """Floors are the longest chain of imports: each module is a floor, and a circle of modules is one floor."""
    assert code_figures.longest_chain(below) == floors


def test_each_package_has_its_floors() -> None:
    """Each package of the checkout has its number of floors."""
    assert {"api", "scheduler", "podworker", "watcher", "model"} <= set(code_figures.floors())
