"""Timeouts, daemons and elastic gangs on a real API server; deadlines survive the leader that would enforce them."""

from slipway.model.times import parse_time
from slipway.runtime.clock import SystemClock
from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

SPARE, SILENT, HOSTNAME = "spare-node", "silent-node", "kubernetes.io/hostname"


def stopped_at(view: Json) -> float:
    return parse_time(view["status"]["stop"]["at"])


def exit_all(system: System, id_: str) -> None:
    for pod in system.pods(id_):
        if pod["status"]["phase"] == "Running":
            system.nodes.exit(pod["metadata"]["uid"], 0)


def test_an_idle_allocation_ends(system: System) -> None:
    """An unused allocation ends one timeout after its last use; the leader is killed before that, and the stored
    deadline stays."""
    used, unused = (system.launch(a_body(kind, idleTimeout="6s")) for kind in ("shell", "command"))
    due = {id_: parse_time(system.wait_for(id_, "Running")["status"]["deadlines"]["idle"]) for id_ in (used, unused)}
    system.installation.kill("scheduler")
    wait_until(lambda: SystemClock().now() > due[used] - 2, "shortly before it is due")
    system.post(f"/allocations/{used}/activity")
    for id_ in (unused, used):
        view = system.ended(id_, "TimedOut", timeout_s=60)
        assert view["reason"] == "IdleTimeout"
        assert stopped_at(view) >= due[id_] + (3 if id_ == used else 0)


def test_a_ready_workload_is_notified_when_its_limit_is_reached(system: System) -> None:
    """A ready allocation is asked to stop first (preempting); when it then ends by itself, its result is TimedOut
    all the same."""
    id_ = system.launch(a_body("training", 2, preemptible=True, maxRuntime="4s", maxRestarts=2))
    system.wait_for(id_, "Running")
    system.post(f"/allocations/{id_}/ready", {"value": True})
    system.wait_until(id_, lambda view: "preempting" in system.story(id_), "told that its time is up")
    heard = system.get(f"/allocations/{id_}/signals/preemption")
    assert (heard["preempt"], heard["reason"]) == (True, "MaxRuntime")
    system.post(f"/allocations/{id_}/signals/preemption/ack", {"rank": 0})
    exit_all(system, id_)
    view = system.ended(id_, "TimedOut")
    assert (view["attempt"], [run.code for run in system.runs(id_)]) == (1, [0, 0])


def test_terminate(system: System) -> None:
    """A ready allocation is asked to stop, one that is not ready is killed; a signal before the start ends it
    cleanly."""
    gentle, hard = (system.launch(a_body("training", 1, preemptible=True)) for _ in range(2))
    waits = system.launch(a_body("training", 1, preemptible=True, hold=True))
    for id_ in (gentle, hard):
        system.wait_for(id_, "Running")
    system.post(f"/allocations/{gentle}/ready", {"value": True})
    system.wait_until(gentle, lambda view: view["ready"], "ready")
    for id_ in (gentle, hard, waits):
        system.post(f"/allocations/{id_}/terminate", {"reason": "maintenance"})
    system.wait_until(gentle, lambda view: "preempting" in system.story(gentle), "told")
    system.post(f"/allocations/{gentle}/signals/preemption/ack", {"rank": 0})
    exit_all(system, gentle)
    system.ended(gentle, "Preempted")
    system.ended(hard, "Canceled")
    system.ended(waits, "Canceled")
    assert ([run.code for run in system.runs(gentle)], system.runs(waits)) == ([0], [])


def test_daemons_go_with_the_last_worker(system: System) -> None:
    """A rank that is marked as a daemon while it runs is killed when the other ranks have ended, which is no
    failure."""
    id_ = system.launch(a_body("training", 2))
    system.wait_for(id_, "Running")
    system.post(f"/allocations/{id_}/ranks/1/daemon")
    worker = next(pod for pod in system.pods(id_) if pod["metadata"]["name"].endswith("-0"))
    system.nodes.exit(worker["metadata"]["uid"], 0)
    system.ended(id_, "Succeeded")
    assert sorted(run.code or 0 for run in system.runs(id_)) == [0, 143]


def test_an_elastic_gang_loses_a_node_and_goes_on(system: System) -> None:
    """A gang at its minimum runs on: the pod of the lost rank is deleted although no kubelet confirms its end."""
    system.nodes.add(SPARE)
    elsewhere = {"key": HOSTNAME, "operator": "NotIn", "values": [SPARE]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}
    small = {"cpu": "100m", "memory": "64Mi"}
    roles: list[Json] = [
        {"name": "worker", "count": 2, "resources": small, "minAvailable": 2},
        {"name": "extra", "count": 1, "resources": small, "minAvailable": 0, "nodeSelector": {HOSTNAME: SPARE}},
    ]
    roles[0]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    id_ = system.launch({**a_body("training", 3, minAvailable=2), "ranks": roles})
    view = system.wait_for(id_, "Running")
    assert [rank["node"] == SPARE for rank in view["status"]["ranks"]] == [False, False, True]
    system.nodes.remove(SPARE)
    system.wait_until(id_, lambda now: now["status"]["ranks"][2].get("reason") == "NodeLost", "without the lost rank")
    wait_until(lambda: len(system.pods(id_)) == 2, "the lost pod is cleared away")
    assert (system.view(id_)["phase"], system.view(id_)["attempt"]) == ("Running", 1)
    exit_all(system, id_)
    system.ended(id_, "Succeeded")


def test_an_administrator_gives_up_work_on_an_unresponsive_node(system: System) -> None:
    """The node of a silent machine stays: a kill waits for it until an administrator states that the machine is off."""
    system.nodes.add(SILENT)
    role: Json = {"name": "worker", "resources": {"cpu": "100m", "memory": "64Mi"}, "nodeSelector": {HOSTNAME: SILENT}}
    id_ = system.launch({**a_body("training"), "ranks": [role]})
    system.wait_for(id_, "Running")
    refused = system.cli("forget", id_)
    assert (refused.code != 0, "answers" in refused.err) == (True, True), refused
    system.nodes.lose(SILENT)
    system.post(f"/allocations/{id_}/kill")
    wait_until(lambda: not _is_ready(system, SILENT), "Kubernetes has not heard of the node", timeout_s=120)
    assert system.view(id_)["phase"] == "Terminating"
    given_up = system.cli("forget", id_)
    assert (given_up.code, SILENT in given_up.out) == (0, True), given_up
    system.ended(id_, "Canceled")
    system.nothing_left(system.object(id_)["metadata"]["uid"])
    system.nodes.remove(SILENT)


def _is_ready(system: System, node: str) -> bool:
    conditions = system.operator.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
