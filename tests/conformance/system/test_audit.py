"""`slipway audit` on a real API server, under the account that the chart gives it: clean after lives, and read-only."""

import json
import subprocess

from tests.conformance.system.system import System, a_body
from tests.support import chart
from tests.support.local_stack import cli_words


def audit(system: System, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the audit as the pod of the chart does, with these arguments."""
    env = system.installation.environment(chart.AUDIT, "", "")
    argv = cli_words("audit", *words)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_the_audit_of_whole_lives_finds_nothing(system: System) -> None:
    """While gangs run, fail and are killed, the audit sees every version, and no invariant is broken."""
    first = system.launch(a_body("training", 2))
    system.wait_for(first, "Running")
    argv = cli_words("audit", "--for", "10s", "-o", "json")
    env = system.installation.environment(chart.AUDIT, "", "")
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        ended = system.launch(a_body("training", 2, {"runsS": 0.2}))
        failed = system.launch(a_body(script={"runsS": 0.1, "exit": 3}))
        system.ended(ended, "Succeeded")
        system.ended(failed, "Failed")
        system.cli("kill", first, "--wait")
        out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    found = json.loads(out)
    assert found["isComplete"]
    assert found["problem"] == ""
    seen = {line["invariant"]: line["lookedAt"] for line in found["invariants"]}
    assert seen["I7"] >= 3
    assert seen["I5"] >= 5
    assert seen["I14"] >= 1


def test_the_audit_of_the_present_state_finds_nothing(system: System) -> None:
    """One check of everything that the tests before have left: no rule of the custom resource is broken."""
    done = audit(system, "--once", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in json.loads(done.stdout)["invariants"] if line["invariant"] == "I7")
    assert line["unknown"] == []
