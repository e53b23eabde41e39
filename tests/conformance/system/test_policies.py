"""Requests of our accounts that the API server refuses beyond their Roles: changes of objects of others, and
unrestricted pods.

Each request uses the account's own token, as an attacker would who controls the process. All other tests of this folder
run the services under the same policies.
"""

import ssl
from collections.abc import Generator
from contextlib import contextmanager

import httpx2
import pytest

from slipway.crd.meta import LABEL_POOL
from slipway.crd.podtemplate import VOLUME_TYPES
from slipway.errors import ControlPlaneError
from tests.conformance.system.operator import GROUP, NOT_FOUND, Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

DEFAULT = "/api/v1/namespaces/default"
MERGE = {"Content-Type": "application/merge-patch+json"}
RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@contextmanager
def acting_as_editor(system: System) -> Generator[httpx2.Client]:
    """A client of the user ada, who may change allocations with kubectl and is no administrator of Slipway."""
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    rule = {"apiGroups": ["slipway.dev"], "resources": ["allocations"], "verbs": ["get", "patch"]}
    bound = {
        "metadata": {"name": "editors"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editors"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"}],
    }
    system.operator.create(f"{roles}/roles", {"metadata": {"name": "editors"}, "rules": [rule]})
    system.operator.create(f"{roles}/rolebindings", bound)
    try:
        with system.audit.excluded(), system.operator.cluster.client() as client:
            client.headers["Impersonate-User"] = "ada"
            nothing = f"{GROUP}/namespaces/default/allocations/no-such"
            wait_until(lambda: client.get(nothing).status_code == NOT_FOUND, "the role is known")
            yield client
    finally:
        system.operator.delete(f"{roles}/rolebindings/editors")
        system.operator.delete(f"{roles}/roles/editors")


@contextmanager
def acting_as(system: System, component: str) -> Generator[httpx2.Client]:
    """A client with the token of a component; its requests are excluded from the audit."""
    cluster = system.operator.cluster
    token = system.installation.credentials(component).renew()
    headers = {"Authorization": f"Bearer {token}"}
    with (
        system.audit.excluded(),
        httpx2.Client(
            base_url=cluster.url,
            verify=ssl.create_default_context(cafile=str(cluster.ca)),
            headers=headers,
            trust_env=False,
        ) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def owner(system: System) -> Generator[Json]:
    """An allocation that never starts, as the owner of the objects that a test tries."""
    spec = {"kind": "command", "hold": True, "template": {"spec": {"containers": [{"name": "m", "command": ["true"]}]}}}
    made = system.operator.create(f"{GROUP}/namespaces/default/allocations", {**_typed("owner"), "spec": spec})
    yield made["metadata"]
    system.operator.delete(f"{GROUP}/namespaces/default/allocations/owner")


def _typed(name: str) -> Json:
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": name}}


def a_pod(
    owner: Json,
    context: Json | None = None,
    labels: Json | None = None,
    annotations: Json | None = None,
    more: Json | None = None,
    **spec: object,
) -> Json:
    """A pod like that of a rank; `context` is of its container, and `more` are fields of the container."""
    owned = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "controller": True}
    meta = {
        "name": "tried",
        "labels": {"slipway.dev/allocation-uid": owner["uid"]} if labels is None else labels,
        "annotations": annotations or {},
        "ownerReferences": [{**owned, "name": owner["name"], "uid": owner["uid"]}],
    }
    container = {
        "name": "main",
        "image": "example.org/work:1",
        "securityContext": context or RESTRICTED,
        **(more or {}),
    }
    whole = {"schedulerName": "slipway", "automountServiceAccountToken": False, "containers": [container], **spec}
    return {"metadata": meta, "spec": whole}


def a_service(owner: Json, **spec: object) -> Json:
    """A Service like that of an attempt; a field of `spec` that is None is omitted."""
    meta = a_pod(owner)["metadata"] | {"name": f"{owner['name']}-{owner['uid'][:8]}-1"}
    whole = {
        "clusterIP": "None",
        "selector": {"slipway.dev/allocation-uid": owner["uid"]},
        "ports": [{"port": 29500}],
        **spec,
    }
    return {"metadata": meta, "spec": {name: value for name, value in whole.items() if value is not None}}


