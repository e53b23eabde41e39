"""Work of the REST API and of single runs in the cluster around launches: templates, views, retention."""

import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2

from slipway.model.times import parse_time
from tests.conformance.system.operator import GROUP, Json, must
from tests.conformance.system.system import System, a_body
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until


def test_templates(system: System) -> None:
    """Templates are created, read, listed, changed, launched from and deleted."""
    container = a_body()["template"]
    system.post("/templates", {"name": "small", "body": {"kind": "command", "template": container}})
    assert system.get("/templates/small")["name"] == "small"
    changed = {"name": "small", "body": {"kind": "command", "template": a_body(script={"runsS": 0.1})["template"]}}
    system.ask(lambda api: api.call("PUT", "/templates/small", body=changed))
    assert [item["name"] for item in system.get("/templates")["items"]] == ["small"]
    id_ = system.launch({"template": "small", "kind": "command"})
    system.ended(id_, "Succeeded")
    system.ask(lambda api: api.call("DELETE", "/templates/small"))
    assert system.get("/templates")["items"] == []


def test_views(system: System) -> None:
    """The api shows queues, pools, nodes, workspaces and jobs with the rights of its account."""
    job = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Job", "metadata": {"name": "sweep"}, "spec": {"maxSlots": 8}}
    system.operator.create(f"{GROUP}/namespaces/default/jobs", {**job, "metadata": {"name": "sweep"}})
    held = system.launch(a_body(hold=True, job="sweep"))
    assert "default" in [item["name"] for item in system.get("/queues")["items"]]
    assert system.get("/queues/default")["name"] == "default"
    assert "default" in [item["name"] for item in system.get("/pools")["items"]]
    names = {item["name"] for item in system.get("/nodes")["items"]}
    assert names >= {item["metadata"]["name"] for item in system.operator.items("/api/v1/nodes")}
    assert "default" in str(system.get("/workspaces"))
    assert "sweep" in [item["name"] for item in system.get("/jobs")["items"]]
    wait_until(lambda: system.get(f"/allocations/{held}/explain")["code"] == "Held", "the scheduler's explanation")
    for path in ("", "/timeline", "/trace", "/pods", "/events"):
        assert system.get(f"/allocations/{held}{path}") is not None
    assert must(system.cli("nodes"))
    system.operator.delete(f"{GROUP}/namespaces/default/jobs/sweep")


def test_names_are_completed(system: System) -> None:
    """A shortened id is accepted, which requires a list of all; the error for an unknown pool names the existing
    ones."""
    id_ = system.launch(a_body(hold=True))
    assert system.view(id_[:-4])["id"] == id_
    bad = system.cli("run", "--pool", "nowhere", "--image", "example.org/work:1", "--", "work")
    assert (bad.code, "default" in bad.err) == (2, True)
    bad = system.cli("run", "--template", "nowhere", "--", "work")
    assert (bad.code, "nowhere" in bad.err) == (2, True)
    bad = system.cli("run", "-n", "nowhere", "--image", "example.org/work:1", "--", "work")
    assert (bad.code, "default" in bad.err) == (2, True)


def test_logs_of_a_pod_that_redis_does_not_have(system: System) -> None:
    """Without the stream the api reads the log of the pod itself."""
    id_ = system.launch(a_body(script={"logs": ["kept by the kubelet"]}))
    system.wait_for(id_, "Running")
    wait_until(lambda: "kept" in system.cli("logs", id_).out, "the first line")
    system.stop_redis()
    try:
        wait_until(lambda: system.cli("logs", id_).out == "kept by the kubelet\n", "read from the pod")
    finally:
        system.start_redis()


def test_where_the_ranks_are(system: System) -> None:
    """A rendezvous returns every rank's address."""
    id_ = system.launch(a_body("training", 2))
    system.wait_for(id_, "Running")
    found: Json = system.ask(lambda api: api.get(f"/allocations/{id_}/rendezvous", {"timeout_seconds": 20}))
    pods = {pod["status"]["podIP"] for pod in system.pods(id_)}
    assert all(ip in str(found) for ip in pods)


def test_allocations_that_ended_long_ago_are_deleted(system: System) -> None:
    """The watcher deletes ended allocations beyond their retention, and nothing else."""
    old = system.launch(a_body(script={"runsS": 0.1}))
    system.ended(old, "Succeeded")
    live = system.launch(a_body())
    system.wait_for(live, "Running")
    system.nothing_left(system.object(old)["metadata"]["uid"])
    ended_at = parse_time(str(system.view(old)["endedAt"]))
    # The times of ends have whole seconds.
    wait_until(lambda: datetime.now(UTC).timestamp() > ended_at + 1.5, "its end is older than the retention")
    must(system.installation.run("watcher", "--once", more={"SLIPWAY_RETENTION_S": "0.5"}))
    wait_until(lambda: system.is_gone(old), "the old one is forgotten")
    assert system.view(live)["phase"] == "Running"


def test_an_interrupted_launch_is_adopted(system: System) -> None:
    """A worker dies between its creates: the next worker finds the created objects, compares them, and adopts them."""
    for at_s in (0.03, 0.06, 0.1, 0.15):
        id_ = system.launch(a_body("training", 3))
        system.wait_for(id_, "Assigned", "Pulling", "Starting", "Running")
        time.sleep(at_s)
        system.installation.kill("podworker")
        system.wait_for(id_, "Running", timeout_s=60)
        system.started_once(id_, 3)
        system.post(f"/allocations/{id_}/kill")
    assert system.nodes.doubles() == []


def test_a_large_gang_with_many_attempts(system: System) -> None:
    """A worker lists objects when it has many to look up: ten ranks that fail once and restart."""
    id_ = system.launch(a_body("training", 10, maxRestarts=1))
    system.wait_for(id_, "Running")
    system.nodes.exit(system.pods(id_)[3]["metadata"]["uid"], 1)
    system.wait_until(id_, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "running again")
    system.started_once(id_, 10, attempt=2)
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")


def test_the_proxy(system: System) -> None:
    """A request below /proxy reaches the pod of rank 0, at the address that the api reads from the pod's status."""
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        id_ = system.launch(a_body("notebook", ports=[{"name": "http", "port": server.server_port}]))
        system.wait_for(id_, "Running")
        # No process listens at the address of a simulated pod, so the test sets one of this machine.
        (pod,) = system.pods(id_)
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"

        def move_to(ip: str) -> None:
            system.operator.change(path, {"status": {"podIP": ip, "podIPs": [{"ip": ip}]}})

        move_to("127.0.0.1")
        answer = httpx2.get(f"{system.installation.url}/proxy/{id_}/lab", verify=NO_TLS, trust_env=False, timeout=10.0)
        move_to(pod["status"]["podIP"])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (answer.status_code, answer.text) == (200, f"at /proxy/{id_}/lab")


class Page(BaseHTTPRequestHandler):
    """Answers with the path of the request."""

    def do_GET(self) -> None:
        body = f"at {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: a test's output is its own."""
