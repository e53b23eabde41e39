"""Common additions of clusters to the pods of a workspace: a mesh that injects its proxy, levels of Pod Security."""

from collections.abc import Generator

import pytest

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

POLICIES = "/apis/admissionregistration.k8s.io/v1"
PROXY = "mesh-proxy"
INJECTED = f"""[JSONPatch{{op: "add", path: "/spec/containers/-", value: Object.spec.containers{{
  name: "{PROXY}", image: "mesh.example/proxy:1", args: ["proxy", "sidecar"],
  securityContext: Object.spec.containers.securityContext{{
    allowPrivilegeEscalation: false, runAsNonRoot: true, runAsUser: 1337,
    capabilities: Object.spec.containers.securityContext.capabilities{{drop: ["ALL"]}}}}}}}},
  JSONPatch{{op: "add", path: "/metadata/annotations/mesh.example~1status", value: "injected"}}]"""
"""The change of a mesh to a new pod: one more container beside the main one, and an annotation."""


@pytest.fixture
def mesh(system: System) -> Generator[str]:
    """The label of pods into which the API server itself injects a proxy."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    selected = {"objectSelector": {"matchLabels": {"mesh": "in"}}, "resourceRules": [rule]}
    policy: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "mesh"},
        "spec": {
            "reinvocationPolicy": "Never",
            "failurePolicy": "Fail",
            "matchConstraints": selected,
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": INJECTED}}],
        },
    }
    binding: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "mesh"},
        "spec": {"policyName": "mesh"},
    }
    system.operator.create(f"{POLICIES}/mutatingadmissionpolicies", policy)
    system.operator.create(f"{POLICIES}/mutatingadmissionpolicybindings", binding)
    yield "mesh"
    system.operator.delete(f"{POLICIES}/mutatingadmissionpolicybindings/mesh")
    system.operator.delete(f"{POLICIES}/mutatingadmissionpolicies/mesh")


def in_the_mesh(script: Json, ranks: int = 1) -> Json:
    """A launch whose pods get the proxy of the mesh; the proxy runs until it is ended from outside."""
    body = a_body("training", ranks, {**script, "containers": {PROXY: {}}})
    body["template"]["metadata"]["labels"] = {"mesh": "in"}
    return body


def is_injected(pod: Json) -> bool:
    return PROXY in [each["name"] for each in pod["spec"]["containers"]]


def test_a_proxy_of_a_mesh_does_not_keep_a_gang_alive(system: System, mesh: str) -> None:
    """When the main containers have ended, the proxies beside them are ended too, and nothing is left."""
    assert mesh

    def injected() -> bool:
        # The API server applies a new policy only after a moment.
        id_ = system.launch(in_the_mesh({}))
        system.wait_for(id_, "Running")
        found = is_injected(system.pods(id_)[0])
        system.post(f"/allocations/{id_}/kill")
        return found

    wait_until(injected, "pods get a proxy", timeout_s=60)
    id_ = system.launch(in_the_mesh({"runsS": 1.0}, ranks=3))
    system.wait_for(id_, "Running")
    assert [is_injected(pod) for pod in system.pods(id_)] == [True] * 3
    view = system.ended(id_, "Succeeded")
    assert [rank["exitCode"] for rank in view["status"]["ranks"]] == [0, 0, 0]
    failed = system.ended(system.launch(in_the_mesh({"runsS": 0.2, "exit": 3})), "Failed")
    assert "exit code 3" in failed["message"]
    system.nothing_left()


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_a_workspace_may_be_held_to_a_level_of_pod_security(system: System, level: str) -> None:
    """The API server refuses pods below the level; ranks meet it, whatever their kind."""
    name = f"held-to-{level}"
    labels = {"slipway.dev/workspace": "true", "pod-security.kubernetes.io/enforce": level}
    system.operator.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        for kind in ("training", "command", "shell"):
            body = a_body(kind, script={"runsS": 0.2}, workspace=name)
            assert system.ended(system.launch(body), "Succeeded")["workspace"] == name
    finally:
        system.operator.delete(f"/api/v1/namespaces/{name}")
