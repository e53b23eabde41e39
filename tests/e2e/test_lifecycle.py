"""The life of an allocation on real processes: timeouts, pauses, daemons, elastic gangs, restarts."""

import urllib.request
from collections.abc import Mapping
from typing import Any

from slipway.model.times import parse_time
from slipway.runtime.clock import SystemClock
from tests.support.local_stack import ALLOCATION, RunningStack
from tests.support.names import fresh
from tests.support.wait import DEADLINE_S, wait_until

Json = dict[str, Any]

SAVES = """
import json, os, sys, time, urllib.request
root = os.environ["SLIPWAY_API"].rstrip("/") + "/api/v1/allocations/" + os.environ["SLIPWAY_ALLOCATION_ID"]
def call(path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json"}
    try:
        headers["Authorization"] = "Bearer " + open(os.environ["SLIPWAY_TOKEN_FILE"]).read()
    except (KeyError, OSError):
        pass
    with urllib.request.urlopen(urllib.request.Request(root + path, data=data, headers=headers), timeout=60) as answer:
        return json.load(answer)
if os.environ["SLIPWAY_ATTEMPT"] == "1":
    call("/ready", {})
    while not call("/signals/preemption?timeout_seconds=20")["preempt"]:
        pass
    call("/signals/preemption/ack", {"rank": int(os.environ["SLIPWAY_RANK"])})
    print("saved", flush=True)
"""
"""A rank that is ready, waits for a stop request, acknowledges it, and succeeds; a later attempt ends at once."""
STAYS = ["python", "-c", "import time; time.sleep(600)"]
ENDS = ["python", "-c", "print('done')"]
SMALL: Json = {"cpu": "50m", "memory": "64Mi"}


def body(command: list[str], **fields: Any) -> Json:
    """A launch whose ranks stop at once on SIGTERM."""
    container = {"name": "main", "image": "local", "command": command}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return {"kind": "training", "template": template, "ranks": [{"resources": SMALL}], **fields}


def stopped_at(view: Mapping[str, Any]) -> float:
    return parse_time(view["status"]["stop"]["at"])


def event_types(view: Mapping[str, Any]) -> list[str]:
    return [entry["type"] for entry in view["status"]["transitions"]]


def test_every_kind_ends_when_it_is_idle(stack: RunningStack) -> None:
    """An allocation ends one timeout after its last use, reported or through the proxy, though every process is
    killed meanwhile."""
    kinds = ("notebook", "shell", "command", "tensorboard", "training")
    ids: dict[str, str] = {}
    for kind in kinds:
        own = body(STAYS, kind=kind, idleTimeout="9s")
        ids[kind] = stack.launch(own)
    running = {kind: stack.wait_for(id_, "Running") for kind, id_ in ids.items()}
    due = {kind: parse_time(view["status"]["deadlines"]["idle"]) for kind, view in running.items()}
    for kind, view in running.items():
        assert round(due[kind] - parse_time(view["startedAt"])) == 9
    used = wait_until(lambda: _near(due["shell"], 3.0), "shortly before it is due", timeout_s=30)
    assert used
    stack.ask(lambda api: api.post(f"/allocations/{ids['shell']}/activity"))
    for name in ("scheduler", "watcher", "podworker"):
        stack.kill(name)
    for kind, id_ in ids.items():
        view = stack.wait_for(id_, "Terminated", timeout_s=90)
        assert (view["result"], view["reason"]) == ("TimedOut", "IdleTimeout"), kind
        assert stopped_at(view) >= due[kind] + (5.0 if kind == "shell" else 0.0), kind


