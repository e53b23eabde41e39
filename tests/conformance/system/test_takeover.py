"""An attacker with the token of a service cannot use any other account of the cluster.

The tests try each way with the account's own token on the real API server, as a dry run: a request that is not refused
would have worked. All other tests of this folder run the services under the same roles and policies.
"""

from collections.abc import Generator

import httpx2
import pytest

from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System
from tests.conformance.system.test_policies import MERGE, RESTRICTED, a_pod, a_service, acting_as, refused, taken
from tests.support import chart

OURS = chart.NAMESPACE
DRY = {"dryRun": "All"}
AUDIENCE = "slipway"
NAMESPACE = "/api/v1/namespaces/default"
ACCOUNTS = "slipway.dev/service-accounts"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def owner(system: System) -> Generator[Json]:
    """An allocation that never starts, as the owner of the objects that a test tries."""
    template = {"spec": {"containers": [{"name": "m", "command": ["true"]}]}}
    made = system.operator.create(
        f"{GROUP}/namespaces/default/allocations",
        {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "Allocation",
            "metadata": {"name": "taken-over"},
            "spec": {"kind": "command", "hold": True, "template": template},
        },
    )
    yield made["metadata"]
    system.operator.delete(f"{GROUP}/namespaces/default/allocations/taken-over")


@pytest.fixture(scope="module")
def powerful(system: System) -> Generator[str]:
    """An account of a workspace that has rights of its own."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    system.operator.create(accounts, {"metadata": {"name": "powerful"}})
    yield "powerful"
    system.operator.delete(f"{accounts}/powerful")


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def with_token(*sources: Json) -> Json:
    """The fields of a pod with a volume projected from these sources."""
    return {"volumes": [{"name": "token", "projected": {"sources": list(sources)}}]}


def a_token(audience: str | None) -> Json:
    return {"serviceAccountToken": {"path": "token"} | ({} if audience is None else {"audience": audience})}


# --- the podworker --------------------------------------------------------------------------------------------------


def test_no_service_account_of_the_cluster_can_be_used_by_a_rank(system: System, owner: Json, powerful: str) -> None:
    """For every account of the cluster, the podworker can create no pod that runs as it and has a token for
    Kubernetes."""
    accounts = [
        (item["metadata"]["namespace"], item["metadata"]["name"])
        for item in system.operator.items("/api/v1/serviceaccounts")
    ]
    assert ("default", powerful) in accounts
    assert (OURS, "slipway-api") in accounts
    with acting_as(system, "podworker") as client:
        made: list[str] = []
        for namespace, name in accounts:
            ways: tuple[Json, ...] = (with_token(a_token(None)), {"automountServiceAccountToken": True})
            for more in ways:
                pod = a_pod(owner, serviceAccountName=name, **more)
                answer = client.post(pods_of(namespace), json=pod, params=DRY)
                made += [f"{namespace}/{name}"] if answer.status_code < 300 else []
    assert made == []


@pytest.mark.parametrize("namespace", ["kube-system", OURS, "kube-public", "no-workspace"])
def test_pods_are_made_in_workspaces_only(system: System, owner: Json, namespace: str) -> None:
    """Pods are refused beside the services, beside Kubernetes' own, and in namespaces that are no workspace."""
    if namespace == "no-workspace":
        system.operator.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    with acting_as(system, "podworker") as client:
        refused(client.post(pods_of(namespace), json=a_pod(owner), params=DRY), "workspaces", "no workspace")
        for kind in ("configmaps", "services"):
            body = a_service(owner) if kind == "services" else {"metadata": a_service(owner)["metadata"]}
            answer = client.post(f"/api/v1/namespaces/{namespace}/{kind}", json=body, params=DRY)
            refused(answer, "workspaces", "no workspace")
        binding = {"metadata": {"name": "any"}, "target": {"kind": "Node", "name": system.nodes.names[0]}}
        refused(
            client.post(f"{pods_of(namespace)}/any/binding", json=binding, params=DRY), "workspaces", "no workspace"
        )
    if namespace == "no-workspace":
        system.operator.delete(f"/api/v1/namespaces/{namespace}")


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        ("another account", {"serviceAccountName": "powerful"}),
        ("token for others", with_token(a_token(None))),
        ("token for others", with_token(a_token("https://kubernetes.default.svc.cluster.local"))),
        ("token for others", with_token(a_token(AUDIENCE), a_token("another"))),
        ("placed there", {"nodeName": "sim-1"}),
    ],
)
def test_a_rank_is_who_it_is(system: System, owner: Json, powerful: str, words: str, spec: Json) -> None:
    """A rank has its workspace's default account, a token for Slipway only, and the node of the scheduler's choice."""
    with acting_as(system, "podworker") as client:
        taken(client.post(pods_of("default"), json=a_pod(owner, **with_token(a_token(AUDIENCE))), params=DRY))
        refused(client.post(pods_of("default"), json=a_pod(owner, **spec), params=DRY), "identities", words)


