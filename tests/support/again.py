"""A plugin of pytest: every test that passes is failed once, so that it is played again beside what it has left.

`make test ARGS="tests/e2e -p tests.support.again --reruns=1"`: what fails then could not be run again by `.ci/run`
either, after a failure that had nothing to do with it. Names that are taken are the usual reason (`names.py`).
"""

from collections.abc import Generator
from typing import Any

import pytest


class FirstPlayError(Exception):
    """The first play of a test, which passed."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """The test itself has passed when this raises."""
    result = yield
    if getattr(pyfuncitem, "execution_count", 1) == 1:
        raise FirstPlayError("it passed, and is played again")
    return result
