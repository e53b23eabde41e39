"""What a seeded bug is: a design rule that is dropped, how, and where that has to be noticed by whom."""

from collections.abc import Callable

import msgspec
import pytest

Install = Callable[[pytest.MonkeyPatch], None]

SLOW_S = 0.05
"""What happens meanwhile is what a fence is for."""


class Bug(msgspec.Struct, frozen=True, kw_only=True):
    """`hunts` are the arguments of runs, of which one has to report one of `told_by`.

    A hunt whose fault is `<kind>@<role>:*:after` (or before) tries that moment at every effect of the role; one with
    `*<text>` at those in whose label that text is.
    """

    name: str
    breaks: str
    """the rule that does not hold any more, as a short sentence"""
    install: Install
    hunts: tuple[tuple[str, str], ...]
    told_by: tuple[str, ...]
    replicas: int = 1


__all__ = ["SLOW_S", "Bug", "Install"]