def test_the_proxy_keeps_it_alive(stack: RunningStack) -> None:
    """Traffic through the proxy counts as use; `explain` shows when it would end."""
    program = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=int(__import__('os').environ['PORT']))"
    port = 23177
    own = body(["python", "-c", program], kind="command", idleTimeout="8s", env={"PORT": str(port)})
    id_ = stack.launch({**own, "ports": [{"name": "http", "port": port}]})
    view = stack.wait_for(id_, "Running")
    first = parse_time(view["status"]["deadlines"]["idle"])
    wait_until(lambda: _near(first, 3.0) and _visited(stack, id_), "a visit shortly before it is due", timeout_s=60)

    def put_off() -> bool:
        (deadline,) = stack.ask(lambda api: api.get(f"/allocations/{id_}/explain"))["deadlines"]
        return deadline["name"] == "idle" and parse_time(deadline["at"]) > first + 1

    wait_until(put_off, "explain tells of the use")
    said = stack.command("explain", id_)
    assert (said.code, "idle: ends at" in said.out, "last used" in said.out) == (0, True, True)
    ended = stack.wait_for(id_, "Terminated", timeout_s=60)
    assert (ended["reason"], stopped_at(ended) > first + 1) == ("IdleTimeout", True)


def test_an_administrator_lets_it_run_beyond_its_queue(stack: RunningStack) -> None:
    """A running allocation continues beyond its queue's limit, and `explain` shows until when."""
    short = fresh("short")
    queue = {"metadata": {"name": short}, "spec": {"pool": "default", "maxRuntime": "8s"}}
    stack.kubernetes("POST", "/apis/slipway.dev/v1alpha1/queues", queue)
    id_ = stack.launch(body(STAYS, queue=short))
    due = parse_time(stack.wait_for(id_, "Running")["status"]["deadlines"]["maxRuntime"])
    changed = stack.command("limit", id_, "--max-runtime", "10m")
    assert changed.code == 0, changed.err
    wait_until(lambda: _near(due, -3.0), "the time of its queue is over", timeout_s=30)
    assert stack.view(id_)["phase"] == "Running"
    (deadline,) = stack.ask(lambda api: api.get(f"/allocations/{id_}/explain"))["deadlines"]
    assert round(parse_time(deadline["at"]) - due) == 600 - 8
    assert "maxRuntime of 10m" in deadline["detail"]
    assert stack.command("kill", id_).code == 0


def test_a_workload_that_can_checkpoint_is_notified_at_its_limit(stack: RunningStack) -> None:
    """A preemptible, ready allocation is asked to stop (preempting), acknowledges and ends by itself, as TimedOut."""
    id_ = stack.launch(body(["python", "-c", SAVES], preemptible=True, maxRuntime="5s", maxRestarts=3))
    view = stack.wait_for(id_, "Terminated", timeout_s=60)
    assert (view["result"], view["reason"], view["attempt"]) == ("TimedOut", "MaxRuntime", 1)
    assert ("preempting" in event_types(view), view["status"]["ranks"][0]["exitCode"]) == (True, 0)


def test_pause_and_resume(stack: RunningStack) -> None:
    """It saves its work, waits as the next attempt while it is held, and then continues."""
    id_ = stack.launch(body(["python", "-c", SAVES], preemptible=True))
    wait_until(lambda: stack.view(id_)["ready"], "it is ready")
    paused = stack.command("pause", id_)
    assert (paused.code, "was asked to save its work" in paused.out) == (0, True)
    wait_until(lambda: (stack.view(id_)["phase"], stack.view(id_)["attempt"]) == ("Pending", 2), "it is paused")
    view = stack.view(id_)
    assert (view["hold"], view["status"].get("restarts", 0)) == (True, 0)
    assert stack.command("resume", id_).code == 0
    assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"


def test_terminate(stack: RunningStack) -> None:
    """A ready allocation saves its work; another one is killed."""
    saves, stays = (stack.launch(body(["python", "-c", SAVES], preemptible=True)), stack.launch(body(STAYS)))
    wait_until(lambda: stack.view(saves)["ready"], "it is ready")
    stack.wait_for(stays, "Running")
    done = stack.command("terminate", saves, stays)
    assert (done.code, done.out.count("save its work"), done.out.count("is being ended")) == (0, 1, 1), done.out
    gentle, killed = stack.wait_for(saves, "Terminated"), stack.wait_for(stays, "Terminated")
    assert (gentle["result"], gentle["status"]["ranks"][0]["exitCode"]) == ("Preempted", 0)
    assert (killed["result"], killed["reason"]) == ("Canceled", "Killed")


