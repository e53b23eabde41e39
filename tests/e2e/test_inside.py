"""Programs in pods call Slipway: through two replicas of the api, on the port for tasks, with their own token.

The ranks are real processes that use `slipway.inside`, as a module and as a command.
"""

import json
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.local_stack import RunningStack, running_stack
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

Json = dict[str, Any]

RANK = """
import json, os, pathlib, subprocess, sys, time
from slipway.inside import client as library

rank, attempt = int(os.environ["SLIPWAY_RANK"]), os.environ["SLIPWAY_ATTEMPT"]
marks = pathlib.Path(os.environ["MARKS"])
doors = os.environ["DOORS"].split(",")
os.environ["SLIPWAY_API"] = doors[rank % len(doors)]
me = library.Client()

def note(name, value):
    fresh = marks / f".{name}.{rank}"
    fresh.write_text(json.dumps(value))
    fresh.replace(marks / f"{name}.{attempt}.{rank}")

def wait_for(name):
    while not (marks / name).exists():
        time.sleep(0.02)

note("token", open(os.environ["SLIPWAY_TOKEN_FILE"]).read())
"""
EXCHANGE = (
    RANK
    + """
note("first", me.allgather({"rank": rank}))
again = [sys.executable, "-m", "slipway.inside", "allgather", "--name", "again"]
if rank == 3:
    lost = subprocess.Popen([*again, '"lost"'])
    wait_for("restart")
    lost.kill()
    lost.wait()
done = subprocess.run([*again, json.dumps(f"rank {rank}")], stdout=subprocess.PIPE, check=True)
note("again", json.loads(done.stdout))
wait_for("go")
note("late", library.Client().allgather("too late", name="default"))
peers = me.rendezvous()
note("peers", [[peer.rank, peer.host] for peer in peers])
"""
)
SAVES = (
    RANK
    + """
me.ready()
note("hears", True)
while not me.preempted() and attempt == "1":
    time.sleep(0.02)
note("asked", me.preemption() and me.preemption()._asdict())
if attempt == "1":
    me.ack()
"""
)
SERVES = """
trap 'echo saving; sleep 0.1; exit 0' USR1
echo starting
sleep 0.2
echo Listening on port 1
while true; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """Two replicas of the api, each with a port for tasks."""
    folder = tmp_path_factory.mktemp("inside") / "data"
    with running_stack(folder, cpus=32, memory="64Gi", replicas={"api": 2}) as running:
        yield running


def body(stack: RunningStack, marks: Path, program: str, ranks: int = 4, **fields: Any) -> Json:
    env = {"MARKS": str(marks), "DOORS": ",".join(stack.stack.doors.values())}
    return {
        "kind": "training",
        "image": "local",
        "command": ["python", "-c", program],
        "env": env,
        "ranks": [{"name": "worker", "count": ranks, "resources": {"cpu": "50m", "memory": "64Mi"}}],
        **fields,
    }


def notes_of(marks: Path, name: str, ranks: int = 4, attempt: int = 1) -> list[Any]:
    """The notes of the ranks, once all have written one."""
    files = [marks / f"{name}.{attempt}.{rank}" for rank in range(ranks)]
    wait_until(lambda: all(file.exists() for file in files), f"{name} of all ranks", timeout_s=60)
    return [json.loads(file.read_text()) for file in files]


def seats(stack: RunningStack, id_: str, name: str) -> int:
    with stack.redis() as client:
        return int(client.hget(f"slipway:gather:{{{id_}}}:1:{name}", "c") or 0)


def test_ranks_exchange_data(stack: RunningStack, marks: Path) -> None:
    """All ranks get all data, in rank order, through both replicas. A rank whose client is killed joins again under
    its name, a late call is answered at once, and then the ranks are ready."""
    id_ = stack.launch(body(stack, marks, EXCHANGE))
    assert notes_of(marks, "first") == [[{"rank": rank} for rank in range(4)]] * 4
    wait_until(lambda: stack.view(id_)["ready"], "ready, because they have met")
    wait_until(lambda: seats(stack, id_, "again") == 4 or (marks / "restart").touch(), "the client of rank 3 is killed")
    assert notes_of(marks, "again") == [[f"rank {rank}" for rank in range(4)]] * 4
    (marks / "go").touch()
    assert notes_of(marks, "late") == [[{"rank": rank} for rank in range(4)]] * 4
    hosts = notes_of(marks, "peers")
    assert [rank for rank, _ in hosts[0]] == [0, 1, 2, 3]
    assert hosts == [hosts[0]] * 4
    assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"


@pytest.mark.parametrize("fault", ["flush", "redis", "api-1", "cluster"])
def test_a_gathering_outlives_the_loss_of_parts(stack: RunningStack, marks: Path, fault: str) -> None:
    """Redis is emptied or restarted, a replica or the API server is killed: waiting ranks retry, and all meet."""
    program = RANK + 'if rank == 0: wait_for("go")\nnote("met", me.allgather(rank, name="met"))\n'
    id_ = stack.launch(body(stack, marks, program))
    wait_until(lambda: seats(stack, id_, "met") == 3, "three of them wait", timeout_s=60)
    match fault:
        case "flush":
            with stack.redis() as client:
                client.flushall()
        case "redis":
            stack.stop_redis()
            stack.start_redis()
        case _:
            stack.kill(fault)
    (marks / "go").touch()
    assert notes_of(marks, "met") == [[0, 1, 2, 3]] * 4
    assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"


def test_missing_participants_are_named(stack: RunningStack, marks: Path) -> None:
    """The command ends with 124 and the message of the api, which names the missing rank."""
    gather = "python -m slipway.inside allgather 1 --timeout 1 2>$MARKS/said; echo $? >$MARKS/code"
    script = f"if [ $SLIPWAY_RANK = 0 ]; then {gather}; fi"
    id_ = stack.launch(body(stack, marks, "", 2) | {"command": ["sh", "-c", script]})
    assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"
    assert (marks / "code").read_text().strip() == "124"
    said = (marks / "said").read_text()
    assert "1 of 2 peers of 'default' have arrived (rank-0 of rank 0); 1 missing: rank 1" in said


def test_an_eviction_is_heard_answered_and_requeued(stack: RunningStack, marks: Path) -> None:
    """Every rank reads the scheduler's stop like a user's. Acknowledged and ended with 0, the attempt is Preempted,
    and the next one follows."""
    id_ = stack.launch(body(stack, marks, SAVES, 2, preemptible=True))
    notes_of(marks, "hears", 2)
    wait_until(lambda: stack.view(id_)["ready"], "ready")
    evict(stack, id_)
    asked = notes_of(marks, "asked", 2)
    assert [(each["reason"], each["requeue"], bool(each["deadline"])) for each in asked] == [
        ("Preempted", True, True)
    ] * 2
    view = stack.wait_for(id_, "Terminated")
    assert (view["attempt"], view["result"]) == (2, "Succeeded")
    story = [(item["attempt"], item["type"], item.get("reason", "")) for item in view["status"]["transitions"]]
    assert (1, "preempting", "Preempted") in story
    assert (2, "restarted", "Preempted") in story


def evict(stack: RunningStack, id_: str) -> None:
    """Write the stop that the scheduler writes when another allocation preempts this one."""
    path = f"/apis/slipway.dev/v1alpha1/namespaces/default/allocations/{id_.rsplit('-', 1)[0]}"

    def written() -> bool:
        found = stack.kubernetes("GET", path)
        found["status"]["stop"] = {"reason": "Preempted", "at": "2026-01-02T03:04:05Z", "requeue": True, "by": "urgent"}
        try:
            return bool(stack.kubernetes("PUT", f"{path}/status", found))
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != 409:
                raise
            return False

    wait_until(written, "the stop is written")


def test_a_program_without_our_client_runs_unchanged(stack: RunningStack) -> None:
    """`run` reports for the program that it is ready, by a line of its log, and passes a preemption on as a signal."""
    command = ["python", "-m", "slipway.inside", "run", "--ready-when", "^Listening on", "--preempt-signal", "USR1"]
    id_ = stack.launch({"kind": "training", "image": "local", "command": [*command, "--", "sh", "-c", SERVES]})
    wait_until(lambda: stack.view(id_)["ready"], "ready", timeout_s=60)
    stack.ask(lambda api: api.post(f"/allocations/{id_}/preempt"))
    view = stack.wait_for(id_, "Terminated")
    assert view["result"] == "Preempted"
    assert "saving" in stack.command("logs", id_).out


def test_a_token_opens_what_is_its_own(stack: RunningStack, marks: Path) -> None:
    """A token is accepted for its own allocation at every port for tasks, for nothing else, and it is in no log."""
    others = marks / "others"
    others.mkdir()
    hold = RANK + 'wait_for("go")\n'
    ids = [stack.launch(body(stack, folder, hold, 1)) for folder in (marks, others)]
    token = notes_of(marks, "token", 1)[0]
    own, other = (f"/api/v1/allocations/{id_}/signals/preemption" for id_ in ids)

    def ask(base: str, path: str, bearer: str = "") -> httpx2.Response:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        return httpx2.get(base + path, headers=headers, verify=NO_TLS, trust_env=False)

    for door in stack.stack.doors.values():
        assert ask(door, own, token).status_code == 200
        assert ask(door, other, token).status_code == 403
        assert ask(door, own).status_code == 401
        assert ask(door, "/api/v1/allocations", token).status_code == 404
    assert ask(stack.url, own, token).status_code == 200
    assert ask(stack.url, other, token).status_code == 403
    assert ask(stack.url, "/api/v1/allocations", token).status_code == 403
    for folder in (marks, others):
        (folder / "go").touch()
    for id_ in ids:
        stack.wait_for(id_, "Terminated")
    written = [file for file in (stack.folder / "logs").rglob("*") if file.is_file()]
    assert written
    secret = token.rpartition(".")[2]
    assert [file.name for file in written if secret in file.read_text(errors="replace")] == []


def test_a_pause_of_the_tasks_port(stack: RunningStack, marks: Path) -> None:
    """While every replica of the api is frozen calls wait, and nothing is lost."""
    program = RANK + 'note("there", 1)\nwait_for("go")\nme.progress(0.5)\nme.ready()\nnote("met", me.allgather(rank))\n'
    id_ = stack.launch(body(stack, marks, program, 2))
    notes_of(marks, "there", 2)
    for name in ("api", "api-1"):
        stack.stack.kill(name, signal.SIGSTOP)
    (marks / "go").touch()
    for name in ("api", "api-1"):
        stack.stack.kill(name, signal.SIGCONT)
    assert notes_of(marks, "met", 2) == [[0, 1]] * 2
    view = stack.wait_for(id_, "Terminated")
    assert (view["result"], view["spec"]["signals"]["progress"]) == ("Succeeded", 0.5)
