"""Refusals of Kubernetes: an allocation waits for quotas and LimitRanges; an invalid pod ends it with the server's own
message."""

import json
from collections.abc import Generator

import pytest

from slipway.model.reasons import Gate
from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System, a_body, an_allocation
from tests.support.wait import wait_until

WORKSPACE = {"slipway.dev/workspace": "true"}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICY_WORDS = "images of this registry are not approved"


@pytest.fixture
def workspace(system: System, request: pytest.FixtureRequest) -> Generator[str]:
    """A workspace of this test, deleted at the end; then nothing of it may be stuck."""
    name = f"team-{abs(hash(request.node.name)) % 10**6}"
    system.operator.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": WORKSPACE}})
    wait_until(lambda: system.operator.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "its account")
    yield name
    system.operator.delete(f"/api/v1/namespaces/{name}")
    wait_until(
        lambda: system.operator.find(f"/api/v1/namespaces/{name}") is None, "the namespace is gone", timeout_s=60
    )


def condition(view: Json, name: str) -> Json:
    """A condition of an allocation; empty when it has none of that name."""
    found: list[Json] = [item for item in view["status"].get("conditions") or () if item["type"] == name]
    return found[0] if found else {}


def test_a_quota_is_waited_for(system: System, workspace: str) -> None:
    """A 403 `exceeded quota` of a quota created after the admission does not end the allocation: it continues when
    the quota is deleted."""
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    path = f"/api/v1/namespaces/{workspace}/resourcequotas"
    system.installation.halt("podworker")
    try:
        id_ = system.launch(a_body(script={"runsS": 0.1}, workspace=workspace))
        system.wait_for(id_, "Assigned")
        system.operator.create(path, quota)
        wait_until(lambda: system.operator.get(f"{path}/none").get("status", {}).get("hard"), "the quota counts")
    finally:
        system.installation.resume("podworker")
    view = system.wait_until(id_, lambda view: "exceeded quota" in str(condition(view, "Stuck")), "explained")
    assert view["phase"] == "Assigned"
    assert condition(view, "Stuck")["status"] == "Unknown"
    assert "exceeded quota" in str(system.get(f"/allocations/{id_}/explain"))
    system.operator.delete(f"{path}/none")
    system.ended(id_, "Succeeded", timeout_s=60)
    system.started_once(id_, 1)


def test_a_quota_that_is_there_is_heeded_before_admission(system: System, workspace: str) -> None:
    """A launch beyond an existing quota creates nothing; the explanation names the quota, and the allocation runs
    once the quota is deleted."""
    path = f"/api/v1/namespaces/{workspace}/resourcequotas"
    system.operator.create(path, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    wait_until(lambda: system.operator.get(f"{path}/none").get("status", {}).get("hard"), "the quota counts")
    id_ = system.launch(a_body(script={"runsS": 0.1}, workspace=workspace))
    system.wait_until(id_, lambda view: "ExceedsResourceQuota" in str(view["status"].get("conditions")), "explained")
    assert system.view(id_)["phase"] == "Pending"
    assert "none" in str(system.get(f"/allocations/{id_}/explain"))
    system.operator.delete(f"{path}/none")
    system.ended(id_, "Succeeded", timeout_s=60)
    system.started_once(id_, 1)


def test_an_invalid_pod_ends_with_the_servers_words(system: System) -> None:
    """A 422 of the API server ends the allocation as Invalid, at once, with the server's message; nothing is left."""
    manifest = an_allocation("two-of-one-path")
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": name, "emptyDir": {}} for name in ("a", "b")]
    pod["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": "/same"} for name in ("a", "b")]
    system.operator.apply(manifest)
    id_ = system.applied_id("two-of-one-path")
    view = system.ended(id_, "Invalid")
    assert "must be unique" in view["message"], view["message"]
    assert system.runs(id_) == []


@pytest.fixture
def forbidden_image(system: System, workspace: str) -> Generator[str]:
    """An image that a policy of the cluster's administrator refuses in the workspace; the policy is active."""
    image, name = f"{workspace}.example.org/work:1", f"no-image-{workspace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    validation = {
        "expression": f"object.spec.containers.all(each, each.image != {json.dumps(image)})",
        "message": POLICY_WORDS,
        "reason": "Forbidden",
    }
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    place = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": workspace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": place}
    policies, bindings = f"{ADMISSION}/validatingadmissionpolicies", f"{ADMISSION}/validatingadmissionpolicybindings"
    system.operator.create(policies, {"metadata": {"name": name}, "spec": policy})
    system.operator.create(bindings, {"metadata": {"name": name}, "spec": binding})
    tried = {"metadata": {"name": "tried"}, "spec": {"containers": [{"name": "main", "image": image}]}}
    pods = f"/api/v1/namespaces/{workspace}/pods"
    try:
        wait_until(lambda: POLICY_WORDS in system.operator.objection(pods, tried), "the policy is in force")
        yield image
    finally:
        system.operator.delete(f"{bindings}/{name}")
        system.operator.delete(f"{policies}/{name}")


