"""A gang that does not fit gets its nodes from an autoscaler, on a real API server and beside the real kube-scheduler.

A short double plays the autoscaler, in the words of the Cluster Autoscaler: it reads a ProvisioningRequest and
its PodTemplates, sets conditions, and adds nodes. For placeholder pods it adds nodes while pods cannot be scheduled.
"""

from collections.abc import Generator
from typing import Any

import pytest

from slipway.model.times import format_time
from slipway.runtime.clock import SystemClock
from tests.conformance.system.neighbours import LABEL, PoolUnderTest, a_pool_of_its_own
from tests.conformance.system.operator import Json
from tests.conformance.system.system import System
from tests.conformance.system.test_policies import acting_as
from tests.support.provisioning_requests import a_condition, definition
from tests.support.wait import wait_until

OURS = "slipway-system"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REQUESTS = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{OURS}/provisioningrequests"
TEMPLATES = f"/api/v1/namespaces/{OURS}/podtemplates"
PODS = f"/api/v1/namespaces/{OURS}/pods"
PLACEHOLDERS = "slipway.dev/capacity-request"
SPEC: Json = {"after": "1s", "backoff": "15s", "tries": 3}


@pytest.fixture(scope="module", autouse=True)
def _kind(system: System) -> Generator[None]:
    """Install the kind, with the rules that keep a spec unchanged."""
    name = "provisioningrequests.autoscaling.x-k8s.io"
    system.operator.create(DEFINITIONS, definition(with_rules=True))

    def is_served() -> bool:
        conditions: list[Json] = system.operator.get(f"{DEFINITIONS}/{name}")["status"]["conditions"] or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    wait_until(is_served, "the kind is served")
    yield
    system.operator.delete(f"{DEFINITIONS}/{name}")


class Autoscaler:
    """Adds nodes to a pool, and sets the conditions of its requests."""

    def __init__(self, own_pool: PoolUnderTest) -> None:
        self.own_pool = own_pool
        self.system = own_pool.system
        self.added: list[str] = []

    def requests(self) -> list[Json]:
        return self.system.operator.items(REQUESTS)

    def request(self) -> Json:
        """The one request, once it exists."""
        wait_until(self.requests, "a request stands", timeout_s=60.0)
        return self.requests()[0]

    def says(self, request: Json, type_: str, message: str) -> None:
        """Set a condition, as the Cluster Autoscaler does."""
        now = format_time(SystemClock().now(), "seconds")
        status = {"conditions": [a_condition(type_, "True", f"Test{type_}", message, now)]}
        path = f"{REQUESTS}/{request['metadata']['name']}"
        self.system.operator.replace(f"{path}/status", {**self.system.operator.get(path), "status": status})

    def add(self, count: int = 1) -> None:
        """Add nodes to the pool."""
        for _ in range(count):
            name = f"{self.own_pool.name}-new-{len(self.added)}"
            self.added.append(name)
            self.system.nodes.add(name)
            self.system.operator.change(f"/api/v1/nodes/{name}", {"metadata": {"labels": {LABEL: self.own_pool.name}}})

    def is_given_back(self) -> bool:
        """Whether no object of any request is left."""
        left = [*self.requests(), *self.system.operator.items(TEMPLATES, PLACEHOLDERS)]
        return not left and not self.system.operator.items(PODS, PLACEHOLDERS)

    def wait_given_back(self) -> None:
        wait_until(self.is_given_back, "every request is given back", timeout_s=60.0)


def a_pool(system: System, **autoscaling: Any) -> Any:
    """A pool of one node with an autoscaler."""
    return a_pool_of_its_own(system, nodes=1, autoscaling={**SPEC, **autoscaling})


@pytest.fixture
def autoscaler(request: pytest.FixtureRequest, system: System) -> Generator[Autoscaler]:
    mode = getattr(request, "param", "ProvisioningRequest")
    with a_pool(system, mode=mode) as own_pool:
        scaler = Autoscaler(own_pool)
        yield scaler
        for node in scaler.added:
            system.nodes.remove(node)


def waits(system: System, id_: str, words: str) -> None:
    """Wait until the allocation shows these words."""
    system.wait_until(id_, lambda view: words in str(view), f"telling {words!r}", timeout_s=60.0)


