"""`slipway backup` and `slipway restore` on a real API server, whose own rules judge every write of a restore."""

import os
import subprocess
from pathlib import Path

from tests.conformance.system.operator import GROUP
from tests.conformance.system.system import System, a_body
from tests.support import chart
from tests.support.cli import CommandResult
from tests.support.local_stack import cli_words
from tests.support.wait import wait_until

ALLOCATIONS = f"{GROUP}/namespaces/default/allocations"


def slipway(system: System, *words: str) -> CommandResult:
    """Run the command as an administrator."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    more = ("--kubeconfig", str(system.operator.cluster.kubeconfig))
    done = subprocess.run(cli_words(*words, *more), env=env, capture_output=True, text=True, timeout=120, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def test_a_backup_restores_a_lost_system(system: System, tmp_path: Path) -> None:
    """Ended and cancelled allocations come back unchanged, with their old ids; a running one begins its next
    attempt, once."""
    file = tmp_path / "backup.jsonl"
    ids = {
        "ended": system.launch(a_body(script={"runsS": 0.1, "exit": 3})),
        "killed": system.launch(a_body(script={"runsS": 600})),
        "runs": system.launch(a_body(ranks=2, script={"runsS": 600})),
    }
    system.wait_until(ids["killed"], lambda view: view["phase"] == "Running", "it runs")
    system.post(f"/allocations/{ids['killed']}/kill")
    system.wait_until(ids["runs"], lambda view: view["phase"] == "Running", "it runs")
    for name in ("ended", "killed"):
        system.wait_until(ids[name], lambda view: view["phase"] == "Terminated", "it has ended")
    before = {name: system.view(id_) for name, id_ in ids.items()}
    taken = slipway(system, "backup", "-o", str(file))
    assert taken.code == 0, taken.err
    refused = slipway(system, "restore", "-f", str(file))
    assert (refused.code, "services are running" in refused.err) == (2, True), refused.err
    for view in before.values():
        system.operator.delete(f"{ALLOCATIONS}/{view['name']}")
    wait_until(lambda: all(system.is_gone(id_) for id_ in ids.values()), "all of it is gone", timeout_s=60)
    system.installation.halt(*chart.SERVICES)
    try:
        given = slipway(system, "restore", "-f", str(file))
        assert given.code == 0, given.err + given.out
    finally:
        system.installation.resume(*chart.SERVICES)
    for name in ("ended", "killed"):
        was, now = before[name]["status"], system.view(ids[name])["status"]
        for field in ("phase", "result", "attempt", "seq", "ranks", "transitions"):
            assert now.get(field) == was.get(field), (name, field)
    again = system.wait_until(
        ids["runs"], lambda view: view["phase"] == "Running" and view["status"]["attempt"] == 2, "it runs again"
    )
    assert again["status"]["seq"] > before["runs"]["status"]["seq"]
    assert again["status"].get("restarts", 0) == 0
    system.started_once(again["id"], 2, attempt=2)
    system.post(f"/allocations/{again['id']}/kill")
