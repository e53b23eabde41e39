"""A gang whose ranks tell that they were started, and stay until they may go.

Owns the proof of "exactly once": each start of a container appends a line to a file named by its pod's uid.
"""

from pathlib import Path
from typing import Any

from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Json = dict[str, Any]

PROGRAM = """
import os, pathlib, time
folder = pathlib.Path(os.environ["MARKS"])
mine = os.environ["SLIPWAY_ALLOCATION_ID"]
name = f"{mine}.{os.environ['SLIPWAY_ATTEMPT']}.{os.environ['RANK']}.{os.environ['POD_UID']}"
with (folder / name).open("a") as out:
    out.write("started\\n")
until = time.monotonic() + 120
while not (folder / "go").exists() and time.monotonic() < until:
    time.sleep(0.02)
"""
RANKS = 4


def gang_body(marks: Path, ranks: int = RANKS, **fields: Any) -> Json:
    """A launch of such a gang."""
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    container = {"name": "main", "image": "local", "command": ["python", "-c", PROGRAM], "env": [uid]}
    return {
        "kind": "training",
        "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
        "env": {"MARKS": str(marks)},
        "ranks": [{"name": "worker", "count": ranks, "resources": {"cpu": "50m", "memory": "64Mi"}}],
        **fields,
    }


def let_go(marks: Path) -> None:
    """Let every rank end."""
    (marks / "go").touch()


def starts_of(marks: Path, allocation: str) -> dict[str, int]:
    """{attempt.rank.uid: how often its container was started}."""
    return {
        path.name.removeprefix(f"{allocation}."): len(path.read_text().splitlines())
        for path in marks.glob(f"{allocation}.*")
    }


def all_running(stack: RunningStack, allocation: str, *, timeout_s: float = 60.0) -> Json:
    """The allocation once it runs."""
    return stack.wait_for(allocation, "Running", "Terminated", timeout_s=timeout_s)


def assert_whole(stack: RunningStack, marks: Path, allocation: str, ranks: int = RANKS) -> None:
    """Exactly `ranks` bound pods, each started once, all of the first attempt."""
    pods = stack.pods(allocation)
    assert sorted(pod["rank"] for pod in pods) == list(range(ranks))
    assert all(pod["node"] for pod in pods)
    expected = {f"1.{pod['rank']}.{pod['uid']}": 1 for pod in pods}
    wait_until(lambda: starts_of(marks, allocation) == expected, f"{expected} in {starts_of(marks, allocation)}")


def assert_succeeded(stack: RunningStack, allocation: str, ranks: int = RANKS, *, timeout_s: float = 60.0) -> None:
    """It ends well, every rank with 0, and none of its pods is left."""
    view = stack.wait_for(allocation, "Terminated", timeout_s=timeout_s)
    assert (view["result"], view["attempt"]) == ("Succeeded", 1), view["message"]
    assert [rank.get("exitCode") for rank in view["status"]["ranks"]] == [0] * ranks
    wait_until(lambda: not stack.pods(allocation), f"no pod of {allocation}")