def refused(answer: httpx2.Response, policy: str, words: str) -> None:
    """Check that our policy refused it with these words."""
    assert answer.status_code in (403, 422), answer.text
    message = answer.json()["message"]
    assert f"slipway-policy-{policy}" in message, message
    assert words in message


def taken(answer: httpx2.Response) -> None:
    """Check that it was accepted."""
    assert answer.status_code in (200, 201), answer.text


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        ("privileged", {"context": {**RESTRICTED, "privileged": True, "allowPrivilegeEscalation": True}}),
        ("privileged", {"context": {**RESTRICTED, "allowPrivilegeEscalation": None}}),
        ("run as root", {"context": {**RESTRICTED, "runAsNonRoot": False}}),
        ("run as root", {"context": {**RESTRICTED, "runAsUser": 0}}),
        ("capabilities", {"context": {**RESTRICTED, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}}),
        ("capabilities", {"context": {**RESTRICTED, "capabilities": {}}}),
        ("seccomp", {"context": {**RESTRICTED, "seccompProfile": {"type": "Unconfined"}}}),
        ("hostNetwork", {"hostNetwork": True}),
        ("hostPath", {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}),
        ("token", {"automountServiceAccountToken": True}),
        ("AppArmor", {"annotations": {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}}),
        ("container runtime", {"annotations": {"io.kubernetes.cri-o.Devices": "/dev/sda"}}),
        ("AppArmor", {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
        ("AppArmor", {"context": {**RESTRICTED, "appArmorProfile": {"type": "Unconfined"}}}),
        ("SELinux", {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}),
        ("SELinux", {"context": {**RESTRICTED, "seLinuxOptions": {"user": "system_u"}}}),
        ("sysctl", {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
        ("livenessProbe", {"more": {"livenessProbe": {"httpGet": {"port": 80, "host": "169.254.169.254"}}}}),
        ("readinessProbe", {"more": {"readinessProbe": {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}}}),
        ("startupProbe", {"more": {"startupProbe": {"httpGet": {"port": 80, "host": "10.0.0.1"}}}}),
        ("postStart", {"more": {"lifecycle": {"postStart": {"httpGet": {"port": 80, "host": "10.0.0.1"}}}}}),
        ("preStop", {"more": {"lifecycle": {"preStop": {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}}}}),
    ],
)
def test_ranks_are_restricted(system: System, owner: Json, words: str, spec: Json) -> None:
    """A podworker can only create restricted ranks; each refused pod differs from the accepted one in one field."""
    with acting_as(system, "podworker") as client:
        dry = {"dryRun": "All"}
        taken(client.post(f"{DEFAULT}/pods", json=a_pod(owner), params=dry))
        # Two policies refuse a token, and the server names either.
        policy = "" if words == "token" else "pods"
        pod = a_pod(owner, **spec)
        # With this label no pool judges the pod; a pool would refuse some of these too.
        pod["metadata"]["labels"] = {**pod["metadata"]["labels"], LABEL_POOL: "no-such-pool"}
        refused(client.post(f"{DEFAULT}/pods", json=pod, params=dry), policy, words)


VOLUMES: dict[str, Json] = {
    "configMap": {"name": "m"},
    "csi": {"driver": "csi.example"},
    "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
    "emptyDir": {},
    "ephemeral": {
        "volumeClaimTemplate": {
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        }
    },
    "image": {"reference": "reg.example/data:1"},
    "persistentVolumeClaim": {"claimName": "c"},
    "projected": {"sources": [{"configMap": {"name": "m"}}]},
    "secret": {"secretName": "s"},
}


def test_a_template_and_the_policy_agree_on_kinds_of_volumes(system: System, owner: Json) -> None:
    """The API server, with its Pod Security, accepts each kind of volume that the api accepts."""
    assert VOLUMES.keys() == VOLUME_TYPES
    with acting_as(system, "podworker") as client:
        for kind, source in VOLUMES.items():
            pod = a_pod(owner, volumes=[{"name": "v", kind: source}])
            taken(client.post(f"{DEFAULT}/pods", json=pod, params={"dryRun": "All"}))


def test_what_a_podworker_makes_belongs_to_an_allocation(system: System, owner: Json) -> None:
    """A pod of a podworker has an allocation as its label and as its owner, and both must be the same."""
    stranger = {**a_pod(owner)}
    stranger["metadata"] = {"name": "tried", "labels": {"slipway.dev/allocation-uid": "another"}}
    with acting_as(system, "podworker") as client:
        refused(client.post(f"{DEFAULT}/pods", json=stranger), "ranks", "belong to the allocation")
        refused(client.post(f"{DEFAULT}/pods", json=a_pod(owner, labels={})), "", "")
        refused(client.post(f"{DEFAULT}/configmaps", json={"metadata": {"name": "tried"}}), "", "")


@pytest.mark.parametrize("component", ["podworker", "watcher"])
def test_what_is_not_ours_is_not_touched(system: System, component: str) -> None:
    """The account cannot delete a pod, ConfigMap or Service of others, although its role allows to delete pods
    everywhere."""
    theirs: Json = {"metadata": {"name": "theirs"}, "data": {"a": "b"}}
    system.operator.create(f"{DEFAULT}/configmaps", theirs)
    pod = {
        "metadata": {"name": "theirs"},
        "spec": {"schedulerName": "none", "containers": [{"name": "m", "image": "i"}]},
    }
    system.operator.create(f"{DEFAULT}/pods", pod)
    try:
        with acting_as(system, component) as client:
            for kind in ("configmaps", "pods"):
                refused(client.delete(f"{DEFAULT}/{kind}/theirs"), "objects", "label of Slipway's")
            patch = {"metadata": {"labels": {"slipway.dev/allocation-uid": "mine-now"}}}
            refused(client.patch(f"{DEFAULT}/pods/theirs", json=patch, headers=MERGE), "objects", "label of Slipway's")
    finally:
        for kind in ("configmaps", "pods"):
            system.operator.delete(f"{DEFAULT}/{kind}/theirs")


def test_of_a_node_only_our_labels_change(system: System) -> None:
    """The api cannot change a node's taints, other labels or annotations, although its role allows to patch nodes."""
    path = f"/api/v1/nodes/{system.nodes.names[0]}"
    dry = {"dryRun": "All"}
    with acting_as(system, "api") as client:

        def patch(body: Json) -> httpx2.Response:
            return client.patch(path, json=body, headers=MERGE, params=dry)

        taken(patch({"metadata": {"labels": {"slipway.dev/scheduling": "draining"}}}))
        refused(patch({"metadata": {"labels": {"kubernetes.io/hostname": "another"}}}), "nodes", "not other labels")
        refused(patch({"metadata": {"labels": {"role": "gpu"}}}), "nodes", "not other labels")
        refused(patch({"metadata": {"annotations": {"a": "b"}}}), "nodes", "only labels of a node")
        refused(patch({"spec": {"unschedulable": True}}), "nodes", "only labels of a node")
        taint = {"key": "mine", "effect": "NoExecute"}
        refused(patch({"spec": {"taints": [taint]}}), "nodes", "only labels of a node")


def test_of_namespaces_only_workspaces_are_made_and_removed(system: System) -> None:
    """The api cannot delete a namespace of others, nor remove the protection of one."""
    dry = {"dryRun": "All"}
    system.operator.create(
        "/api/v1/namespaces",
        {"metadata": {"name": "guarded", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    try:
        with acting_as(system, "api") as client:
            path = "/api/v1/namespaces/guarded"

            def patch(labels: Json) -> httpx2.Response:
                return client.patch(path, json={"metadata": {"labels": labels}}, headers=MERGE, params=dry)

            refused(client.delete(path, params=dry), "namespaces", "no workspace that Slipway has made")
            unguarded = {"slipway.dev/workspace": "true", "pod-security.kubernetes.io/enforce": None}
            refused(patch(unguarded), "namespaces", "not other labels")
            taken(patch({"slipway.dev/workspace": "true"}))
            plain = {"metadata": {"name": "plain"}}
            refused(client.post("/api/v1/namespaces", json=plain, params=dry), "namespaces", "is a workspace")
    finally:
        system.operator.delete("/api/v1/namespaces/guarded")


def test_the_user_is_who_the_api_server_saw(system: System, owner: Json) -> None:
    """An applied allocation belongs to the user that the API server authenticated, unless that user may impersonate
    the named one."""
    path, dry = f"{GROUP}/namespaces/default/allocations", {"dryRun": "All"}

    def made(client: httpx2.Client, **annotations: str) -> str:
        said = {"slipway.dev/user": annotations["user"]} if annotations else {}
        body = {**_typed("by-hand"), "spec": {"kind": "command", "hold": True}}
        body["metadata"] = {"name": "by-hand", "annotations": said}
        answer = client.post(path, json=body, params=dry)
        taken(answer)
        return str(answer.json()["metadata"]["annotations"]["slipway.dev/user"])

    with acting_as(system, "api") as client:
        assert made(client, user="ada") == "ada"
    with acting_as_editor(system) as client:
        patch = {"metadata": {"annotations": {"slipway.dev/user": "root"}}}
        answer = client.patch(f"{path}/{owner['name']}", json=patch, headers=MERGE, params=dry)
        taken(answer)
        assert answer.json()["metadata"]["annotations"]["slipway.dev/user"] != "root"


def test_only_an_administrator_sets_a_limit_beyond_the_queues(system: System, owner: Json) -> None:
    """A user who may change allocations by hand cannot change this field of them, unless they are an administrator."""
    path, dry = f"{GROUP}/namespaces/default/allocations/{owner['name']}", {"dryRun": "All"}
    patch = {"spec": {"maxRuntimeOverride": "9h"}}
    with acting_as_editor(system) as client:
        refused(client.patch(path, json=patch, headers=MERGE, params=dry), "limits", "set by administrators")
        taken(client.patch(path, json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE, params=dry))
    with acting_as(system, "api") as client:
        taken(client.patch(path, json=patch, headers=MERGE, params=dry))
    system.operator.change(path, patch)
    system.operator.change(path, {"spec": {"maxRuntimeOverride": None}})


def test_only_an_administrator_gives_up_nodes(system: System, owner: Json) -> None:
    """By hand, only an administrator may give up nodes; an editor may send other signals. Nodes are
    given up for one attempt."""
    path, dry = f"{GROUP}/namespaces/default/allocations/{owner['name']}", {"dryRun": "All"}
    lost = {"spec": {"signals": {"attempt": 1, "lostNodes": ["n1"]}}}
    later = {"spec": {"signals": {"attempt": 2}}}
    ready = {"spec": {"signals": {"attempt": 1, "ready": True}}}
    with acting_as_editor(system) as client:
        refused(client.patch(path, json=lost, headers=MERGE, params=dry), "forget", "set by administrators")
        taken(client.patch(path, json=ready, headers=MERGE, params=dry))
    with acting_as(system, "api") as client:
        taken(client.patch(path, json=lost, headers=MERGE, params=dry))
    system.operator.change(path, lost)
    with acting_as_editor(system) as client:
        refused(client.patch(path, json=later, headers=MERGE, params=dry), "forget", "set by administrators")
        taken(client.patch(path, json=ready, headers=MERGE, params=dry))


def test_a_launch_that_a_policy_refuses_ends_with_its_words(system: System) -> None:
    """A pool allows more than restricted and the policy does not: the user reads the rule that refused the pod."""
    pool = f"{GROUP}/resourcepools/default"
    body = a_body()
    body["template"]["spec"]["containers"][0]["securityContext"] = {
        "privileged": True,
        "allowPrivilegeEscalation": True,
    }
    system.operator.change(pool, {"spec": {"privilegedTemplates": True}})
    try:
        id_ = wait_until(lambda: _launched(system, body), "the pool takes it")
        ended = system.ended(id_, "Invalid")
        assert "slipway-policy-pods" in ended["message"]
    finally:
        system.operator.change(pool, {"spec": {"privilegedTemplates": None}})


def _launched(system: System, body: Json) -> str:
    """Launch and return the id; empty while the api still uses the old pool."""
    try:
        return system.launch(body)
    except ControlPlaneError:
        return ""


def test_policies_do_not_apply_to_users(system: System) -> None:
    """The policies judge our accounts only: an administrator creates and removes any object."""
    made = {
        "metadata": {"name": "anybody"},
        "spec": {"schedulerName": "none", "containers": [{"name": "m", "image": "i"}]},
    }
    system.operator.create(f"{DEFAULT}/pods", made)
    system.operator.delete(f"{DEFAULT}/pods/anybody")
    wait_until(lambda: system.operator.find(f"{DEFAULT}/pods/anybody") is None, "it is gone")