@pytest.mark.parametrize(
    ("allowed", "is_taken"),
    [("powerful", True), ("other, powerful", True), ("power*", True), ("power", False), ("", False), (None, False)],
)
def test_a_rank_may_be_an_account_that_its_workspace_allows(
    system: System, owner: Json, powerful: str, allowed: str | None, is_taken: bool
) -> None:
    """The annotation of administrators on the namespace names accounts or prefixes; the rank gets no token of the
    account."""
    system.operator.change(NAMESPACE, {"metadata": {"annotations": {ACCOUNTS: allowed}}})
    try:
        with acting_as(system, "podworker") as client:
            pod = a_pod(owner, serviceAccountName=powerful)
            answer = client.post(pods_of("default"), json=pod, params=DRY)
            if is_taken:
                taken(answer)
            else:
                refused(answer, "identities", "another account")
            with_its_token = {**pod, "spec": {**pod["spec"], "automountServiceAccountToken": True}}
            # Two policies refuse it, and the API server names either first.
            answer = client.post(pods_of("default"), json=with_its_token, params=DRY)
            assert answer.status_code in (403, 422), answer.text
    finally:
        system.operator.change(NAMESPACE, {"metadata": {"annotations": {ACCOUNTS: None}}})


def test_no_certificate_of_an_account(system: System, owner: Json) -> None:
    """A rank cannot have a certificate, which identifies a pod as a token does."""
    source = {"podCertificate": {"signerName": "example.com/any", "keyType": "ED25519", "credentialBundlePath": "pem"}}
    with acting_as(system, "podworker") as client:
        answer = client.post(pods_of("default"), json=a_pod(owner, **with_token(source)), params=DRY)
        assert answer.status_code in (403, 422), answer.text


def test_no_class_of_priority(system: System, owner: Json) -> None:
    """A rank cannot have a priority class of the system or of others; the cluster's default class is accepted."""
    system.operator.create(PRIORITIES, {"metadata": {"name": "theirs"}, "value": 1000})
    system.operator.create(PRIORITIES, {"metadata": {"name": "usual"}, "value": 10, "globalDefault": True})
    try:
        with acting_as(system, "podworker") as client:
            for name in ("system-node-critical", "system-cluster-critical", "theirs"):
                pod = a_pod(owner, priorityClassName=name)
                refused(client.post(pods_of("default"), json=pod, params=DRY), "priorities", "class of priority")
            answer = client.post(pods_of("default"), json=a_pod(owner), params=DRY)
            taken(answer)
            assert answer.json()["spec"]["priorityClassName"] == "usual"
    finally:
        for name in ("theirs", "usual"):
            system.operator.delete(f"{PRIORITIES}/{name}")


def test_the_node_is_not_reached(system: System, owner: Json) -> None:
    """The ways of a privileged pod to the node, once more under this heading: the policies of pods and pools refuse
    them."""
    whole: Json = {**RESTRICTED, "privileged": True, "allowPrivilegeEscalation": True}
    with acting_as(system, "podworker") as client:
        ways: tuple[Json, ...] = (
            {"hostPID": True},
            {"hostNetwork": True},
            {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
            {"context": whole},
        )
        for spec in ways:
            # The policies of pods and of pools may both refuse; the API server names either.
            refused(client.post(pods_of("default"), json=a_pod(owner, **spec), params=DRY), "po", "")


# --- settings and pods of the services ------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["api", "podworker", "watcher"])
def test_settings_of_the_services_stay(system: System, component: str) -> None:
    """No account changes or removes the configuration of another service, or a pod beside it."""
    path = f"/api/v1/namespaces/{OURS}/configmaps/slipway-scheduler"
    settings = system.operator.get(path)
    pod: Json = {
        "metadata": {"name": "ours"},
        "spec": {"schedulerName": "none", "containers": [{"name": "m", "image": "i"}]},
    }
    system.operator.create(pods_of(OURS), pod)
    try:
        with acting_as(system, component) as client:
            changed = {**settings, "data": {**settings["data"], "SLIPWAY_LOG_LEVEL": "debug"}}
            label = {"metadata": {"labels": {"slipway.dev/allocation-uid": "mine-now"}}}
            for answer in (
                client.put(path, json=changed, params=DRY),
                client.patch(path, json={"data": changed["data"]}, headers=MERGE, params=DRY),
                client.patch(path, json=label, headers=MERGE, params=DRY),
                client.delete(path, params=DRY),
                client.delete(f"{pods_of(OURS)}/ours", params=DRY),
                client.patch(f"{pods_of(OURS)}/ours", json=label, headers=MERGE, params=DRY),
                client.post(f"/api/v1/namespaces/{OURS}/configmaps", json={"metadata": {"name": "any"}}, params=DRY),
            ):
                assert answer.status_code == 403, (answer.request.method, answer.text)
    finally:
        system.operator.delete(f"{pods_of(OURS)}/ours")


# --- the api --------------------------------------------------------------------------------------------------------


def test_the_api_makes_no_namespace_of_the_system_a_workspace(system: System) -> None:
    """Otherwise the podworker could create pods there."""
    label = {"metadata": {"labels": {"slipway.dev/workspace": "true"}}}
    with acting_as(system, "api") as client:
        for name in ("kube-system", "kube-public", OURS):
            answer = client.patch(f"/api/v1/namespaces/{name}", json=label, headers=MERGE, params=DRY)
            refused(answer, "namespaces", "never becomes a workspace")


def test_the_api_writes_in_workspaces_only(system: System) -> None:
    """The api writes no allocation and no quota outside of workspaces."""
    spec = {"kind": "command", "template": {"spec": {"containers": [{"name": "m", "command": ["true"]}]}}}
    typed = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "any"}, "spec": spec}
    quota = {"metadata": {"name": "any", "labels": {"slipway.dev/workspace": "true"}}, "spec": {"hard": {"pods": "0"}}}
    with acting_as(system, "api") as client:
        for name in ("kube-system", OURS):
            answer = client.post(f"{GROUP}/namespaces/{name}/allocations", json=typed, params=DRY)
            refused(answer, "workspaces", "no workspace")
            refused(client.post(f"/api/v1/namespaces/{name}/resourcequotas", json=quota, params=DRY), "quotas", "quota")


