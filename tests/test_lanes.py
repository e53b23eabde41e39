"""Which worker plays which file of tests: `LaneScheduling` of conftest.py."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import LANES, LANES_AT_END, WHOLE_PROCESSES, LaneScheduling

HEAVY = [f"{WHOLE_PROCESSES[n % 3]}test_{n}.py" for n in range(24)]
LIGHT = [f"tests/unit/test_{n}.py" for n in range(40)]
TESTS = [f"{file}::test_{n}" for file in (*HEAVY, *LIGHT) for n in range(4)]


class Worker:
    """The part of an xdist worker that the scheduler uses."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Receive more tests to run."""
        self.sent += indices

    def shutdown(self) -> None:
        """Receive no more tests."""
        self.shutting_down = True


@pytest.fixture(name="config")
def _config(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> pytest.Config:
    """The configuration of a run with workers, also when this test runs in a worker or without any."""
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    return pytestconfig


def played(config: pytest.Config, workers: list[Worker]) -> list[tuple[int, str]]:
    """[(worker, test)] in the order in which they end, when a test of `HEAVY` takes as long as eight other tests."""
    scheduler = LaneScheduling(config, None)
    scheduler.numnodes = len(workers)
    nodes: list[Any] = list(workers)
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, TESTS)
    scheduler.schedule()
    ended: list[tuple[int, str]] = []
    left = [0] * len(workers)
    done = [0] * len(workers)
    while any(done[at] < len(worker.sent) for at, worker in enumerate(workers)):
        for at, worker in enumerate(workers):
            if done[at] == len(worker.sent):
                continue
            test = TESTS[worker.sent[done[at]]]
            left[at] = (left[at] or (8 if test.startswith(WHOLE_PROCESSES) else 1)) - 1
            if not left[at]:
                ended.append((at, test))
                done[at] += 1
                scheduler.mark_test_complete(nodes[at], worker.sent[done[at] - 1])
    return ended


def test_files_with_whole_processes_keep_to_their_lanes(config: pytest.Config) -> None:
    """While other files are left, only the lanes run files with whole processes; then one more worker helps. Each
    test runs once."""
    workers = [Worker() for _ in range(4)]
    ended = played(config, workers)
    assert sorted(test for _, test in ended) == sorted(TESTS)
    last_light = max(at for at, (_, test) in enumerate(ended) if not test.startswith(WHOLE_PROCESSES))
    before = {worker for worker, test in ended[:last_light] if test.startswith(WHOLE_PROCESSES)}
    after = {worker for worker, _ in ended[last_light + 1 :]}
    assert before == set(range(LANES))
    assert after == set(range(LANES_AT_END))
    assert all(worker.shutting_down for worker in workers)


def test_a_file_stays_in_one_worker(config: pytest.Config) -> None:
    """A file stays in one worker, because its tests share what it has made."""
    where: dict[str, set[int]] = {}
    for worker, test in played(config, [Worker() for _ in range(3)]):
        where.setdefault(test.partition("::")[0], set()).add(worker)
    assert {len(each) for each in where.values()} == {1}


def test_one_worker_plays_all(config: pytest.Config) -> None:
    """One worker runs every test, as when a single test is run again."""
    assert len(played(config, [Worker()])) == len(TESTS)
