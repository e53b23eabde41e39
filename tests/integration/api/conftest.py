"""The OpenID Connect issuer that the tests of single sign-on share: one process for a module."""

from collections.abc import Generator

import pytest

from tests.support.issuer import RunningIssuer, running_issuer


@pytest.fixture(scope="module")
def running() -> Generator[RunningIssuer]:
    with running_issuer() as found:
        yield found


@pytest.fixture
def issuer(running: RunningIssuer) -> RunningIssuer:
    """The issuer, without the faults of an earlier test."""
    running.reset()
    return running
