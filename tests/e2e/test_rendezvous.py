"""Ranks of a gang find each other: at a store that listens on every address, as torch's does, and by the real torchrun.

torch is not among what is installed for the tests. The tests of torchrun run where it is on the path, or where the
environment variable TORCHRUN names it; elsewhere they are skipped.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
TORCHRUN = os.environ.get("TORCHRUN") or shutil.which("torchrun")
needs_torchrun = pytest.mark.skipif(TORCHRUN is None, reason="torchrun is not on the path, and TORCHRUN names none")

MEETS = """
import os, pathlib, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
marks = pathlib.Path(os.environ["MARKS"])
if rank == 0:
    with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as store:
        (marks / "listens").touch()
        peers = [store.accept()[0] for _ in range(size - 1)]
        total = sum(int(peer.recv(16)) for peer in peers)
        for peer in peers:
            peer.sendall(str(total).encode())
        while not (marks.parent / "go").exists():
            time.sleep(0.02)
else:
    while not (marks / "listens").exists():
        time.sleep(0.02)
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 60) as store:
        store.sendall(os.environ["VALUE"].encode())
        total = int(store.recv(16))
(marks / f"sum-{rank}").write_text(str(total))
"""
TRAINS = """
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
told = f"{dist.get_world_size()} {int(value.item())}"
pathlib.Path(os.environ["MARKS"], f"sum-{dist.get_rank()}").write_text(told)
dist.barrier()
dist.destroy_process_group()
"""


def a_gang(stack: RunningStack, marks: Path, script: str, command: list[str], **fields: Any) -> str:
    """Launch ranks that run `command` and leave their sums in `marks`."""
    marks.mkdir(mode=0o777)
    role: Json = {"name": "worker", "count": fields.pop("count"), "resources": {"cpu": "250m", "memory": "256Mi"}}
    role["resources"] |= {GPU: gpus} if (gpus := fields.pop("gpus", 0)) else {}
    role |= {"minAvailable": fields.pop("minimum")} if "minimum" in fields else {}
    env = {"MARKS": str(marks), **fields.pop("env", {})}
    files = [{"path": "train.py", "content": script}]
    return stack.launch(
        {"kind": "training", "image": "local", "command": command, "env": env, "files": files, "ranks": [role]}
    )


def sums(marks: Path) -> dict[str, str]:
    """{rank: its sum}"""
    return {path.name.removeprefix("sum-"): path.read_text() for path in marks.glob("sum-*")}


def test_gangs_that_run_at_once_do_not_meet_each_other(stack: RunningStack, marks: Path) -> None:
    """Both gangs have a store on every address of the machine; the second one can listen, and only its own ranks
    find it."""
    gangs = {
        value: a_gang(stack, marks / str(value), MEETS, ["python", "train.py"], count=3, env={"VALUE": str(value)})
        for value in (1, 100)
    }
    for value in gangs:
        wait_until(lambda value=value: len(sums(marks / str(value))) == 2, "two ranks have met the first")
    (marks / "go").touch()
    for value, id_ in gangs.items():
        assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"
        assert sums(marks / str(value)) == {rank: str(2 * value) for rank in ("0", "1", "2")}


@needs_torchrun
@pytest.mark.parametrize(
    ("gang", "processes"),
    [
        ({"count": 4}, 4),
        ({"count": 4, "minimum": 2}, 4),
        ({"count": 2, "gpus": 2}, 4),
        ({"count": 1, "gpus": 2}, 2),
        ({"count": 1}, 1),
    ],
    ids=["gang", "elastic", "gang with GPUs", "alone with GPUs", "alone"],
)
def test_torchrun_is_one_training(stack: RunningStack, marks: Path, gang: Json, processes: int) -> None:
    """With `torchrun train.py` without options all processes of all ranks sum with each other."""
    assert TORCHRUN is not None
    folder = marks / "gang"
    id_ = a_gang(stack, folder, TRAINS, [TORCHRUN, "train.py"], **gang)
    assert stack.wait_for(id_, "Terminated", timeout_s=120)["result"] == "Succeeded"
    told = f"{processes} {processes * (processes + 1) // 2}"
    assert sums(folder) == {str(rank): told for rank in range(processes)}


@needs_torchrun
def test_two_torchruns_at_once_are_two_trainings(stack: RunningStack, marks: Path) -> None:
    """Each gang sums only its own ranks."""
    assert TORCHRUN is not None
    ids = [a_gang(stack, marks / name, TRAINS, [TORCHRUN, "train.py"], count=2) for name in ("a", "b")]
    for id_, name in zip(ids, ("a", "b"), strict=True):
        assert stack.wait_for(id_, "Terminated", timeout_s=120)["result"] == "Succeeded"
        assert sums(marks / name) == {"0": "2 3", "1": "2 3"}
