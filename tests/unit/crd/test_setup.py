"""The setup of an allocation: its requirements, and refusals."""

from typing import Any

import pytest

from slipway.crd.resolve import resolve
from tests.support.allocations import a_pool, a_template, an_allocation

MAIN = {"name": "main", "image": "i", "command": ["c"]}


def refused(setup: str, main: dict[str, Any] = MAIN, **spec: Any) -> list[tuple[str, str]]:
    """(field, reason) of each refusal."""
    found = resolve(an_allocation(setup=setup, template=a_template(main), **spec), a_pool())
    return [(error.pointer, error.detail) for error in found.errors]


def test_a_setup_precedes_a_command() -> None:
    """A setup requires a command in the template of each role; a service kind has a default command."""
    assert refused("pip install x") == []
    assert refused("pip install x", {"name": "main", "image": "i"}, kind="notebook") == []


@pytest.mark.parametrize("main", [{"name": "main", "image": "i"}, {"name": "main", "image": "i", "args": ["a"]}])
def test_a_setup_before_the_images_own_program_is_refused(main: dict[str, Any]) -> None:
    """A setup without a command is refused, because only the container runtime knows the image's own program."""
    [(field, why)] = refused("pip install x", main)
    assert field == "/setup"
    assert why.endswith("Set command, or do the setup in the image")


def test_a_role_without_a_command_is_refused_too() -> None:
    """A role without a command is refused too, because the setup runs in every rank."""
    ranks = [{"name": "a"}, {"name": "b", "template": a_template({"name": "main", "image": "i"})}]
    assert [field for field, _ in refused("pip install x", ranks=ranks)] == ["/setup"]


@pytest.mark.parametrize(("setup", "why"), [(" \n", "has no command"), ("a\0b", "NUL")])
def test_a_setup_that_no_shell_can_run_is_refused(setup: str, why: str) -> None:
    """A setup that no shell can run is refused with its field."""
    [(field, said)] = refused(setup)
    assert (field, why in said) == ("/setup", True)


@pytest.mark.parametrize(
    ("spec", "main"),
    [
        ({"env": {"HOME": "/x"}}, MAIN),
        ({"secretVariables": ["HOME"]}, MAIN),
        ({}, {**MAIN, "env": [{"name": "HOME", "value": "/x"}]}),
    ],
)
def test_a_home_beside_another_home_is_refused(spec: dict[str, Any], main: dict[str, Any]) -> None:
    """A home beside another home is refused, because both set HOME."""
    found = resolve(an_allocation(home=True, template=a_template(main), **spec), a_pool())
    assert [(error.pointer, error.detail) for error in found.errors] == [
        ("/home", "env sets HOME too: leave one of them out")
    ]