# --- every account --------------------------------------------------------------------------------------------------

WAYS: tuple[tuple[str, str, Json], ...] = (
    ("POST", f"/api/v1/namespaces/{OURS}/serviceaccounts/slipway-api/token", {"spec": {}}),
    ("GET", "/api/v1/secrets", {}),
    ("GET", f"/api/v1/namespaces/{OURS}/secrets", {}),
    ("GET", f"/api/v1/namespaces/{OURS}/secrets/slipway-valkey-accounts", {}),
    ("GET", "/api/v1/namespaces/kube-system/secrets", {}),
    ("GET", "/api/v1/namespaces/default/secrets", {}),
    ("POST", "/api/v1/namespaces/kube-system/secrets", {"metadata": {"name": "any"}}),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {"metadata": {"name": "any"}}),
    ("POST", "/api/v1/namespaces/kube-system/pods/any/exec?command=sh", {}),
    ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", {"metadata": {"name": "any"}}),
    ("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/slipway-policy-pods", {}),
    ("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/slipway-policy-pods", {}),
)


@pytest.mark.parametrize("component", [*chart.SERVICES, chart.SETUP, chart.AUDIT])
def test_no_account_has_escalating_permissions(system: System, component: str) -> None:
    """No account can create tokens of others, Secrets, roles, shells or certificates, or change the policies
    themselves."""
    with acting_as(system, component) as client:
        for method, path, body in WAYS:
            answer = client.request(method, path, json=body or None, params=None if "?" in path else DRY)
            assert answer.status_code == 403, (method, path, answer.text)
        headers = {"Impersonate-User": "system:admin", "Impersonate-Group": "system:masters"}
        assert client.get("/api/v1/secrets", headers=headers).status_code == 403


def a_secret(name: str, *, type: str = "Opaque", labels: Json | None = None, notes: Json | None = None) -> Json:
    return {"metadata": {"name": name, "labels": labels or {}, "annotations": notes or {}}, "type": type}


def test_no_token_is_filled_into_a_secret(system: System) -> None:
    """Kubernetes fills a Secret that names an account with its token: the api can create none, in any namespace."""
    webhook = {"slipway.dev/webhook": "true"}
    of = {"kubernetes.io/service-account.name": "slipway-podworker"}
    token = a_secret("slipway-webhook-any", type="kubernetes.io/service-account-token", labels=webhook, notes=of)
    with acting_as(system, "api") as client:
        for namespace in (OURS, f"{OURS}-webhooks"):
            path = f"/api/v1/namespaces/{namespace}/secrets"
            answers: list[httpx2.Response] = [
                client.post(path, json=body, params=DRY)
                for body in (token, a_secret("slipway-valkey", labels=webhook), a_secret("slipway-webhook-any"))
            ]
            assert [answer.status_code for answer in answers] == [403, 403, 403], [each.text for each in answers]
        good = a_secret("slipway-webhook-any", labels=webhook)
        taken(client.post(f"/api/v1/namespaces/{OURS}-webhooks/secrets", json=good, params=DRY))
