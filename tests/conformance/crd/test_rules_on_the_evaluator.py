"""The CRDs and the Python twins against the API server's own validation code.

Needs the program in `evaluator/` (`go build`), named by SLIPWAY_CRD_EVALUATOR; skipped without it.
"""

import json
import os
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from slipway.crd.rules import RULES, violations
from tests.support.allocation_values import SPEC, STATUS
from tests.support.allocations import Json, a_spec, a_status, a_stored

EVALUATOR = os.environ.get("SLIPWAY_CRD_EVALUATOR", "")
CRDS = Path(__file__).resolve().parents[3] / "helm" / "files" / "crds"
WRITES = 4000

pytestmark = pytest.mark.skipif(not EVALUATOR, reason="SLIPWAY_CRD_EVALUATOR names no evaluator")

ALWAYS = {"kind", "queue", "pool", "desired", "preemptible", "phase", "seq", "attempt"}
MESSAGES = {rule.message for rule in RULES}
NAMES = ["a"] * 40 + ["1a", "a.b", "A", "a-", "a" * 41]


class Evaluator:
    """The running program: a write on its input, its verdict on its output."""

    def __init__(self, source: IO[str], sink: IO[str]) -> None:
        self._source, self._sink = source, sink

    def judge(self, new: Json, old: Json | None) -> tuple[list[str], Json]:
        """Return (messages of the rules that the write breaks, the object with its defaults)."""
        self._sink.write(json.dumps({"new": new, "old": old}) + "\n")
        self._sink.flush()
        answer = json.loads(self._source.readline())
        errors: list[str] = answer["errors"]
        return sorted(_message_in(e) for e in errors if e.startswith("cel ")), answer["new"]


def _message_in(error: str) -> str:
    """The message without the field, and without the value that the server adds when it is short."""
    return next((message for message in MESSAGES if error.endswith(f": {message}")), error)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    command = [EVALUATOR, "eval", str(CRDS / "allocations.slipway.dev.yaml")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Evaluator(process.stdout, process.stdin)
        process.stdin.close()


def drawn(rng: random.Random, choices: Mapping[str, Sequence[Any]], base: Json, share: float) -> Json:
    """Return `base` with a share of the fields drawn anew, or dropped."""
    result = dict(base)
    for field, values in choices.items():
        if rng.random() < share:
            if field not in ALWAYS and rng.random() < 0.3:
                result.pop(field, None)
            else:
                result[field] = rng.choice(values)
    return result


def test_the_server_takes_the_crds() -> None:
    """The API server accepts the CRDs: structural, with valid rules, within the cost budget."""
    files = sorted(str(path) for path in CRDS.glob("*.yaml"))
    answer = subprocess.run([EVALUATOR, "validate", *files], capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == 0, answer.stdout


def test_python_rules_and_cel_expressions_agree(evaluator: Evaluator) -> None:
    """The twins and the expressions agree on thousands of writes, each a step from a stored object; every rule
    refuses at least once."""
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
    assert rules - refusals <= {"status cannot be removed"} | {
        f"{field} cannot be changed after creation; start another allocation"
        for field in ("pendingTimeout", "preemptionGrace")
    }
