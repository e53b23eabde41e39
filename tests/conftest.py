"""Hooks for all tests: how many of them run, which failures run again, and what the last lines of a run show.

Without a path pytest takes `testpaths` of pyproject.toml, which is `make test`. Such a run plays N cases of a test
marked `matrix(most=N)`, drawn by the seed of the run, and no test marked `costly`. With a path, as in `make test-all`,
every case is played.

`--reruns` (see `.ci/run`) runs a failed test once more. A test that passes then is shown as `RERUN` in the summary and
counted in the closing line. More such tests than `RERUN_TESTS_MAX` fail the run although each passed in the end.

Hypothesis has no deadline here: how long a busy machine takes to draw an example is no property of the tested code.
"""

import gc
import logging
import signal
from collections import OrderedDict
from collections.abc import Generator
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.support.preloaded import preloaded

RERUN_TESTS_MAX = 3
"""The number of tests that may pass only at the second attempt: a busy machine may disturb a few of thousands."""

RERUN_LINES = 25
"""The number of lines shown of the failure of a test that was run again; the failure is still to be fixed."""

YOUNG_OBJECTS = 50_000
"""The number of new objects after which the garbage collector runs."""

LANES, LANES_AT_END = 2, 4
"""The number of tests that start whole processes and may run at once, however many workers there are; and the number
when no other test is left."""
WHOLE_PROCESSES = tuple(
    f"tests/{folder}/"
    for folder in ("e2e", "chaos", "browser", "budget", "fuzz", "models", "integration/kubectl", "integration/local")
)

SECONDS = {
    **dict.fromkeys(WHOLE_PROCESSES, 5.0),
    "tests/integration/image/": 3.0,
    "tests/property/": 1.5,
    "tests/simulation/": 1.0,
}
"""{folder: seconds that a test in it takes, about}; a test elsewhere takes SECONDS_ELSEWHERE."""
SECONDS_ELSEWHERE = 0.03

PRELOADED = ("tests/e2e/", "tests/browser/", "tests/conformance/system/", "tests/integration/kubectl/")
"""Folders whose stacks start services as forks (`tests/support/preloaded.py`). All other folders start the services
as they are deployed, among them `tests/integration/local`, `tests/integration/api`, `tests/chaos` and `tests/node`."""

settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--extent",
        choices=["short", "whole"],
        help="short: a sample of each `matrix`, nothing `costly` (what is done without a path); whole: all of it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hand the extent of the run to the workers: a worker gets every path by name, so it cannot tell the extent."""
    # A shell without job control starts background processes that ignore SIGINT; processes that the tests start would
    # inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.extent is None:
        is_short = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        config.option.extent = "short" if is_short else "whole"


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Imported modules and collected tests stay, so exclude them from further runs of the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the sample. Every worker draws the same one: from the sorted names, by the seed of the run."""
    if config.option.extent == "whole":
        return
    played = {item.nodeid for item in items if not item.get_closest_marker("costly")}
    cases: dict[str, list[str]] = {}
    most: dict[str, int] = {}
    for item in items:
        mark = item.get_closest_marker("matrix")
        if mark and item.nodeid in played:
            test = item.nodeid.partition("[")[0]
            cases.setdefault(test, []).append(item.nodeid)
            most[test] = mark.kwargs["most"]
    random = Random(_seed(config))
    for test, names in sorted(cases.items()):
        drawn = random.sample(sorted(names), min(most[test], len(names)))
        played -= set(names) - set(drawn)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in played])
    items[:] = [item for item in items if item.nodeid in played]


class LaneScheduling(LoadFileScheduling):
    """A file of tests stays in one worker; files that start whole processes go to the first `LANES` workers.

    The files that take longest begin first. When no other file is left, `LANES_AT_END` workers share those that
    start processes."""

    _is_ordered = False

    def _reschedule(self, node: Any) -> None:
        is_over = bool(self.workqueue) and self._next_of(node).startswith(WHOLE_PROCESSES)
        if not is_over or node.shutting_down or self.nodes.index(node) < LANES_AT_END:
            super()._reschedule(node)
        else:
            node.shutdown()

    def _assign_work_unit(self, node: Any) -> None:
        if not self._is_ordered:
            self._is_ordered = True
            longest_first = sorted(self.workqueue.items(), key=lambda item: -sum(map(_seconds, item[1])))
            self.workqueue = OrderedDict(longest_first)
        self.workqueue.move_to_end(self._next_of(node), last=False)
        super()._assign_work_unit(node)

    def _next_of(self, node: Any) -> str:
        is_lane = node in self.nodes[:LANES]
        mine = (file for file in self.workqueue if file.startswith(WHOLE_PROCESSES) is is_lane)
        return next(mine, next(iter(self.workqueue)))


def _seconds(nodeid: str) -> float:
    return next((seconds for folder, seconds in SECONDS.items() if nodeid.startswith(folder)), SECONDS_ELSEWHERE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return LaneScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    """End the log with the failed tests and how to play them again: only the last lines are kept of a long log."""
    yield
    seed = _seed(config)
    failed = [each.nodeid for kind in ("failed", "error") for each in terminalreporter.stats.get(kind, ())]
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_line(f"why {report.nodeid} was run again:")
        for line in report.longreprtext.splitlines()[-RERUN_LINES:]:
            terminalreporter.write_line(f"  {line}")
    for nodeid in dict.fromkeys(failed):
        terminalreporter.write_line(f"again: make test SEED={seed} ARGS='{nodeid}'")
    how = "a sample of each matrix; make test-all plays them whole" if config.option.extent == "short" else "whole"
    terminalreporter.write_line(f"seed {seed}: {how}")


def _seed(config: pytest.Config) -> int:
    """The seed of pytest-randomly; 0 without that plugin."""
    seed = getattr(config.option, "randomly_seed", 0)
    return seed if isinstance(seed, int) else 0


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when too many tests passed only at the second attempt."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    again = {each.nodeid for each in terminal.stats.get("rerun", ())} if terminal is not None else set[str]()
    if terminal is not None and len(again) > RERUN_TESTS_MAX and session.exitstatus == pytest.ExitCode.OK:
        terminal.write_line(f"{len(again)} tests passed only when they were run again; {RERUN_TESTS_MAX} may")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with preloaded() if item.nodeid.startswith(PRELOADED) else nullcontext():
        return (yield)


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """Restore the log after a test: a service in this process must not leave a log that writes to the test's stderr."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
