"""Running allocations are preempted: real processes save their work, release their GPUs, and continue later."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_stack import RunningStack, running_stack
from tests.support.wait import wait_until

Json = dict[str, Any]
GPUS = 4
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
POOL = "/apis/slipway.dev/v1alpha1/resourcepools/default"

SAVES = """
import os, pathlib, time
from slipway.inside import client as library

marks, name = pathlib.Path(os.environ["MARKS"]), os.environ["NAME"]
rank, attempt = os.environ["SLIPWAY_RANK"], os.environ["SLIPWAY_ATTEMPT"]
checkpoint = marks / f"{name}.checkpoint.{rank}"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0

def keep(path):
    fresh = marks / f".{path.name}"
    fresh.write_text(str(step))
    fresh.replace(path)

keep(marks / f"{name}.began.{attempt}.{rank}")
me = library.Client()
me.ready()
until = time.monotonic() + 120
while not (marks / f"{name}.end").exists() and time.monotonic() < until:
    step += 1
    time.sleep(0.02)
    if me.preempted() and not (marks / f"{name}.busy").exists():
        keep(checkpoint)
        me.progress(checkpoint=True)
        me.ack()
        break
"""
"""Counts on from its checkpoint; on request it saves its count and ends, but not while it is `busy`."""

TRAINS = """
import json, os, pathlib, socket, time
from slipway.inside import client as library