def test_a_gang_starts_on_the_nodes_that_its_request_brings(autoscaler: Autoscaler) -> None:
    """The request names a template with the shape of the ranks. When the nodes are added, the gang runs, and the
    request is deleted."""
    system = autoscaler.system
    id_ = autoscaler.own_pool.launch(4, cpu="6", script={"runsS": 1.0})
    request = autoscaler.request()
    assert request["spec"]["provisioningClassName"] == "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    (pods,) = request["spec"]["podSets"]
    assert pods["count"] == 4
    template = system.operator.get(f"{TEMPLATES}/{pods['podTemplateRef']['name']}")["template"]["spec"]
    assert template["containers"][0]["resources"]["requests"]["cpu"] == "6"
    assert template["nodeSelector"][LABEL] == autoscaler.own_pool.name
    waits(system, id_, "nodes for 4 ranks were requested at")
    # With the nodes the gang starts, and its request is deleted.
    autoscaler.says(request, "Provisioned", "the nodes are there")
    autoscaler.add()
    system.ended(id_, "Succeeded", timeout_s=60.0)
    autoscaler.wait_given_back()


def test_a_refusal_backs_off_and_the_next_try_has_another_name(autoscaler: Autoscaler) -> None:
    """The allocation shows the message of the autoscaler; when a gang is cancelled, all objects of its requests are
    deleted."""
    system = autoscaler.system
    id_ = autoscaler.own_pool.launch(4, cpu="6", script={"runsS": 1.0})
    first = autoscaler.request()
    autoscaler.says(first, "Failed", "no capacity in this zone")
    waits(system, id_, "no capacity in this zone")

    def is_second() -> bool:
        return any(each["metadata"]["name"].endswith("-2") for each in autoscaler.requests())

    wait_until(is_second, "a second try stands", timeout_s=60.0)
    system.post(f"/allocations/{id_}/kill")
    system.wait_for(id_, "Terminated")
    autoscaler.wait_given_back()


def test_a_leader_that_is_killed_leaves_one_request(autoscaler: Autoscaler) -> None:
    """The leader is killed once the first object exists: the next leader finishes the request under the same names."""
    system = autoscaler.system
    id_ = autoscaler.own_pool.launch(4, cpu="6", script={"runsS": 1.0})
    wait_until(lambda: system.operator.items(TEMPLATES, PLACEHOLDERS), "the first object stands", timeout_s=60.0)
    system.installation.kill("scheduler")
    system.installation.await_ready()
    request = autoscaler.request()
    waits(system, id_, "nodes for 4 ranks were requested at")
    assert len(autoscaler.requests()) == 1
    assert len(system.operator.items(TEMPLATES, PLACEHOLDERS)) == 1
    # With the nodes the gang starts, and its request is deleted.
    autoscaler.says(request, "Provisioned", "the nodes are there")
    autoscaler.add()
    system.ended(id_, "Succeeded", timeout_s=60.0)
    autoscaler.wait_given_back()


@pytest.mark.parametrize("autoscaler", ["PlaceholderPods"], indirect=True)
def test_placeholders_make_room_for_the_gang_once_each_has_a_node(autoscaler: Autoscaler) -> None:
    """kube-scheduler binds placeholders where the ranks can run. Their priority is negative; they are deleted before
    the gang starts."""
    system = autoscaler.system
    id_ = autoscaler.own_pool.launch(4, cpu="6", script={"runsS": 1.0})
    wait_until(lambda: len(system.operator.items(PODS, PLACEHOLDERS)) == 4, "all placeholders stand", timeout_s=60.0)
    pods = system.operator.items(PODS, PLACEHOLDERS)
    assert {pod["spec"]["priority"] for pod in pods} == {-5}
    autoscaler.add()
    system.ended(id_, "Succeeded", timeout_s=90.0)
    autoscaler.wait_given_back()


def test_the_scheduler_may_make_no_pod_but_placeholders(autoscaler: Autoscaler) -> None:
    """With the scheduler's own token neither a pod with a volume of Secrets can be created, nor one that is no
    placeholder."""
    body: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mine", "labels": {PLACEHOLDERS: "x"}},
        "spec": {
            "priorityClassName": "slipway-placeholder",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "x"}],
        },
    }
    with acting_as(autoscaler.system, "scheduler") as client:
        plain = {**body, "metadata": {"name": "mine"}}
        reads = {**body, "spec": {**body["spec"], "volumes": [{"name": "s", "secret": {"secretName": "any"}}]}}
        runs = {**body, "spec": {**body["spec"], "containers": [{"name": "c", "image": "x", "command": ["sh"]}]}}
        for refused in (plain, reads, runs):
            answer = client.post(PODS, json=refused, params={"dryRun": "All"})
            assert answer.status_code == 403, answer.text
            assert "placeholder" in answer.text
        assert client.post(PODS, json=body, params={"dryRun": "All"}).status_code == 201
