"""A gang whose ranks record each start, and run until a test lets them end.

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
    """The body of a launch of such a gang."""
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
    """Wait until the allocation runs or has ended; return it."""
    return stack.wait_for(allocation, "Running", "Terminated", timeout_s=timeout_s)


def assert_whole(stack: RunningStack, marks: Path, allocation: str, *, attempts: int = 1) -> None:
    """The gang runs with exactly `RANKS` bound pods, each started once, within `attempts` attempts; no pod was started
    twice."""
    found: Json = {}

    def is_whole() -> bool:
        view = stack.wait_for(allocation, "Running", "Terminated")
        pods = [pod for pod in stack.pods(allocation) if pod["attempt"] == view["attempt"]]
        expected = {f"{pod['attempt']}.{pod['rank']}.{pod['uid']}": 1 for pod in pods if pod["node"]}
        starts = starts_of(marks, allocation)
        kept = {name: count for name, count in starts.items() if name.startswith(f"{view['attempt']}.")}
        story = [(item["attempt"], item["type"], item.get("reason", "")) for item in view["status"]["transitions"]]
        found.update(phase=view["phase"], attempt=view["attempt"], pods=expected, starts=starts, story=story)
        return sorted(pod["rank"] for pod in pods) == list(range(RANKS)) and kept == expected

    try:
        wait_until(is_whole, f"{allocation} is whole")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None
    assert set(found["starts"].values()) == {1}, found
    assert (found["phase"], found["attempt"] <= attempts) == ("Running", True), found


def assert_succeeded(stack: RunningStack, allocation: str, *, attempts: int = 1, timeout_s: float = 60.0) -> None:
    """The gang succeeds within `attempts` attempts, every rank exits with 0, and none of its pods is left."""
    view = stack.wait_for(allocation, "Terminated", timeout_s=timeout_s)
    assert (view["result"], view["attempt"] <= attempts) == ("Succeeded", True), (view["attempt"], view["message"])
    assert [rank.get("exitCode") for rank in view["status"]["ranks"]] == [0] * RANKS
    wait_until(lambda: not stack.pods(allocation), f"no pod of {allocation}")
