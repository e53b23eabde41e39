"""Any process is killed at any moment, leaders change, Redis is emptied or down: nothing is lost, doubled or leaked."""

import time

import pytest

from tests.conformance.system.operator import Json, must
from tests.conformance.system.system import System, a_body
from tests.support import chart
from tests.support.wait import wait_until

GANGS = 4
RANKS = 3
APART_S = 0.04


def launch_gangs(system: System, script: Json | None = None) -> list[str]:
    """Launch gangs that are at different points of their launch when this returns."""
    ids: list[str] = []
    for _ in range(GANGS):
        ids.append(system.launch(a_body("training", RANKS, script)))
        time.sleep(APART_S)
    return ids


def end_well(system: System, ids: list[str]) -> None:
    """Check that each runs in its first attempt with every rank started once; then end all successfully."""
    for id_ in ids:
        view = system.wait_for(id_, "Running", "Terminated", timeout_s=60)
        assert (view["phase"], view["attempt"]) == ("Running", 1), view
        system.started_once(id_, RANKS)
    for id_ in ids:
        for pod in system.pods(id_):
            system.nodes.exit(pod["metadata"]["uid"], 0)
    for id_ in ids:
        system.ended(id_, "Succeeded", timeout_s=60)
    assert system.nodes.doubles() == []


@pytest.mark.parametrize("victim", chart.SERVICES)
def test_a_kill_in_the_middle_of_launches(system: System, victim: str) -> None:
    """Any service is killed and restarted as a kubelet would; all gangs run and end."""
    ids = launch_gangs(system)
    system.installation.kill(victim)
    ids += [system.launch(a_body("training", RANKS))]
    end_well(system, ids)


def test_everything_restarts_at_rest(system: System) -> None:
    """All four services stop and start while gangs run: no pod is written to, and no phase changes."""
    ids = launch_gangs(system)
    for id_ in ids:
        system.wait_for(id_, "Running")
    before = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for id_ in ids for pod in system.pods(id_)}
    system.installation.halt(*chart.SERVICES)
    system.installation.resume(*chart.SERVICES)
    assert [system.view(id_)["phase"] for id_ in ids] == ["Running"] * GANGS
    after = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for id_ in ids for pod in system.pods(id_)}
    assert after == before
    end_well(system, ids)


def test_a_leader_that_freezes(system: System) -> None:
    """A second scheduler takes over from one that hangs; when the first continues, it changes nothing."""
    system.installation.resume("scheduler-1")
    first = system.installation.processes["scheduler"]
    try:
        first.pause()
        ids = launch_gangs(system)
        for id_ in ids:
            system.wait_for(id_, "Running", timeout_s=30)
        first.go_on()
        more = launch_gangs(system)
        end_well(system, ids + more)
    finally:
        first.go_on()
        system.installation.halt("scheduler-1")


def test_a_leader_that_dies(system: System) -> None:
    """The leaders are killed, and the standbys take over within the lease."""
    system.installation.resume("scheduler-1", "watcher-1")
    try:
        ids = launch_gangs(system)
        for name in ("scheduler", "watcher"):
            system.installation.processes[name].kill()
        ids += launch_gangs(system)
        end_well(system, ids)
    finally:
        system.installation.halt("scheduler-1", "watcher-1")
        system.installation.resume("scheduler", "watcher")


def test_redis_loses_all_data(system: System) -> None:
    """After FLUSHALL during launches all gangs run and end, and every stream is complete again."""
    ids = launch_gangs(system)
    with system.redis() as client:
        client.flushall()
        ids += launch_gangs(system)
        client.flushall()
    end_well(system, ids)
    for id_ in ids:
        last = system.view(id_)["status"]["seq"]

        def seqs(id_: str = id_) -> list[int]:
            with system.redis() as client:
                return [int(entry.split("-")[1]) for entry, _ in client.xrange(f"slipway:alloc:{{{id_}}}")]

        wait_until(lambda last=last, seqs=seqs: seqs() == list(range(1, last + 1)), f"stream of {id_}", timeout_s=60)


def test_redis_is_away(system: System) -> None:
    """Launches continue without Redis, and their streams are complete when it is back."""
    system.stop_redis()
    try:
        end_well(system, launch_gangs(system))
    finally:
        system.start_redis()
        system.installation.await_ready()


def test_without_redis(system: System) -> None:
    """R0: the chart without any Redis launches, runs, cancels, and shows events and logs."""
    system.installation.halt(*chart.SERVICES)
    system.installation.resume(*chart.SERVICES, without=("SLIPWAY_REDIS_URL",))
    try:
        held = system.launch(a_body(hold=True))
        end_well(system, launch_gangs(system))
        must(system.cli("kill", held, "--wait"))
        talking = system.launch(a_body(script={"logs": ["said without Redis"]}))
        system.wait_for(talking, "Running")
        wait_until(lambda: system.cli("logs", talking).out == "said without Redis\n", "its log")
        assert system.story(talking)[0] == "requested"
        system.settle()
    finally:
        system.installation.halt(*chart.SERVICES)
        system.installation.resume(*chart.SERVICES)


def test_single_runs(system: System) -> None:
    """With no service running, `--once` of each service takes a launch to its end, with the service's account."""
    id_ = system.launch(a_body("training", 2, hold=True))
    services = [name for name in chart.SERVICES if name != "api"]
    system.installation.halt(*services)
    try:
        assert "idle" not in must(system.installation.run("api", "--once"))
        system.post(f"/allocations/{id_}/resume")
        must(system.installation.run("scheduler", "--once"))
        assert system.view(id_)["phase"] == "Assigned"
        must(system.installation.run("podworker", "--once"))
        wait_until(lambda: len(system.runs(id_)) == 2, "both ranks run")
        must(system.installation.run("watcher", "--once"))
        assert system.view(id_)["phase"] == "Running"
        for pod in system.pods(id_):
            system.nodes.exit(pod["metadata"]["uid"], 0)
        pods = f"/allocations/{id_}/pods"
        wait_until(lambda: all(pod["phase"] == "Succeeded" for pod in system.get(pods)["items"]), "both ended")
        for name in ("watcher", "podworker", "watcher"):
            must(system.installation.run(name, "--once"))
        system.ended(id_, "Succeeded")
    finally:
        system.installation.resume(*services)
    done = system.installation.run("scheduler", "--once")
    assert (done.code, "idle: not leader" in done.out + done.err) == (0, True)