STEPS, HALF = 200, 100
rank, size, attempt = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["SLIPWAY_ATTEMPT"]
marks, folder = pathlib.Path(os.environ["MARKS"]), pathlib.Path(os.environ["SLIPWAY_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
saved = folder / "model.json"
step, weight = json.loads(saved.read_text()) if saved.exists() else (0, 0)
(marks / f"train.began.{attempt}.{rank}").write_text(str(step))
me = library.Client()

def may_go_on():
    while step >= HALF and not (marks / "train.go").exists() and not me.preempted():
        time.sleep(0.02)
    return not me.preempted()

place, peers = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), []
if rank == 0:
    with socket.create_server(("", place[1])) as store:
        peers = [store.accept()[0].makefile("rw") for _ in range(size - 1)]
else:
    while not peers:
        try:
            peers = [socket.create_connection(place, 60).makefile("rw")]
        except OSError:
            time.sleep(0.05)

def told(peer, value):
    peer.write(f"{value}\\n")
    peer.flush()

def summed(gradient):
    if rank:
        told(peers[0], gradient)
        return int(peers[0].readline())
    total = gradient + sum(int(peer.readline()) for peer in peers)
    total = total if may_go_on() else 0
    for peer in peers:
        told(peer, total)
    return total

me.ready()
while step < STEPS and (total := summed(rank + 1)):
    step, weight = step + 1, weight + total
if step < STEPS:
    while not me.preempted():
        time.sleep(0.02)
    if rank == 0:
        fresh = folder / ".model.json"
        fresh.write_text(json.dumps([step, weight]))
        fresh.replace(saved)
        me.progress(checkpoint=True)
    me.ack()
else:
    (marks / f"train.weight.{rank}").write_text(str(weight))
"""
"""Sums a number over all ranks in each step, like PyTorch's all-reduce, at the store that PyTorch's variables name.
After half of its steps it waits for a file, or to be preempted: rank 0 tells the others when to stop, and saves."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """One node with a few GPUs, and queues that preempt and reclaim."""
    folder = tmp_path_factory.mktemp("preemption") / "data"
    with running_stack(folder, nodes=1, gpus=GPUS, cpus=32, memory="64Gi") as running:
        queue(running, "shared", {"preemption": {"withinQueue": "LowerPriority"}})
        half = {"nominal": {"nvidia.com/gpu": str(GPUS // 2)}, "preemption": {"reclaim": "Any"}}
        queue(running, "mine", half)
        queue(running, "theirs", half)
        yield running


@pytest.fixture(autouse=True)
def _nothing_stays(stack: RunningStack) -> Generator[None]:
    """End every training, so that a failed test leaves no GPU and no name in use."""
    yield
    stack.clear()


def queue(stack: RunningStack, name: str, spec: Json) -> None:
    body = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"pool": "default", **spec},
    }
    stack.kubernetes("POST", "/apis/slipway.dev/v1alpha1/queues", body)


def launch(stack: RunningStack, marks: Path, name: str, ranks: int = GPUS, **fields: Any) -> str:
    """Launch a training that saves its work on request; each rank has a GPU."""
    asks = {"cpu": "50m", "memory": "64Mi", "nvidia.com/gpu": 1}
    return stack.launch(
        {
            "name": name,
            "kind": "training",
            "image": "local",
            "queue": "shared",
            "preemptible": True,
            "command": ["python", "-c", SAVES],
            "env": {"MARKS": str(marks), "NAME": name},
            "ranks": [{"name": "worker", "count": ranks, "resources": asks}],
            **fields,
        }
    )


def is_ready(stack: RunningStack, id_: str, attempt: int = 1) -> bool:
    view = stack.view(id_)
    return bool(view["ready"]) and view["attempt"] == attempt


def count(marks: Path, what: str) -> int:
    """The steps of rank 0 when it wrote the file; it acts for all ranks, so this may be later than `ready`."""
    written = marks / f"{what}.0"
    wait_until(written.exists, f"rank 0 writes {what}")
    return int(written.read_text())


def finish(stack: RunningStack, marks: Path, name: str, id_: str) -> Json:
    (marks / f"{name}.end").touch()
    ended = stack.wait_for(id_, "Terminated")
    assert ended["result"] == "Succeeded", ended
    return ended


def decisions(stack: RunningStack) -> list[tuple[str, str]]:
    """(kind, allocation) of the entries of the ledger."""
    status = stack.kubernetes("GET", POOL)["status"]
    return [(item.get("kind", "admit"), item["allocation"]) for item in status.get("decisions", [])]


def gpus_in_use(stack: RunningStack, *ids: str) -> int:
    pods = [pod for id_ in ids for pod in stack.pods(id_)]
    return sum(pod["phase"] in ("Pending", "Running") and bool(pod.get("node")) for pod in pods)


def test_urgent_work_has_the_gpus_of_a_training_that_saves_its_work_and_goes_on_later(
    stack: RunningStack, marks: Path
) -> None:
    """The training saves a checkpoint on the signal, within the grace; its next attempt begins where the first one
    stopped."""
    low = launch(stack, marks, "low", priority=10, preemptionGrace="60s")
    wait_until(lambda: is_ready(stack, low), "the training is ready")
    high = launch(stack, marks, "high", priority=90)
    assert stack.wait_for(high, "Running")["phase"] == "Running"
    saved = count(marks, "low.checkpoint")
    assert saved > 0
    assert stack.view(low)["attempt"] == 2
    assert gpus_in_use(stack, low, high) == GPUS
    said = stack.command("describe", low).out
    assert "for default/high" in said
    finish(stack, marks, "high", high)
    wait_until(lambda: is_ready(stack, low, attempt=2), "the training goes on", timeout_s=60)
    assert count(marks, "low.began.2") == saved
    ended = finish(stack, marks, "low", low)
    assert ended["status"].get("restarts", 0) == 0
    assert [item["by"] for item in ended["status"]["preemptions"]] == ["default/high"]


def test_a_training_of_four_ranks_comes_back_from_its_checkpoint(stack: RunningStack, marks: Path) -> None:
    """It is preempted half-way, continues from its checkpoint on a volume, and ends with the weights of an
    undisturbed run."""
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}}
    asks = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    stack.kubernetes("POST", CLAIMS, {**claim, "spec": asks})
    command = ["python", "-c", TRAINS]
    train = launch(
        stack, marks, "train", priority=10, preemptionGrace="60s", command=command, checkpoints="models/train"
    )
    wait_until(lambda: is_ready(stack, train), "the training is ready")
    high = launch(stack, marks, "above", priority=90)
    assert stack.wait_for(high, "Running")["phase"] == "Running"
    (marks / "train.go").touch()
    finish(stack, marks, "above", high)
    ended = stack.wait_for(train, "Terminated", timeout_s=120)
    assert (ended["result"], ended["attempt"]) == ("Succeeded", 2), ended
    began = [[int((marks / f"train.began.{attempt}.{rank}").read_text()) for rank in range(4)] for attempt in (1, 2)]
    assert began[0] == [0] * 4
    assert len(set(began[1])) == 1
    assert began[1][0] > 0
    assert [(marks / f"train.weight.{rank}").read_text() for rank in range(4)] == [str(200 * (1 + 2 + 3 + 4))] * 4


def test_a_queue_takes_back_what_it_deserves(stack: RunningStack, marks: Path) -> None:
    """Another queue has borrowed its half: the allocation that started last is evicted, the others stay."""
    first, second = (launch(stack, marks, name, GPUS // 2, queue="theirs") for name in ("first", "second"))
    for id_ in (first, second):
        wait_until(lambda id_=id_: is_ready(stack, id_), "both run")
    owner = launch(stack, marks, "owner", GPUS // 2, queue="mine")
    assert stack.wait_for(owner, "Running")["phase"] == "Running"
    attempts = sorted(stack.view(id_)["attempt"] for id_ in (first, second))
    assert attempts == [1, 2]
    finish(stack, marks, "owner", owner)
    for name, id_ in (("first", first), ("second", second)):
        finish(stack, marks, name, id_)


def test_a_leader_that_is_killed_between_the_eviction_and_the_admission(stack: RunningStack, marks: Path) -> None:
    """The next leader keeps the place reserved, also against another allocation that would fit."""
    low = launch(stack, marks, "slow", priority=10, preemptionGrace="60s")
    wait_until(lambda: is_ready(stack, low), "the training is ready")
    (marks / "slow.busy").touch()
    high = launch(stack, marks, "next", priority=90)
    wait_until(lambda: ("nominate", "default/next") in decisions(stack), "its place is held")
    wait_until(lambda: "preemption" in stack.view(low)["status"].get("deadlines", {}), "the training is told")
    killed = stack.kill("scheduler")
    wait_until(lambda: stack.pid("scheduler") not in (0, killed), "the scheduler is started again")
    thief = launch(stack, marks, "thief", 1, priority=20)
    wait_until(lambda: stack.view(thief)["status"].get("conditions"), "a new leader says why it waits", timeout_s=60)
    assert ("nominate", "default/next") in decisions(stack)
    why = stack.command("explain", high).out
    assert "MakingRoom" in why
    assert "default/slow" in why
    (marks / "slow.busy").unlink()
    assert stack.wait_for(high, "Running")["phase"] == "Running"
    assert stack.view(thief)["phase"] == "Pending"
    finish(stack, marks, "next", high)
    for name, id_ in (("thief", thief), ("slow", low)):
        finish(stack, marks, name, id_)


def test_an_elastic_gang_gives_up_surplus_ranks_and_goes_on(stack: RunningStack, marks: Path) -> None:
    """The attempt continues with fewer ranks: only the pods of surplus ranks end, and another allocation gets their
    GPUs."""
    gang = launch(stack, marks, "elastic", priority=10, minAvailable=1)
    wait_until(lambda: is_ready(stack, gang), "the gang runs")
    before = {pod["rank"]: pod["uid"] for pod in stack.pods(gang)}
    high = launch(stack, marks, "half", GPUS // 2, priority=90)
    assert stack.wait_for(high, "Running")["phase"] == "Running"
    view = stack.view(gang)
    assert (view["phase"], view["attempt"]) == ("Running", 1)
    left = {pod["rank"]: pod["uid"] for pod in stack.pods(gang) if pod["phase"] == "Running"}
    assert len(left) == GPUS // 2
    assert left.items() <= before.items()
    reasons = [rank.get("reason", "") for rank in view["status"]["ranks"]]
    assert reasons.count("Preempted") == GPUS // 2
    finish(stack, marks, "half", high)
    finish(stack, marks, "elastic", gang)


def test_an_elastic_gang_grows_when_there_is_room(stack: RunningStack, marks: Path) -> None:
    """It starts with one of three ranks; when the allocation that held the rest has ended, the others start, in the
    same attempt."""
    holder = launch(stack, marks, "holder", GPUS - 1)
    assert stack.wait_for(holder, "Running")["phase"] == "Running"
    gang = launch(stack, marks, "grows", 3, minAvailable=1)
    wait_until(lambda: is_ready(stack, gang), "the gang runs with one rank")
    first = {pod["rank"]: pod["uid"] for pod in stack.pods(gang)}
    assert len(first) == 1
    assert "1 of 3 ranks; grows when 2 more GPUs are free" in stack.command("explain", gang).out
    finish(stack, marks, "holder", holder)
    wait_until(lambda: (marks / "grows.began.1.2").exists(), "the third rank runs")
    wait_until(lambda: (marks / "grows.began.1.1").exists(), "the second rank runs")
    now = {pod["rank"]: pod["uid"] for pod in stack.pods(gang) if pod["phase"] == "Running"}
    assert len(now) == 3
    assert first.items() <= now.items()
    wait_until(lambda: stack.view(gang)["status"]["growth"].get("told"), "the growth is told")
    view = stack.view(gang)
    assert (view["phase"], view["attempt"], view["status"]["slots"]) == ("Running", 1, 3)
    assert "grows when" not in stack.command("explain", gang).out
    finish(stack, marks, "grows", gang)
