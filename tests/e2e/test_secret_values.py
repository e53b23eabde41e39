"""A secret value of a launch reaches its ranks in each attempt, and is found nowhere else: the test searches for a
canary."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_stack import ALLOCATION, RunningStack
from tests.support.names import fresh
from tests.support.places import all_places
from tests.support.wait import wait_until

Json = dict[str, Any]
CANARY = "canary-5f1c9b7e2a"
FORMS = (CANARY, base64.b64encode(CANARY.encode()).decode().rstrip("="), hashlib.sha256(CANARY.encode()).hexdigest())
"""The forms that are searched for, including a plain hash, by which the value could be guessed."""
PROGRAM = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
fresh = folder / f".{os.environ['RANK']}"
fresh.write_text(os.environ["THE_TOKEN"])
fresh.rename(folder / f"attempt-{os.environ['SLIPWAY_ATTEMPT']}-{os.environ['RANK']}")
print("it has", len(os.environ["THE_TOKEN"]), "characters", flush=True)
while not (folder / "end").exists():
    time.sleep(0.05)
"""


def value_secrets(stack: RunningStack, owner: str) -> list[Json]:
    """The Secrets with secret values of the allocation with this name."""
    items: list[Json] = stack.kubernetes("GET", "/api/v1/secrets")["items"]
    values = [each for each in items if each["metadata"]["name"].startswith("slipway-values-")]
    return [each for each in values if owner in {of["name"] for of in each["metadata"]["ownerReferences"]}]


def assert_nowhere(stack: RunningStack, id_: str, folder: Path) -> None:
    """Check that the canary is in none of these places, and that they are not empty."""
    seen = 0
    for place, text in all_places(stack, id_, folder):
        seen += bool(text)
        assert not any(form in text for form in FORMS), f"{place} holds the secret value"
    assert seen > 40


def test_a_secret_value_reaches_each_attempt_and_nothing_else(stack: RunningStack, marks: Path, tmp_path: Path) -> None:
    """Two ranks have it in two attempts. While they run, and after the end, it is found nowhere else; then its
    Secret is deleted."""
    body: Json = {
        "kind": "training",
        "name": fresh("secret"),
        "image": "local",
        "command": ["python", "-c", PROGRAM, str(marks)],
        "ranks": [{"name": "worker", "count": 2, "resources": {"cpu": "50m", "memory": "64Mi"}}],
        "preemptible": True,
        "preemptionGrace": "1s",
        "secretValues": {"THE_TOKEN": CANARY},
    }
    id_ = stack.launch(body)
    wait_until(lambda: len(list(marks.glob("attempt-1-*"))) == 2, "both ranks run")
    [secret] = value_secrets(stack, body["name"])
    allocation = stack.kubernetes("GET", f"{ALLOCATION}/{body['name']}")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == allocation["metadata"]["uid"]
    assert_nowhere(stack, id_, tmp_path)
    paused = stack.command("pause", id_)
    assert paused.code == 0, paused.err
    wait_until(lambda: stack.view(id_)["phase"] == "Pending", "it was preempted")
    assert len(value_secrets(stack, body["name"])) == 1
    resumed = stack.command("resume", id_)
    assert resumed.code == 0, resumed.err
    wait_until(lambda: len(list(marks.glob("attempt-2-*"))) == 2, "both ranks run again", timeout_s=90)
    assert {each.read_text() for each in marks.glob("attempt-*")} == {CANARY}
    (marks / "end").touch()
    stack.wait_for(id_, "Terminated")
    wait_until(lambda: not value_secrets(stack, body["name"]), "its Secret is gone")
    assert_nowhere(stack, id_, tmp_path)
    refused = stack.command("rerun", id_)
    assert "add --secret THE_TOKEN" in refused.err


def test_the_command_takes_it_from_its_environment(
    stack: RunningStack, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--secret NAME` works; the end of the rank's log and its exit code show it."""
    (marks / "end").touch()
    monkeypatch.setenv("THE_TOKEN", CANARY)
    done = stack.command("run", "--image", "local", "--secret", "THE_TOKEN", "--", "python", "-c", PROGRAM, str(marks))
    assert done.code == 0, done.err
    assert f"it has {len(CANARY)} characters" in done.out
    assert CANARY not in done.out + done.err
    assert (marks / "attempt-1-0").read_text() == CANARY
