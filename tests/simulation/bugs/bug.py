"""A seeded bug: the design rule that it breaks, how it is installed, and the runs and invariants that must find it."""

from collections.abc import Callable

import msgspec
import pytest

Install = Callable[[pytest.MonkeyPatch], None]

SLOW_S = 0.05
"""The delay that gives other processes time to act in between, which a fence must detect."""


class Bug(msgspec.Struct, frozen=True, kw_only=True):
    """A seeded bug. `hunts` are the arguments of runs; one of them must report an invariant of `told_by`.

    A hunt whose fault is `<kind>@<role>:*:after` (or before) tries that moment at every effect of the role; one with
    `*<text>` at the effects whose label contains the text."""

    name: str
    breaks: str
    """the rule that is broken, as a short sentence"""
    install: Install
    hunts: tuple[tuple[str, str], ...]
    told_by: tuple[str, ...]
    replicas: int = 1


__all__ = ["SLOW_S", "Bug", "Install"]
