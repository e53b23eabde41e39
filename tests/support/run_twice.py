"""A plugin of pytest: it fails every passed test once, so that pytest runs the test again beside whatever its first run
left behind.

`make test ARGS="tests/e2e -p tests.support.run_twice --reruns=1"`: a test that fails then would also fail when
`.ci/run` repeats it after an unrelated failure. The usual reason is a name that already exists (`names.py`).
"""

from collections.abc import Generator
from typing import Any

import pytest


class FirstPlayError(Exception):
    """Fails the first run of a test that passed."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Raise after the first run; the test itself has passed by then."""
    result = yield
    if getattr(pyfuncitem, "execution_count", 1) == 1:
        raise FirstPlayError("it passed, and is played again")
    return result
