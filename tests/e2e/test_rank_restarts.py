"""A failed rank restarts in place, on real processes, as the command, the events and the log show it."""

from pathlib import Path

from tests.support.local_stack import RunningStack

PROGRAM = """
import os, pathlib, sys, time
rank, folder = os.environ["RANK"], pathlib.Path(sys.argv[1])
print("begins", flush=True)
if rank == "1" and not (folder / "failed").exists():
    (folder / "failed").write_text("")
    print("fails", flush=True)
    sys.exit(3)
while rank != "1" and not (folder / "done").exists():
    time.sleep(0.1)
(folder / "done").write_text("")
print("ends", flush=True)
"""
"""Rank 1 fails once; the others run until it has succeeded."""


def test_one_rank_starts_again_while_the_others_run_on(stack: RunningStack, tmp_path: Path) -> None:
    """The restart is counted once, in the same attempt; the rank's log continues."""
    container = {"name": "main", "image": "local", "command": ["python", "-c", PROGRAM, str(tmp_path)]}
    role = {"name": "worker", "count": 3, "resources": {"cpu": "50m", "memory": "64Mi"}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    body = {"kind": "training", "ranks": [role], "template": template, "restart": "rank", "maxRestarts": 2}
    id_ = stack.launch(body)
    view = stack.wait_for(id_, "Terminated", timeout_s=90)
    assert (view["result"], view["attempt"], view["status"]["restarts"]) == ("Succeeded", 1, 1)
    assert [each["exitCode"] for each in view["status"]["ranks"]] == [0, 0, 0]
    said = stack.command("describe", id_)
    assert "rank 1 failed: exit code 3; it starts again (1 of 2)" in said.out
    followed = stack.command("follow", id_)
    assert "rank 1 failed: exit code 3; it starts again (1 of 2)\n" in followed.err
    log = stack.command("logs", id_, "--rank", "1")
    assert [line.removeprefix("[1] ") for line in log.out.splitlines()] == ["begins", "fails", "begins", "ends"]
    log = stack.command("logs", id_, "--rank", "0")
    assert [line.removeprefix("[0] ") for line in log.out.splitlines()] == ["begins", "ends"]
