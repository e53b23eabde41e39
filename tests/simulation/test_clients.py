"""Clients of the api in the simulation: they get true answers, whichever process dies."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import generate_latest

from slipway.kube.resources import PODS
from slipway.runtime import log
from tests.simulation.clients import CLIENTS, SECRET
from tests.simulation.run import run
from tests.simulation.scenarios_neutral import NEUTRAL
from tests.support.faults import Fault, Process
from tests.support.world import World

SAMPLE = (
    ("api-launch", "crash@api:1:after"),
    ("api-launch", "timeout-applied@api:1:after"),
    ("api-launch", "conflict@api:1:before"),
    ("api-retry", "crash@api2:1:after"),
    ("api-cancel-running", "crash@api:4:after"),
    ("api-cancel-running", "freeze@api:4:before"),
)


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", [scenario.name for scenario in CLIENTS])
def test_clients_are_told_the_truth(name: str) -> None:
    """Each scenario of the api's clients, without a fault (I1, I2, I13, I19, I22, I23)."""
    assert run(name, 1).violations == []


@pytest.mark.parametrize(("name", "fault"), SAMPLE)
def test_a_lost_answer_loses_nothing(name: str, fault: str) -> None:
    """The replica dies after the create or the cancel, or does not answer: the client retries, and the request was
    executed once."""
    outcome = run(name, 1, (Fault.parse(fault),))
    assert outcome.violations == []
    assert outcome.struck == 1


def test_secrets_are_in_no_log_and_no_metric() -> None:
    """All services log as much as they can, also a process that dies (I23)."""
    root, lines = logging.getLogger(), io.StringIO()
    before, level = list(root.handlers), root.level
    logging.disable(logging.NOTSET)
    log.setup("test", level="debug", stream=lines)
    try:
        assert run("api-launch", 1).violations == []
        assert run("api-launch", 1, (Fault.parse("crash@watcher:3:after"),)).violations == []
    finally:
        root.handlers[:], root.level = before, level
    assert "request" in lines.getvalue()
    assert SECRET not in lines.getvalue()
    assert SECRET not in generate_latest().decode()


@pytest.mark.parametrize("name", [scenario.name for scenario in NEUTRAL])
def test_clients_do_not_notice_a_restart(name: str) -> None:
    """All services end normally, or are killed at once, and restart: the running work is unchanged (I25)."""
    assert run(name, 1).violations == []


def test_a_restart_that_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that marks every pod when it starts is reported (I25)."""
    live: Any = vars(World)["_live"]

    async def rash(self: World, process: Process) -> None:
        if process.role == "watcher" and process.generation > 1:
            for pod in (await self.kube.list(PODS, namespace="default")).items:
                note = {"metadata": {"annotations": {"example.com/seen-by": process.name}}}
                await self.kube.patch(PODS, pod.metadata.name, note, namespace="default")
        await live(self, process)

    monkeypatch.setattr(World, "_live", rash)
    assert any(violation.startswith("I25 ") for violation in run("all-killed", 1).violations)
