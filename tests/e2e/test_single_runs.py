"""A system of single runs: no service runs for longer than its `--once`, and all allocations still end.

Only the cluster, its nodes and Redis run. Users create Allocation objects in the cluster, and read them there. A round
is one run of each service, as three schedules would start them.
"""

import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gangs import gang_body, let_go, starts_of
from tests.support.local_stack import ALLOCATION, RunningStack, running_stack
from tests.support.names import fresh
from tests.support.wait import wait_until

Json = dict[str, Any]
ROUND = ("scheduler", "podworker", "watcher")
ROUNDS_MAX = 12
QUICK = {"SLIPWAY_LEASE_DURATION_S": "3", "SLIPWAY_LEASE_RENEW_DEADLINE_S": "2", "SLIPWAY_LEASE_RETRY_S": "0.5"}
"""how long a run waits for a killed leader"""
FIRST_FAILS = "import os, sys; sys.exit(0 if os.environ['SLIPWAY_ATTEMPT'] == '2' else 3)"
STAYS = "import time; time.sleep(600)"


class Schedules:
    """Starts the runs, and reads the cluster between them."""

    def __init__(self, stack: RunningStack) -> None:
        self.stack = stack

    def create(self, name: str, spec: Json) -> str:
        """Create an Allocation like `kubectl create`; return the id."""
        made = self.stack.kubernetes(
            "POST",
            ALLOCATION,
            {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation"} | {"metadata": {"name": name}, "spec": spec},
        )
        return f"{name}-{made['metadata']['uid'][:8]}"

    def get(self, name: str) -> Json:
        """Return the object."""
        return self.stack.kubernetes("GET", f"{ALLOCATION}/{name}")

    def status(self, name: str) -> Json:
        found: Json = self.get(name).get("status", {})
        return found

    def stop(self, name: str) -> None:
        """Stop it like `kubectl edit`."""
        body = self.get(name)
        body["spec"]["desired"] = "Stopped"
        self.stack.kubernetes("PUT", f"{ALLOCATION}/{name}", body)

    def pods(self, id_: str) -> list[Json]:
        """The pods of an allocation."""
        items: list[Json] = self.stack.kubernetes("GET", f"/api/v1/pods?labelSelector=slipway.dev/allocation={id_}")[
            "items"
        ]
        return items

    def run(self, service: str) -> None:
        """Run one service once; it must succeed."""
        with self._started(service) as process:
            _, said = process.communicate(timeout=90)
        assert process.returncode == 0, f"{service} --once ended with {process.returncode}: {said[-2000:]}"

    def run_and_kill(self, service: str, when: Callable[[], object], what: str) -> None:
        """Start a run and kill it as soon as the condition is true. It may have ended by itself at that moment."""
        with self._started(service) as process:
            try:
                wait_until(lambda: when() or process.poll() is not None, what)
                assert when(), f"{service} --once has ended before {what}"
            finally:
                process.kill()
                process.communicate()

    def round(self) -> None:
        """Run each service once."""
        for service in ROUND:
            self.run(service)

    def rounds_until(self, done: Callable[[], bool], what: str) -> int:
        """Run rounds until the condition is true; return their number."""
        for count in range(1, ROUNDS_MAX + 1):
            self.round()
            if done():
                return count
        raise AssertionError(f"not {what} after {ROUNDS_MAX} rounds")

    def _started(self, service: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", f"slipway.{service}.main", "--once"]
        env = {**self.stack.environment(), **QUICK, "SLIPWAY_LISTEN": "127.0.0.1:0"}
        return subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def halted(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """A stack without any running service, the api included."""
    with running_stack(tmp_path_factory.mktemp("runs") / "data") as stack:
        stack.halt("api", *ROUND)
        yield stack


@pytest.fixture
def schedules(halted: RunningStack) -> Generator[Schedules]:
    """Schedules on that stack; removes what a failed test left."""
    schedules = Schedules(halted)
    yield schedules
    items: list[Json] = halted.kubernetes("GET", ALLOCATION)["items"]
    left = [item["metadata"]["name"] for item in items if item.get("status", {}).get("phase") != "Terminated"]
    for name in left:
        schedules.stop(name)
    if left:
        schedules.rounds_until(is_over(schedules, *left), "what was left has ended")


def a_spec(*command: str, cpu: str = "50m", **fields: Any) -> Json:
    container = {"name": "main", "image": "local", "command": list(command)}
    resources = {"cpu": cpu, "memory": "64Mi"}
    return {
        "kind": "command",
        "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
        "ranks": [{"name": "worker", "count": 1, "resources": resources}],
        **fields,
    }


def a_gang(marks: Path, **fields: Any) -> Json:
    body = gang_body(marks, **fields)
    body["template"]["spec"]["containers"][0]["env"] += [
        {"name": name, "value": value} for name, value in body.pop("env").items()
    ]
    return body


def check_end(schedules: Schedules, name: str, id_: str, result: str, attempt: int = 1) -> None:
    """Check its result, that nothing of it is left, and that its stream has every seq of its status, once and in
    order."""
    status = schedules.status(name)
    assert (status["phase"], status["result"], status["attempt"]) == ("Terminated", result, attempt), status
    stack = schedules.stack
    for plural in ("pods", "configmaps", "services"):
        query = f"labelSelector=slipway.dev/allocation={id_}"
        assert stack.kubernetes("GET", f"/api/v1/{plural}?{query}")["items"] == [], f"{plural} of {name}"
    entries = stack.stream_of(id_)
    assert [entry["seq"] for entry in entries] == list(range(1, status["seq"] + 1)), name
    assert entries[-1]["phase"] == "Terminated", name


def is_over(schedules: Schedules, *names: str) -> Callable[[], bool]:
    """Whether they have ended, and nothing of them is left in the cluster."""

    def over() -> bool:
        ended = all(schedules.status(name).get("phase") == "Terminated" for name in names)
        ours = "labelSelector=app.kubernetes.io/managed-by=slipway"
        return ended and not any(
            schedules.stack.kubernetes("GET", f"/api/v1/{plural}?{ours}")["items"] for plural in ("pods", "configmaps")
        )

    return over


def phase_is(schedules: Schedules, name: str, phase: str) -> Callable[[], bool]:
    return lambda: schedules.status(name).get("phase") == phase


def test_work_of_every_kind_comes_to_its_end(schedules: Schedules, marks: Path) -> None:
    """A command, a gang, one that fails and is retried, one that is stopped while it runs, and one before it can
    run."""
    solo, gang, again, stopped, waits = (fresh(word) for word in ("solo", "gang", "again", "stopped", "waits"))
    ids = {
        solo: schedules.create(solo, a_spec("python", "-c", "print('done')")),
        gang: schedules.create(gang, a_gang(marks)),
        again: schedules.create(again, a_spec("python", "-c", FIRST_FAILS, maxRestarts=1)),
        stopped: schedules.create(stopped, a_spec("python", "-c", STAYS)),
        waits: schedules.create(waits, a_spec("true", cpu="4000")),
    }
    schedules.rounds_until(phase_is(schedules, gang, "Running"), "the gang runs")
    wait_until(lambda: len(starts_of(marks, ids[gang])) == 4, "every rank has begun")
    schedules.rounds_until(phase_is(schedules, stopped, "Running"), "the one to stop runs")
    assert schedules.status(waits)["phase"] == "Pending"
    for name in (stopped, waits):
        schedules.stop(name)
    let_go(marks)
    wait_until(lambda: all(pod["status"]["phase"] == "Succeeded" for pod in schedules.pods(ids[gang])), "ranks ended")
    schedules.rounds_until(is_over(schedules, *ids), "everything has ended")
    check_end(schedules, solo, ids[solo], "Succeeded")
    check_end(schedules, gang, ids[gang], "Succeeded")
    check_end(schedules, again, ids[again], "Succeeded", attempt=2)
    check_end(schedules, stopped, ids[stopped], "Canceled")
    check_end(schedules, waits, ids[waits], "Canceled")
    assert set(starts_of(marks, ids[gang]).values()) == {1}
    assert len(starts_of(marks, ids[gang])) == 4


def test_a_run_that_is_killed_is_made_up_for_by_the_next(schedules: Schedules, marks: Path) -> None:
    """Each service is killed in the middle of its work for a gang: every rank runs once, and the end is recorded."""
    name = fresh("killed")
    id_ = schedules.create(name, a_gang(marks))
    schedules.run_and_kill("scheduler", phase_is(schedules, name, "Assigned"), "the gang has its nodes")
    schedules.run("scheduler")
    schedules.run_and_kill("podworker", lambda: schedules.pods(id_), "a first pod is made")
    schedules.run("podworker")
    wait_until(lambda: len(starts_of(marks, id_)) == 4, "every rank has begun")
    before = schedules.status(name)["seq"]
    schedules.run_and_kill("watcher", lambda: schedules.status(name)["seq"] > before, "a phase is written")
    let_go(marks)
    wait_until(lambda: all(pod["status"]["phase"] == "Succeeded" for pod in schedules.pods(id_)), "ranks ended")
    schedules.rounds_until(is_over(schedules, name), "the gang has ended")
    check_end(schedules, name, id_, "Succeeded")
    assert list(starts_of(marks, id_).values()) == [1, 1, 1, 1]


def test_streams_that_redis_has_lost_are_told_again(schedules: Schedules, marks: Path) -> None:
    """The runs after the loss append them again: streams of running allocations are complete."""
    name = fresh("told")
    id_ = schedules.create(name, a_gang(marks))
    schedules.rounds_until(phase_is(schedules, name, "Running"), "the gang runs")
    with schedules.stack.redis() as client:
        client.flushall()
    wait_until(lambda: len(starts_of(marks, id_)) == 4, "every rank has begun")
    let_go(marks)
    wait_until(lambda: all(pod["status"]["phase"] == "Succeeded" for pod in schedules.pods(id_)), "ranks ended")
    schedules.rounds_until(is_over(schedules, name), "the gang has ended")
    check_end(schedules, name, id_, "Succeeded")
