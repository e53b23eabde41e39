"""Which versions of the services the doctor treats as neighbours of the command's version."""

import pytest

from slipway.ops.doctor.finding import FindingState
from slipway.ops.doctor.installed import judge_version


@pytest.mark.parametrize(
    ("found", "own", "state"),
    [
        ("1.4.2", "1.4.0", FindingState.OK),
        ("1.5.0", "1.4.9", FindingState.WARNING),
        ("1.6.0", "1.4.0", FindingState.FAILED),
        ("1.9.3", "2.0.0", FindingState.WARNING),
        ("2.0.1", "1.9.3", FindingState.WARNING),
        ("1.9.0", "2.1.0", FindingState.FAILED),
        ("1.0.0", "3.0.0", FindingState.FAILED),
        ("0.12.0", "1.0.0", FindingState.WARNING),
        ("", "1.4.0", FindingState.WARNING),
    ],
)
def test_the_next_minor_version_is_a_neighbour_and_so_is_the_first_of_the_next_major(
    found: str, own: str, state: FindingState
) -> None:
    """The next minor version is a neighbour, and so is the first of the next major version: the last minor version of a
    major is unknown, so every one is treated as the last."""
    assert judge_version("service api", found, own, "upgrade").state is state
    assert judge_version("service api", own, found or own, "upgrade").state is (state if found else FindingState.OK)
