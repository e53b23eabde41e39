"""Without any service running all the time: each is run with `--once`, and a launch still comes to its end."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.gangs import assert_succeeded, gang_body, let_go
from tests.support.local_stack import RunningStack, running_stack
from tests.support.wait import wait_until

SERVICES = ("scheduler", "podworker", "watcher")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """A stack in which only cluster, nodes, Redis and api run."""
    with running_stack(tmp_path_factory.mktemp("once") / "data") as stack:
        stack.halt(*SERVICES)
        yield stack


def test_a_launch_by_single_runs(quiet: RunningStack, marks: Path) -> None:
    """Scheduler, pod worker and watcher do their steps, each in one run that exits with 0."""
    id_ = quiet.launch(gang_body(marks))
    assert quiet.view(id_)["phase"] == "Pending"
    assert quiet.once("scheduler").code == 0
    assert quiet.view(id_)["phase"] == "Assigned"
    assert quiet.once("podworker").code == 0
    pods = wait_until(lambda: [pod for pod in quiet.pods(id_) if pod["phase"] == "Running"], "pods run")
    wait_until(lambda: len([pod for pod in quiet.pods(id_) if pod["phase"] == "Running"]) == 4, f"four of {pods}")
    assert quiet.once("watcher").code == 0
    assert quiet.view(id_)["phase"] == "Running"
    let_go(marks)
    wait_until(lambda: all(pod["phase"] == "Succeeded" for pod in quiet.pods(id_)), "pods have ended")
    for _ in range(3):
        assert quiet.once("watcher").code == 0
        assert quiet.once("podworker").code == 0
    assert_succeeded(quiet, id_)


def test_the_api_checks_itself(quiet: RunningStack) -> None:
    """The exit code is 0 when it could serve."""
    assert quiet.once("api").code == 0


def test_a_second_scheduler_is_idle(stack: RunningStack) -> None:
    """While another scheduler leads a run does nothing, reports that, and exits with 0."""
    done = stack.once("scheduler")
    assert done.code == 0
    assert "idle: not leader" in done.out + done.err


@pytest.mark.parametrize("service", ["api", *SERVICES])
def test_without_kubernetes(quiet: RunningStack, service: str) -> None:
    """Without Kubernetes the exit code is 1."""
    quiet.halt("cluster")
    try:
        assert quiet.once(service, timeout_s=90).code == 1
    finally:
        quiet.resume("cluster")