def test_daemons_go_with_the_last_worker(stack: RunningStack) -> None:
    """A role that is declared a daemon never ends by itself, and does not fail the gang."""
    ranks = [
        {"name": "launcher", "resources": SMALL, "template": _template(ENDS)},
        {"name": "server", "count": 2, "resources": SMALL, "template": _template(STAYS), "daemon": True},
    ]
    id_ = stack.launch({"kind": "training", "ranks": ranks})
    view = stack.wait_for(id_, "Terminated")
    assert (view["result"], view["status"]["ranks"][0]["exitCode"]) == ("Succeeded", 0)


def test_an_elastic_gang_loses_a_rank_and_goes_on(stack: RunningStack) -> None:
    """Two of three ranks are enough; a second loss ends the whole gang, and it restarts whole."""
    ranks = [{"name": "worker", "count": 3, "resources": SMALL}]
    id_ = stack.launch({**body(STAYS, minAvailable=2), "ranks": ranks})
    stack.wait_for(id_, "Running")
    _delete_pod(stack, id_, rank=2)
    wait_until(lambda: stack.view(id_)["status"]["ranks"][2].get("reason") == "PodDeleted", "the loss is on record")
    assert (stack.view(id_)["phase"], stack.view(id_)["attempt"]) == ("Running", 1)
    _delete_pod(stack, id_, rank=0)
    wait_until(lambda: (stack.view(id_)["phase"], stack.view(id_)["attempt"]) == ("Running", 2), "it runs again")
    view = stack.view(id_)
    assert view["status"].get("restarts", 0) == 0
    assert [rank["phase"] for rank in view["status"]["ranks"]] == ["Running"] * 3
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_a_restart_of_all_services_writes_nothing(stack: RunningStack) -> None:
    """No pod, ConfigMap or allocation has another version afterwards, though a new leader has taken over."""
    id_ = stack.launch(body(STAYS, idleTimeout="1h", maxRuntime="2h"))
    stack.wait_for(id_, "Running")
    wait_until(lambda: _versions(stack) == _versions(stack), "it is at rest")
    before, epoch = _versions(stack), _epoch(stack)
    pids = {name: stack.kill(name) for name in ("api", "scheduler", "podworker", "watcher")}
    for name, pid in pids.items():
        wait_until(lambda name=name, pid=pid: stack.pid(name) not in (0, pid), f"{name} is started again")
    wait_until(lambda: _epoch(stack) > epoch, "another leader has taken over", timeout_s=60)
    assert stack.view(id_)["phase"] == "Running"
    after = _versions(stack)
    assert {name: version for name, version in after.items() if before.get(name) != version} == {}
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def _near(due: float, seconds: float) -> bool:
    return SystemClock().now() >= due - seconds


def _visited(stack: RunningStack, id_: str) -> bool:
    asked = urllib.request.Request(f"{stack.url}/proxy/{id_}/", headers=stack.headers)
    try:
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
            return answer.status == 200
    except OSError:
        return False


def _template(command: list[str]) -> Json:
    container = {"name": "main", "image": "local", "command": command}
    return {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}


def _delete_pod(stack: RunningStack, id_: str, *, rank: int) -> None:
    (pod,) = [each for each in stack.pods(id_) if each["rank"] == rank]
    stack.kubernetes("DELETE", f"/api/v1/namespaces/default/pods/{pod['name']}")


def _versions(stack: RunningStack) -> dict[str, str]:
    """{kind/name: resourceVersion} of all objects that a service might write"""
    found: dict[str, str] = {}
    for path in ("/api/v1/pods", "/api/v1/configmaps", ALLOCATION):
        for item in stack.kubernetes("GET", path)["items"]:
            found[f"{path}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return found


def _epoch(stack: RunningStack) -> int:
    pool = stack.kubernetes("GET", "/apis/slipway.dev/v1alpha1/resourcepools/default")
    return int(pool["status"]["epoch"])
