"""For all tests: how long a busy machine takes to draw an example is no property of what is tested, and tests that pass
only when they are run again are bounded.

`--reruns` (see `.ci/run`) has a test that failed run once more. One that passes then is shown as `RERUN` in the summary
and counted in the closing line; more of them than `RERUN_TESTS_MAX` fail the run although each passed in the end.
"""

import logging
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

RERUN_TESTS_MAX = 3
"""A busy machine may disturb so many of thousands; more are no accident."""

settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Too many tests that passed only the second time are a failure."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    again = {each.nodeid for each in terminal.stats.get("rerun", ())} if terminal is not None else set[str]()
    if terminal is not None and len(again) > RERUN_TESTS_MAX and session.exitstatus == pytest.ExitCode.OK:
        terminal.write_line(f"{len(again)} tests passed only when they were run again; {RERUN_TESTS_MAX} may")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """A test that runs a service in this process leaves no log behind that writes to what the test had for stderr."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