def test_an_admission_policy_ends_it_with_its_words(system: System, workspace: str, forbidden_image: str) -> None:
    """A 403 that is not about a quota, from a policy of the administrator, ends the allocation with the policy's
    message."""
    body = a_body(workspace=workspace)
    body["template"]["spec"]["containers"][0]["image"] = forbidden_image
    view = system.ended(system.launch(body), "Invalid")
    assert POLICY_WORDS in view["message"]
    assert system.runs(view["id"]) == []


def test_a_policy_that_is_not_ready_is_waited_for(system: System, workspace: str) -> None:
    """An API server that has just started does not know the kind of a policy's parameters: the launch continues
    later."""
    name = f"unready-{workspace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "paramKind": {"apiVersion": "example.org/v1", "kind": "Unknown"},
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}],
    }
    place = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": workspace}}}
    given = {"name": "any", "parameterNotFoundAction": "Deny"}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": place, "paramRef": given}
    policies, bindings = f"{ADMISSION}/validatingadmissionpolicies", f"{ADMISSION}/validatingadmissionpolicybindings"
    tried = {"metadata": {"name": "tried"}, "spec": {"containers": [{"name": "main", "image": "example.org/work:1"}]}}
    words = "failed to configure policy"
    system.operator.create(policies, {"metadata": {"name": name}, "spec": policy})
    system.operator.create(bindings, {"metadata": {"name": name}, "spec": binding})
    try:
        pods = f"/api/v1/namespaces/{workspace}/pods"
        wait_until(lambda: words in system.operator.objection(pods, tried), "the policy is in force")
        id_ = system.launch(a_body(script={"runsS": 0.1}, workspace=workspace))
        view = system.wait_until(id_, lambda view: words in str(condition(view, "Stuck")), "explained")
        assert view["phase"] == "Assigned"
    finally:
        system.operator.delete(f"{bindings}/{name}")
        system.operator.delete(f"{policies}/{name}")
    system.ended(id_, "Succeeded", timeout_s=60)
    system.started_once(id_, 1)


def test_a_limit_range_is_heeded_before_admission(system: System, workspace: str) -> None:
    """A launch that a LimitRange refuses creates nothing. The scheduler and a forecast name its bound; once it is
    deleted, the allocation runs."""
    path = f"/api/v1/namespaces/{workspace}/limitranges"
    limits = [{"type": "Container", "min": {"cpu": "200m"}}]
    system.operator.create(path, {"metadata": {"name": "large"}, "spec": {"limits": limits}})
    id_ = system.launch(a_body(script={"runsS": 0.1}, workspace=workspace))
    system.wait_until(id_, lambda view: Gate.LIMIT_RANGE in str(view["status"].get("conditions")), "explained")
    assert system.view(id_)["phase"] == "Pending"
    assert system.pods(id_) == []
    told = system.get(f"/allocations/{id_}/explain", {"foresee": "true"})
    assert (told["code"], told["foreseen"]["code"]) == (Gate.LIMIT_RANGE, Gate.LIMIT_RANGE)
    assert "200m" in told["foreseen"]["message"]
    system.operator.delete(f"{path}/large")
    system.ended(id_, "Succeeded", timeout_s=60)
    system.started_once(id_, 1)


def test_a_namespace_that_is_no_workspace(system: System) -> None:
    """An object applied there waits with an explanation, and starts when the namespace gets the label."""
    system.operator.create("/api/v1/namespaces", {"metadata": {"name": "plain"}})
    wait_until(lambda: system.operator.find("/api/v1/namespaces/plain/serviceaccounts/default"), "its account")
    system.operator.apply(an_allocation("patient", script={"runsS": 0.1}, namespace="plain"))
    id_ = system.applied_id("patient", "plain")
    wait_until(lambda: system.get(f"/allocations/{id_}/explain")["code"] == "NotAWorkspace", "explained")
    system.kubectl("label", "namespace", "plain", "slipway.dev/workspace=true")
    system.ended(id_, "Succeeded")
    system.operator.delete("/api/v1/namespaces/plain")
    wait_until(lambda: system.operator.find("/api/v1/namespaces/plain") is None, "the namespace is gone", timeout_s=60)


def test_a_namespace_is_deleted_under_a_gang(system: System, workspace: str) -> None:
    """The allocations of the namespace are canceled, no container runs on, and no finalizer of ours blocks the
    deletion."""
    running = system.launch(a_body("training", 2, workspace=workspace))
    waiting = system.launch(a_body(hold=True, workspace=workspace))
    system.wait_for(running, "Running")
    system.operator.delete(f"/api/v1/namespaces/{workspace}")
    wait_until(lambda: system.operator.find(f"/api/v1/namespaces/{workspace}") is None, "it is gone", timeout_s=60)
    wait_until(lambda: all(run.ended_at for run in system.runs(running)), "the containers ended")
    assert system.is_gone(running)
    assert system.is_gone(waiting)
    system.started_once(running, 2)


