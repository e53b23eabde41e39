"""A backup of one system, restored into another cluster: real processes on both sides, and no other shared data."""

import json
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import NotFoundError
from tests.support.local_stack import ALLOCATION, RunningStack, running_stack
from tests.support.wait import wait_until

Json = dict[str, Any]
SERVICES = ("api", "scheduler", "podworker", "watcher")
SLEEPS = ["python", "-c", "import time; time.sleep(600)"]
RUNS_AGAIN = [
    "python",
    "-c",
    "import os, time; time.sleep(600 if os.environ['SLIPWAY_ATTEMPT'] == '1' else 0); print('again')",
]


def a_body(command: list[str], cpu: str = "50m", **fields: Any) -> Json:
    container = {"name": "main", "image": "local", "command": command}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return {
        "kind": "training",
        "template": template,
        "ranks": [{"resources": {"cpu": cpu, "memory": "64Mi"}}],
        **fields,
    }


class LostSystem:
    """What was in the lost system."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.views: dict[str, Json] = {}
        self.usage: Json = {}
        self.order: list[str] = []


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LostSystem]:
    """A system with an ended, a running, three ordered waiting, and a cancelled allocation; then it is removed."""
    file = tmp_path_factory.mktemp("backup") / "slipway.jsonl.gz"
    before = LostSystem()
    with running_stack(tmp_path_factory.mktemp("lost") / "data", nodes=1, cpus=2) as stack:
        keyed = {"Idempotency-Key": "nightly-1"}
        done = a_body(["python", "-c", "import sys; sys.exit(3)"])
        before.ids["failed"] = stack.ask(lambda api: api.call("POST", "/allocations", body=done, headers=keyed).json())[
            "id"
        ]
        before.ids["killed"] = stack.launch(a_body(SLEEPS))
        before.ids["runs"] = stack.launch(a_body(RUNS_AGAIN))
        stack.wait_for(before.ids["killed"], "Running")
        stack.ask(lambda api: api.post(f"/allocations/{before.ids['killed']}/kill"))
        stack.ask(lambda api: api.post("/templates", {"name": "team", "workspace": "default", "body": {"priority": 7}}))
        for name in ("first", "second", "third"):
            before.ids[name] = stack.launch(a_body(["true"], cpu="64", name=f"waits-{name}"))
        for name in ("failed", "killed"):
            stack.wait_for(before.ids[name], "Terminated")
        stack.wait_for(before.ids["runs"], "Running")
        held = stack.kubernetes("GET", f"{ALLOCATION}/{stack.view(before.ids['killed'])['name']}")
        assert held["spec"]["desired"] == "Stopped"
        wait_until(lambda: used(stack)["ended"] == 2, "what has ended is in the totals")
        before.usage, before.order = used(stack), waiting(stack)
        before.views = {name: stack.view(id_) for name, id_ in before.ids.items()}
        ran = stack.command("backup", "-o", str(file), "--kubeconfig", stack.stack.kubeconfig)
        assert ran.code == 0, ran.err
        assert "Allocation.slipway.dev    6" in ran.out, ran.out
    return file, before


@pytest.fixture(scope="module")
def restored(backup: tuple[Path, LostSystem], tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """An empty cluster into which the backup is restored; its services start afterwards."""
    file, _ = backup
    with running_stack(tmp_path_factory.mktemp("fresh") / "data", nodes=1, cpus=2) as stack:
        where = ("-f", str(file), "--kubeconfig", stack.stack.kubeconfig)
        refused = stack.command("restore", *where)
        assert (refused.code, "scale deployment --replicas 0" in refused.err) == (2, True), refused.err
        stack.halt(*SERVICES)
        dry = stack.command("restore", *where, "--dry-run")
        assert dry.code == 0, dry.err + dry.out
        assert stack.kubernetes("GET", ALLOCATION)["items"] == []
        ran = stack.command("restore", *where)
        assert ran.code == 0, ran.err + ran.out
        assert "already exists: ResourcePool.slipway.dev default" in ran.out
        again = stack.command("restore", *where)
        assert "0 of " in again.err, again.err
        stack.resume(*SERVICES)
        yield stack


def used(stack: RunningStack) -> Json:
    """(number of ended allocations, their slot seconds) of each user"""
    found = stack.ask(lambda api: api.get("/usage", {"by": "kind"}))
    rows: list[Json] = found["items"]
    return {"ended": sum(int(row["ended"]) for row in rows)}


def waiting(stack: RunningStack) -> list[str]:
    """The names that wait in the queue, in its order."""
    items: list[Json] = stack.ask(lambda api: api.get("/queues/default"))["waiting"]
    return [item["name"] for item in items]


def seqs_in_stream(stack: RunningStack, id_: str) -> list[int]:
    """The seqs in the stream of an allocation."""
    return [entry["seq"] for entry in stack.stream_of(id_)]


def test_the_file_is_for_its_owner_only(backup: tuple[Path, LostSystem]) -> None:
    """The file may contain keys."""
    assert stat.S_IMODE(os.stat(backup[0]).st_mode) == 0o600


def test_ended_allocations_are_restored_unchanged(backup: tuple[Path, LostSystem], restored: RunningStack) -> None:
    """History, exit codes, result and user are unchanged; the old id finds the allocation; its stream is complete
    again."""
    _, before = backup
    for name, result in (("failed", "Failed"), ("killed", "Canceled")):
        was, now = before.views[name], restored.view(before.ids[name])
        assert now["status"]["result"] == was["status"]["result"] == result
        for field in ("phase", "attempt", "seq", "ranks", "transitions", "endedAt", "startedAt"):
            assert now["status"].get(field) == was["status"].get(field), field
        assert (now["name"], now["user"]) == (was["name"], was["user"])
        assert now["id"] != was["id"]
        seqs = [entry["seq"] for entry in was["status"]["transitions"]]
        wait_until(lambda id_=now["id"], seqs=seqs: seqs_in_stream(restored, id_) == seqs, "its stream is complete")
    assert restored.view(before.ids["failed"])["status"]["ranks"][0]["exitCode"] == 3


def test_running_allocations_start_their_next_attempt(backup: tuple[Path, LostSystem], restored: RunningStack) -> None:
    """It restarts once, without a counted restart, and runs to its end; attempt and seq have only risen."""
    _, before = backup
    was = before.views["runs"]
    ended = restored.wait_for(before.ids["runs"], "Terminated")
    status = ended["status"]
    assert (status["result"], status["attempt"], status.get("restarts", 0)) == ("Succeeded", 2, 0)
    assert status["seq"] > was["status"]["seq"]
    told = [(entry["seq"], entry["type"]) for entry in status["transitions"]]
    assert told[: len(was["status"]["transitions"])] == [
        (entry["seq"], entry["type"]) for entry in was["status"]["transitions"]
    ]
    assert [each for _, each in told].count("restarted") == 1


def test_waiting_allocations_keep_their_order(backup: tuple[Path, LostSystem], restored: RunningStack) -> None:
    """A waiting allocation starts when resources are free."""
    _, before = backup
    assert len(before.order) == 3
    wait_until(lambda: waiting(restored) == before.order, "they wait as they did")
    assert all(restored.view(before.ids[name])["phase"] == "Pending" for name in ("first", "second", "third"))


def test_a_key_keeps_its_meaning(backup: tuple[Path, LostSystem], restored: RunningStack) -> None:
    """The same request returns the same allocation; another body is refused."""
    _, before = backup
    body = a_body(["python", "-c", "import sys; sys.exit(3)"])
    keyed = {"Idempotency-Key": "nightly-1"}
    answer = restored.ask(lambda api: api.call("POST", "/allocations", body=body, headers=keyed))
    assert answer.status == 200
    assert answer.json()["name"] == before.views["failed"]["name"]


def test_usage_and_templates_are_back(backup: tuple[Path, LostSystem], restored: RunningStack) -> None:
    """Ended allocations are counted once, not again."""
    _, before = backup
    restored.wait_for(before.ids["runs"], "Terminated")
    wait_until(lambda: used(restored)["ended"] == before.usage["ended"] + 1, "the one that has ended since is added")
    items = restored.ask(lambda api: api.get("/templates", {"workspace": "default"}))["items"]
    assert [item["name"] for item in items] == ["team"]


def test_an_unknown_id(restored: RunningStack) -> None:
    """An unknown former id is not found."""
    with pytest.raises(NotFoundError):
        restored.ask(lambda api: api.get("/allocations/waits-first-00000000"))


def test_a_file_that_is_no_backup(restored: RunningStack, tmp_path: Path) -> None:
    """A file that is no backup is refused with its line, before any change."""
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"kind": "List"}) + "\n")
    ran = restored.command("restore", "-f", str(other), "--kubeconfig", restored.stack.kubeconfig)
    assert (ran.code, "line 1 does not belong to a backup" in ran.err) == (2, True)
    ran = restored.command("restore", "-f", str(tmp_path / "none"), "--kubeconfig", restored.stack.kubeconfig)
    assert (ran.code, "cannot be read" in ran.err) == (2, True)
