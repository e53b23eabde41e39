"""The CRDs and the Python twins against the API server's own validation code.

Needs the program in `evaluator/` (`go build`), named by SLIPWAY_CRD_EVALUATOR; skipped without it.
"""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from slipway.crd.rules import RULES, violations
from tests.support.allocations import Json, a_spec, a_status, a_stored

EVALUATOR = os.environ.get("SLIPWAY_CRD_EVALUATOR", "")
CRDS = Path(__file__).resolve().parents[3] / "helm" / "files" / "crds"
WRITES = 4000

pytestmark = pytest.mark.skipif(not EVALUATOR, reason="SLIPWAY_CRD_EVALUATOR names no evaluator")

SPEC: dict[str, list[Any]] = {
    "kind": ["training", "training", "training", "command"],
    "queue": ["default", "default", "b"],
    "pool": ["default"] * 8 + ["other"],
    "desired": ["Running", "Running", "Stopped"],
    "preemptible": [False] * 8 + [True],
    "job": ["j", "k"],
    "minAvailable": [1, 2],
    "idleTimeout": ["1h", "2h"],
    "maxRuntime": ["1h"],
    "env": [{}, {"A": "1"}, {"A": "2"}, {"B": "1"}],
    "files": [[], [{"path": "a", "content": "b"}]],
    "ports": [[], [{"name": "h", "port": 80}], [{"name": "h", "port": 80, "scheme": "http"}]],
    "maxRestarts": [0, 1],
    "requestHash": ["a", "b"],
    "context": ["a" * 64, "b" * 64],
    "template": [{}, {"spec": {"a": 1}}, {"spec": {"a": {"b": 2}}}, {"spec": {"a": {"c": 2}}}],
    "ranks": [
        [],
        [{}],
        [{"name": "worker", "count": 2}],
        [{"count": 2, "resources": {"cpu": 1}}],
        [{"count": 2, "resources": {"memory": 1}}],
        [{"count": 2, "resources": {"requests": {"cpu": 1}}}],
        [{"affinity": {"nodeAffinity": {"x": [1]}}}],
        [{"affinity": {"nodeAffinity": {"y": [1]}}}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "count": 2, "minAvailable": 3}],
    ],
    "signals": [
        {"attempt": 1},
        {"attempt": 2},
        {"preempt": {"n": 1}},
        {"preempt": {"n": 2}, "acks": {"0": 1}},
        {"preempt": {"n": 2}, "acks": {"0": 2, "1": 2}},
        {"acks": {"1": 1}},
    ],
}
STATUS: dict[str, list[Any]] = {
    "phase": ["Pending", "Running", "Terminated", "Terminated"],
    "seq": [3, 3, 3, 4, 5],
    "attempt": [1, 1, 1, 2],
    "admission": [{"decisionId": "d", "epoch": 3}, {"decisionId": "d", "epoch": 4}],
    "release": [{"attempt": 1, "podUIDs": ["u0"]}, {"attempt": 1, "podUIDs": ["u1"]}, {"attempt": 1}],
    "result": ["Failed", "Succeeded"],
    "ranks": [
        [{"podUID": "u0"}],
        [{"podUID": "u0", "exitCode": 0}],
        [{"podUID": "u0", "exitCode": 3}, {"podUID": "u1"}],
        [{"podUID": "u0", "exitCode": 3}, {"podUID": "u1", "exitCode": 0}],
        [{"podUID": "u9", "exitCode": 3}, {"podUID": "u1"}],
    ],
}
ALWAYS = {"kind", "queue", "pool", "desired", "preemptible", "phase", "seq", "attempt"}
NAMES = ["a"] * 40 + ["1a", "a.b", "A", "a-", "a" * 41]


class Evaluator:
    """The running program: one write in, its verdict out."""

    def __init__(self, source: IO[str], sink: IO[str]) -> None:
        self._source, self._sink = source, sink

    def judge(self, new: Json, old: Json | None) -> tuple[list[str], Json]:
        """(messages of the rules that the write breaks, the object with its defaults)"""
        self._sink.write(json.dumps({"new": new, "old": old}) + "\n")
        self._sink.flush()
        answer = json.loads(self._source.readline())
        errors: list[str] = answer["errors"]
        return sorted(e.split(": ", 2)[-1] for e in errors if e.startswith("cel ")), answer["new"]


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    command = [EVALUATOR, "eval", str(CRDS / "allocations.slipway.dev.yaml")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Evaluator(process.stdout, process.stdin)
        process.stdin.close()


def drawn(rng: random.Random, choices: dict[str, list[Any]], base: Json, share: float) -> Json:
    """`base` with a share of the fields drawn anew, or dropped."""
    result = dict(base)
    for field, values in choices.items():
        if rng.random() < share:
            if field not in ALWAYS and rng.random() < 0.3:
                result.pop(field, None)
            else:
                result[field] = rng.choice(values)
    return result


def test_the_server_takes_the_crds() -> None:
    """Structural, with valid rules, within the cost budget."""
    files = sorted(str(path) for path in CRDS.glob("*.yaml"))
    answer = subprocess.run([EVALUATOR, "validate", *files], capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == 0, answer.stdout


def test_twins_and_expressions_agree(evaluator: Evaluator) -> None:
    """On thousands of writes, each a step from a stored object; every rule refuses at least once."""
    rng = random.Random(7)
    refusals: set[str] = set()
    for _ in range(WRITES):
        spec, status = drawn(rng, SPEC, a_spec(), 0.4), drawn(rng, STATUS, a_status(), 0.6)
        _, old = evaluator.judge(a_stored(name="a", spec=spec, status=status), None)
        new = a_stored(
            name=rng.choice(NAMES),
            spec=drawn(rng, SPEC, old["spec"], 0.1),
            status=drawn(rng, STATUS, old["status"], 0.3),
        )
        before = None if rng.random() < 0.1 else old
        said, stored = evaluator.judge(new, before)
        told = sorted(violation.message for violation in violations("Allocation", stored, before))
        assert said == told, json.dumps({"new": stored, "old": before})
        refusals.update(told)
    rules = {rule.message for rule in RULES if rule.kind == "Allocation"}
    assert rules - refusals <= {"status can not be removed"} | {
        f"{field} can not be changed after creation; start another allocation"
        for field in ("pendingTimeout", "preemptionGrace")
    }