def test_a_deleted_object_tears_down(system: System) -> None:
    """`kubectl delete alloc` ends the pods; the object is deleted last, after its end was reported."""
    system.operator.apply(an_allocation("deleted", "training", ranks=2))
    id_ = system.applied_id("deleted")
    system.wait_for(id_, "Running")
    system.kubectl("delete", "alloc", "deleted", "--timeout=40s")
    assert [run.code for run in system.runs(id_)] == [143, 143]
    assert system.pods(id_) == []
    with system.redis() as client:
        entries = client.xrange(f"slipway:alloc:{{{id_}}}")
    assert entries[-1][1]["type"] == "dev.slipway.allocation.terminated"


def test_an_ended_object_is_deleted_at_once(system: System) -> None:
    """An ended allocation has no finalizer of ours; the REST API deletes it too."""
    for delete in ("kubectl", "api"):
        id_ = system.launch(a_body(script={"runsS": 0.1}))
        system.ended(id_, "Succeeded")
        system.nothing_left()
        wait_until(lambda id_=id_: "finalizers" not in system.object(id_)["metadata"], "no finalizer")
        if delete == "kubectl":
            system.kubectl("delete", "alloc", id_.rsplit("-", 1)[0], "--timeout=5s")
        else:
            system.ask(lambda api, id_=id_: api.call("DELETE", f"/allocations/{id_}"))
        assert system.is_gone(id_)


def test_objects_without_an_owner_are_deleted(system: System) -> None:
    """Pods, ConfigMaps and Services that have our labels and no owner are deleted, including their finalizers."""
    labels = {
        "app.kubernetes.io/managed-by": "slipway",
        "slipway.dev/allocation-uid": "00000000-0000-0000-0000-000000000000",
        "slipway.dev/allocation": "lost-00000000",
        "slipway.dev/attempt": "1",
    }
    meta: Json = {"name": "lost-00000000-1", "labels": labels}
    container = {"name": "main", "image": "example.org/work:1"}
    pod = {
        "metadata": {**meta, "finalizers": ["slipway.dev/tracking"]},
        "spec": {"containers": [container], "schedulerName": "slipway"},
    }
    root = "/api/v1/namespaces/default"
    system.operator.create(f"{root}/pods", pod)
    system.operator.create(f"{root}/configmaps", {"metadata": meta})
    system.operator.create(f"{root}/services", {"metadata": meta, "spec": {"clusterIP": "None"}})
    system.nothing_left(labels["slipway.dev/allocation-uid"])


def test_the_garbage_collector_deletes_dependents_with_their_owner(system: System) -> None:
    """Kubernetes itself also collects what the sweep would find: the owner of every object is the Allocation."""
    id_ = system.launch(a_body("training", 2))
    system.wait_for(id_, "Running")
    uid = system.object(id_)["metadata"]["uid"]
    found = [
        item
        for plural in ("pods", "configmaps", "services")
        for item in system.operator.items(f"/api/v1/{plural}", f"slipway.dev/allocation-uid={uid}")
    ]
    assert len(found) == 4
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in found} == {uid}


def test_a_pool_that_is_not_there(system: System) -> None:
    """An applied object with an unknown pool and an unknown queue waits, and its explanation names both."""
    system.operator.apply(an_allocation("elsewhere", pool="elsewhere", queue="elsewhere"))
    found = system.operator.get(f"{GROUP}/namespaces/default/allocations/elsewhere")
    assert found["status"]["phase"] == "Pending"
    assert system.get(f"/allocations/{system.applied_id('elsewhere')}/explain")["phase"] == "Pending"


def test_a_deeply_nested_spec_does_not_block_other_allocations(system: System) -> None:
    """The API server stores thousands of levels; an object that is nested too deeply for us is Invalid, and others
    are still processed."""
    levels = 4000
    manifest = an_allocation("abyss")
    shallow = json.dumps(manifest).replace('"template": {', f'"template": {{"abyss": {deep(levels)}, ', 1)
    system.operator.create_text("/apis/slipway.dev/v1alpha1/namespaces/default/allocations", shallow)
    uid = system.kubectl("get", "allocations.slipway.dev", "abyss", "--output=jsonpath={.metadata.uid}")
    id_ = f"abyss-{uid[:8]}"
    other = system.launch(a_body(script={"runsS": 0.1}))
    assert "a pod template has metadata and spec only" in system.ended(id_, "Invalid")["message"]
    system.ended(other, "Succeeded")
    assert system.runs(id_) == []
    system.kubectl("delete", "allocations.slipway.dev", "abyss", "--timeout=30s")


def deep(levels: int) -> str:
    """A JSON object with that many levels; a recursive encoder could not write it."""
    return '{"a":' * levels + "1" + "}" * levels
