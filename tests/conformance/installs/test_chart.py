"""The chart on a real API server: strict creates, pod security "restricted", upgrades of definitions, and uninstalls
without loss.

It has a control plane of its own: only one release may own the definitions, and the other tests have theirs
installed."""

import json
import shutil
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from slipway.kube.resources import CRDS
from tests.conformance.cluster.servers import ClusterOptions, RealCluster, running_cluster
from tests.conformance.wanted import require_own_cluster
from tests.integration.helm.matrix import MATRIX, rendered
from tests.support import chart
from tests.support.wait import wait_until
from tools.release.version import version

Json = dict[str, Any]

PODS = 10
"""Two pods of each service, Valkey and the setup."""
GONE_S = 120.0
"""A busy API server needs time to see that a deleted definition has no instances left."""
STUCK = ("InstanceDeletionFailed", "InstanceDeletionCheck")
"""Reasons why a deleted definition may stay. The server retries ever more seldom, and at once when the definition
changes."""
AGAIN_S = 10.0
ADMISSION = "apis/admissionregistration.k8s.io/v1"
THEIRS = ("keda.sh/", "monitoring.coreos.com/", "gateway.networking.k8s.io/")
"""Kinds of other projects whose definitions are not installed here: test_kinds_of_others.py tests them."""
PLACES = ("team-a", "team-b")
STAYS = {"CustomResourceDefinition", "Namespace"}
"""Kinds that an uninstall keeps: users' objects, and the namespace with the secrets of their webhooks."""
COLLECTIONS = {
    "Namespace": "api/v1/namespaces",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "Secret": "api/v1/namespaces/{}/secrets",
    "Service": "api/v1/namespaces/{}/services",
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "Job": "apis/batch/v1/namespaces/{}/jobs",
    "CronJob": "apis/batch/v1/namespaces/{}/cronjobs",
    "Pod": "api/v1/namespaces/{}/pods",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    "Ingress": "apis/networking.k8s.io/v1/namespaces/{}/ingresses",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PriorityClass": "apis/scheduling.k8s.io/v1/priorityclasses",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
ALLOCATIONS = "apis/slipway.dev/v1alpha1/namespaces/default/allocations"
DEFINITION = f"{CRDS.path()}/allocations.slipway.dev"


class CleanCluster:
    """A cluster, and an administrator's requests to it."""

    def __init__(self, cluster: RealCluster, client: httpx2.Client) -> None:
        self.cluster = cluster
        self.client = client

    def get(self, path: str) -> Json:
        """Return an object or a list; it must exist."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def create(self, path: str, body: Json) -> Json:
        answers: list[httpx2.Response] = []

        def is_answered() -> bool:
            """Whether the API server serves the kind: a new definition is served a moment later for writes than for
            reads."""
            answers.append(self.client.post(path, json=body, params={"fieldValidation": "Strict"}))
            return answers[-1].status_code != 503

        wait_until(is_answered, "an answer to the create")
        assert answers[-1].status_code == 201, answers[-1].text
        return answers[-1].json()

    def install(self, values: Json | None = None, path: Path = chart.CHART) -> Json:
        release = chart.install(self.cluster.kubeconfig, values=values, chart=path)
        self.served()
        return release

    def upgrade(self, values: Json | None = None, path: Path = chart.CHART) -> Json:
        return chart.upgrade(self.cluster.kubeconfig, values=values, chart=path)

    def served(self) -> None:
        wait_until(lambda: self.client.get(ALLOCATIONS).status_code == 200, "allocations are served")

    def names(self, kind: str) -> set[str]:
        """The names of our objects of that kind in our namespace, without the namespace itself, which the test made."""
        listed = self.get(COLLECTIONS[kind].format(chart.NAMESPACE))["items"]
        found = {item["metadata"]["name"] for item in listed if "slipway" in item["metadata"]["name"]}
        return found - {chart.NAMESPACE} if kind == "Namespace" else found

    def clean(self) -> None:
        """Restore the state before any install."""
        for release in self.get(f"api/v1/namespaces/{chart.NAMESPACE}/secrets")["items"]:
            if release["type"].startswith("helm.sh/release"):
                chart.uninstall(self.cluster.kubeconfig, name=release["metadata"]["labels"]["name"])
                break
        wait_until(self._no_definitions, self._why_definitions_stay, timeout_s=GONE_S)

    def _no_definitions(self) -> bool:
        """Whether our definitions are gone; deletes those that exist, again where a delete was not carried out."""
        left = self._definitions()
        for item in left:
            path = f"{CRDS.path()}/{item['metadata']['name']}"
            if "deletionTimestamp" not in item["metadata"]:
                self.client.delete(path)
            elif any(reason in json.dumps(item["status"]) for reason in STUCK):
                change = {"metadata": {"annotations": {"tried-again": f"{time.monotonic() // AGAIN_S:.0f}"}}}
                self.client.patch(path, json=change, headers={"content-type": "application/merge-patch+json"})
        return not left

    def _why_definitions_stay(self) -> str:
        stay = [{**item["metadata"], "conditions": item["status"].get("conditions")} for item in self._definitions()]
        told = ("name", "deletionTimestamp", "finalizers", "conditions")
        return f"the definitions are gone; left: {[{key: each.get(key) for key in told} for each in stay]}"

    def _definitions(self) -> list[Json]:
        listed = self.get(COLLECTIONS["CustomResourceDefinition"])["items"]
        return [item for item in listed if item["spec"]["group"] == "slipway.dev"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[RealCluster]:
    """A cluster without a scheduler: pods are created and never run."""
    require_own_cluster()
    with running_cluster(tmp_path_factory.mktemp("chart"), ClusterOptions(scheduler=False, audit=False)) as started:
        yield started


@pytest.fixture
def clean_cluster(cluster: RealCluster) -> Generator[CleanCluster]:
    """The cluster without objects of ours but a namespace, which enforces and warns of pod security "restricted"."""
    with cluster.client() as client:
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
        client.post("api/v1/namespaces", json={"metadata": {"name": chart.NAMESPACE, "labels": levels}})
        found = CleanCluster(cluster, client)
        yield found
        found.clean()


def an_allocation(name: str = "kept") -> Json:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name},
        "spec": {"kind": "command", "template": {"spec": {"containers": [{"name": "main", "command": ["true"]}]}}},
    }


def a_newer_chart(folder: Path) -> Path:
    """The chart of a later version: its allocations have one more field, and it has that version's number."""
    path = folder / "helm"
    shutil.copytree(chart.CHART, path)
    file = path / "files" / "crds" / "allocations.slipway.dev.yaml"
    definition = yaml.safe_load(file.read_text("utf-8"))
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["note"] = {"type": "string", "maxLength": 64}
    file.write_text(json.dumps(definition), "utf-8")  # which is YAML, and leaves no word to be taken for a boolean
    about = path / "Chart.yaml"
    about.write_text(about.read_text("utf-8").replace(f"ersion: {version()}", "ersion: 99.2.0"), "utf-8")
    return path


def as_a_job(pod: Json) -> Json:
    """A pod as the template of a Job: the API server refuses a bare pod while its account and its class do not
    exist."""
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": pod["metadata"], "spec": {"template": template}}


def test_an_image_that_no_node_can_pull_is_refused(clean_cluster: CleanCluster) -> None:
    """Helm refuses a chart whose image has no registry before it creates anything, unless the values say that the
    nodes have the image."""
    with pytest.raises(chart.HelmError, match=r"--set image\.registry=REGISTRY"):
        chart.install(clean_cluster.cluster.kubeconfig, values={"image": {"allowNoRegistry": False}})
    assert clean_cluster.names("Deployment") | clean_cluster.names("ClusterRole") == set()


def test_every_object_is_accepted_strictly(clean_cluster: CleanCluster) -> None:
    """The API server accepts every object of all value sets strictly: no unknown field, and no warning of
    deprecation or pod security."""
    complaints: dict[str, str] = {}
    seen: set[str] = set()
    for place in PLACES:
        clean_cluster.client.post("api/v1/namespaces", json={"metadata": {"name": place}})
    for name in MATRIX:
        for item in rendered(name):
            text = json.dumps(item, sort_keys=True)
            if text in seen or item["apiVersion"].startswith(THEIRS):
                continue
            seen.add(text)
            asked: Json = as_a_job(item) if item["kind"] == "Pod" else item
            if asked["metadata"].get("namespace", "").endswith("-webhooks"):
                # Only the chart creates this object; the test does not create it.
                asked = {**asked, "metadata": {**asked["metadata"], "namespace": chart.NAMESPACE}}
            path = COLLECTIONS[asked["kind"]].format(asked["metadata"].get("namespace", ""))
            answer = clean_cluster.client.post(path, json=asked, params={"dryRun": "All", "fieldValidation": "Strict"})
            if item["kind"] == "Namespace" and answer.status_code == 409:
                continue  # an uninstall before this has kept it
            if answer.status_code != 201 or "warning" in answer.headers:
                what = f"{name}: {item['kind']} {item['metadata']['name']}"
                complaints[what] = answer.headers.get("warning") or answer.text
    assert complaints == {}


def test_an_install_is_whole(clean_cluster: CleanCluster) -> None:
    """Definitions are established, every pod is created although "restricted" is enforced, and users get their
    roles."""
    release = clean_cluster.install()
    assert release["status"] == "deployed"
    check_definitions(clean_cluster)
    check_roles_of_people(clean_cluster)
    pods = f"api/v1/namespaces/{chart.NAMESPACE}/pods"
    wait_until(lambda: len(clean_cluster.get(pods)["items"]) == PODS, f"{PODS} pods are made")
    events = clean_cluster.get(f"api/v1/namespaces/{chart.NAMESPACE}/events")["items"]
    assert [event["message"] for event in events if event["reason"] == "FailedCreate"] == []


def check_definitions(clean_cluster: CleanCluster) -> None:
    """The API server has no complaint about the definitions."""
    for name in sorted(clean_cluster.names("CustomResourceDefinition")):
        conditions = {
            item["type"]: item["status"] for item in clean_cluster.get(f"{CRDS.path()}/{name}")["status"]["conditions"]
        }
        assert conditions["Established"] == conditions["NamesAccepted"] == "True", name
        assert "NonStructuralSchema" not in conditions


def check_roles_of_people(clean_cluster: CleanCluster) -> None:
    """A user who is bound to a built-in role in a namespace has its rights there only, and never on a pool."""
    for role in ("edit", "view"):
        binding = {
            "metadata": {"name": f"{role}ors"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
        }
        clean_cluster.client.post("apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", json=binding)

    def may(user: str, verb: str, resource: str, namespace: str = "default") -> bool:
        asked = {"group": "slipway.dev", "resource": resource, "verb": verb, "namespace": namespace}
        review = {"spec": {"user": user, "resourceAttributes": asked}}
        return clean_cluster.create("apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]

    wait_until(lambda: may("edit", "create", "allocations"), "the built-in roles have taken ours in")
    wait_until(lambda: may("view", "list", "allocations"), "the built-in roles have taken ours in")
    assert may("edit", "delete", "templates")
    assert may("edit", "watch", "allocations")
    assert not may("view", "create", "allocations")
    assert not may("edit", "create", "allocations", "kube-system")
    assert not may("edit", "patch", "resourcepools", "")


def test_policies_are_understood(clean_cluster: CleanCluster) -> None:
    """The API server has checked the types of every expression without a warning."""
    clean_cluster.install()
    names = clean_cluster.names("ValidatingAdmissionPolicy")
    of_users = 2
    assert len(names) == len(list((chart.CHART / "files" / "policies").iterdir())) + of_users
    for name in names:
        path = f"{COLLECTIONS['ValidatingAdmissionPolicy']}/{name}"
        status = wait_until(
            lambda path=path: (found := clean_cluster.get(path).get("status", {})).get("observedGeneration") and found,
            f"{name} is looked at",
        )
        assert status.get("typeChecking", {}).get("expressionWarnings", []) == [], name


def test_a_release_can_be_uninstalled_and_installed_again(clean_cluster: CleanCluster) -> None:
    """An upgrade from all features back to the defaults and forth again leaves nothing of the former behind."""
    everything: Json = {
        "api": {"autoscaling": {"enabled": True}},
        "scheduler": {"once": {"enabled": True}},
        "priorityClass": {"create": True},
        "networkPolicy": {"enabled": True, "egress": {"enabled": True}, "workloads": {"enabled": True}},
        "rbac": {"namespaces": ["default"]},
        "audit": {"enabled": True},
        "valkey": {"enabled": False},
    }

    def state() -> dict[str, set[str]]:
        found = {kind: clean_cluster.names(kind) for kind in COLLECTIONS if kind != "Pod"}
        # A CronJob creates a Job at a full minute, at any time during the test.
        by_chart = {name for name in found["Job"] if not name.startswith("slipway-scheduler-")}
        secrets = {name for name in found["Secret"] if not name.startswith("sh.helm.release")}
        return found | {"Job": by_chart, "Secret": secrets}

    clean_cluster.install()
    plain = state()
    assert clean_cluster.upgrade(everything)["status"] == "deployed"
    full = state()
    assert full != plain
    for kind in ("HorizontalPodAutoscaler", "CronJob", "PriorityClass", "NetworkPolicy"):
        assert full[kind], kind
    chart.rollback(clean_cluster.cluster.kubeconfig, revision=1)
    assert state() == plain
    assert clean_cluster.upgrade(everything)["revision"] == 4
    assert state() == full
    chart.uninstall(clean_cluster.cluster.kubeconfig)
    assert {kind for kind, names in state().items() if names} == STAYS


def test_writes_can_be_narrowed_to_namespaces(clean_cluster: CleanCluster) -> None:
    """The API server allows writes in the listed namespaces only, while reads are allowed everywhere; an upgrade
    widens the writes again."""

    def may(service: str, verb: str, resource: str, namespace: str) -> bool:
        group = "slipway.dev" if resource == "allocations" else ""
        asked = {"group": group, "resource": resource, "verb": verb, "namespace": namespace}
        user = f"system:serviceaccount:{chart.NAMESPACE}:slipway-{service}"
        review = {"spec": {"user": user, "resourceAttributes": asked}}
        return clean_cluster.create("apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]

    writes = [
        ("api", "create", "allocations"),
        ("podworker", "create", "pods"),
        ("podworker", "delete", "configmaps"),
        ("scheduler", "patch", "allocations"),
        ("watcher", "delete", "pods"),
    ]
    clean_cluster.install({"rbac": {"namespaces": ["default"]}})
    wait_until(lambda: may("podworker", "create", "pods", "default"), "the authorizer knows the Roles")
    assert [may(*write, "default") for write in writes] == [True] * len(writes)
    assert [may(*write, "kube-system") for write in writes] == [False] * len(writes)
    assert not may("api", "create", "namespaces", "")
    assert may("watcher", "list", "pods", "kube-system")
    clean_cluster.upgrade({"rbac": {"namespaces": []}})
    wait_until(lambda: all(may(*write, "kube-system") for write in writes), "they may write everywhere again")


def test_an_upgrade_brings_changed_definitions_and_a_rollback_the_old(
    clean_cluster: CleanCluster, tmp_path: Path
) -> None:
    """A field that a later version adds is in the live definition; existing objects are unchanged."""
    clean_cluster.install()
    before = clean_cluster.create(ALLOCATIONS, an_allocation())
    release = clean_cluster.upgrade(path=a_newer_chart(tmp_path))
    assert (release["revision"], release["status"]) == (2, "deployed")
    version = clean_cluster.get(DEFINITION)["spec"]["versions"][0]
    assert version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["note"]["maxLength"] == 64
    assert clean_cluster.get(f"{ALLOCATIONS}/kept") == before
    noted = an_allocation("noted")
    noted["spec"]["note"] = "of the later version"

    def is_taken() -> bool:
        answer = clean_cluster.client.post(ALLOCATIONS, json=noted, params={"fieldValidation": "Strict"})
        return answer.status_code == 201

    wait_until(is_taken, "the field is known")
    labels = clean_cluster.get(f"{COLLECTIONS['Deployment'].format(chart.NAMESPACE)}/slipway-api")["metadata"]["labels"]
    assert labels["app.kubernetes.io/version"] == "99.2.0"
    chart.rollback(clean_cluster.cluster.kubeconfig, revision=1)
    version = clean_cluster.get(DEFINITION)["spec"]["versions"][0]
    assert "note" not in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def test_an_upgrade_without_a_change_changes_nothing(clean_cluster: CleanCluster) -> None:
    """No Deployment gets another generation, the password stays, and the setup is not run again."""
    clean_cluster.install()

    def state() -> dict[str, object]:
        found: dict[str, object] = {}
        for kind in ("Deployment", "Job", "CustomResourceDefinition"):
            for item in clean_cluster.get(COLLECTIONS[kind].format(chart.NAMESPACE))["items"]:
                found[f"{kind}/{item['metadata']['name']}"] = (item["metadata"]["uid"], item["metadata"]["generation"])
        for name in ("slipway-valkey", "slipway-valkey-accounts", "slipway-valkey-tls"):
            secret = clean_cluster.get(f"{COLLECTIONS['Secret'].format(chart.NAMESPACE)}/{name}")
            found[name] = secret["data"]
        return found

    before = state()
    clean_cluster.upgrade()
    assert state() == before


def test_an_uninstall_keeps_what_people_made(clean_cluster: CleanCluster) -> None:
    """Definitions and allocations stay, everything else is deleted; a later install adopts them."""
    clean_cluster.install()
    made = clean_cluster.create(ALLOCATIONS, an_allocation())
    chart.uninstall(clean_cluster.cluster.kubeconfig)
    assert clean_cluster.get(f"{ALLOCATIONS}/kept") == made
    left = {kind: clean_cluster.names(kind) for kind in COLLECTIONS if kind != "Pod"}
    assert {kind for kind, names in left.items() if names} == STAYS
    clean_cluster.install()
    assert clean_cluster.get(f"{ALLOCATIONS}/kept")["metadata"]["uid"] == made["metadata"]["uid"]


def test_definitions_are_removed_when_requested(clean_cluster: CleanCluster) -> None:
    """With `crds.keep=false` an uninstall leaves nothing."""
    clean_cluster.install({"crds": {"keep": False}})
    chart.uninstall(clean_cluster.cluster.kubeconfig)
    wait_until(lambda: not clean_cluster.names("CustomResourceDefinition"), "the definitions go")


def test_definitions_stay_when_the_release_gives_them_up_and_can_be_taken_back(clean_cluster: CleanCluster) -> None:
    """An upgrade with `crds.enabled` off leaves the definitions and every allocation; with it on again, the release
    owns them as before."""
    clean_cluster.install()
    made = clean_cluster.create(ALLOCATIONS, an_allocation())
    clean_cluster.upgrade({"crds": {"enabled": False}})
    assert clean_cluster.get(f"{ALLOCATIONS}/kept") == made
    clean_cluster.upgrade({"crds": {"enabled": True}})
    assert clean_cluster.get(f"{ALLOCATIONS}/kept") == made
    chart.uninstall(clean_cluster.cluster.kubeconfig)
    assert clean_cluster.get(f"{ALLOCATIONS}/kept") == made


def test_definitions_are_kept_from_the_upgrade_on_that_says_so(clean_cluster: CleanCluster) -> None:
    """After an upgrade from `crds.keep=false` to true, the uninstall leaves the definitions with every allocation."""
    clean_cluster.install({"crds": {"keep": False}})
    made = clean_cluster.create(ALLOCATIONS, an_allocation())
    clean_cluster.upgrade({"crds": {"keep": True}})
    chart.uninstall(clean_cluster.cluster.kubeconfig)
    assert clean_cluster.get(f"{ALLOCATIONS}/kept") == made


def test_definitions_of_others_are_left_alone(clean_cluster: CleanCluster) -> None:
    """Definitions that are applied from the files, and managed by others, are not part of the release."""
    folder = chart.CHART / "files" / "crds"
    applied = clean_cluster.cluster.kubectl("apply", "--server-side", "-f", str(folder))
    assert applied.returncode == 0, applied.stderr
    clean_cluster.install({"crds": {"enabled": False}})
    chart.uninstall(clean_cluster.cluster.kubeconfig)
    assert len(clean_cluster.names("CustomResourceDefinition")) == len(list(folder.iterdir()))
