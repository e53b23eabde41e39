"""Applies the chart's objects for KEDA, the Prometheus operator and the Gateway API where their definitions are
installed.

The definitions are those that the projects publish; their controllers do not run.
"""

import json
from collections.abc import Generator
from typing import Any

import httpx2
import pytest
import yaml

from slipway.kube.resources import CRDS
from tests.conformance.cluster.definitions import definitions
from tests.conformance.cluster.servers import ClusterOptions, RealCluster, running_cluster
from tests.conformance.wanted import require_own_cluster
from tests.integration.helm.matrix import MATRIX, rendered
from tests.support import chart
from tests.support.wait import wait_until

Json = dict[str, Any]
EVERYTHING: Json = {
    "api": {"settings": {"auth": "kubernetes", "listen": "0.0.0.0:8080"}},
    "httpRoute": {"enabled": True, "hostnames": ["slipway.example.org"], "parentRefs": [{"name": "edge"}]},
    "metrics": {"podMonitor": {"enabled": True}, "alerts": {"enabled": True}},
    "podworker": {"keda": {"enabled": True}},
}
KINDS = {
    "HTTPRoute": "httproutes",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
    "ScaledJob": "scaledjobs",
    "ScaledObject": "scaledobjects",
    "ServiceMonitor": "servicemonitors",
    "TriggerAuthentication": "triggerauthentications",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[RealCluster]:
    """A cluster with their definitions, and the namespace of a release."""
    require_own_cluster()
    options = ClusterOptions(scheduler=False, audit=False)
    with running_cluster(tmp_path_factory.mktemp("others"), options) as started:
        theirs = definitions()
        done = started.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(theirs), timeout_s=120)
        assert done.returncode == 0, done.stderr
        with started.client() as client:
            client.post("api/v1/namespaces", json={"metadata": {"name": chart.NAMESPACE}})
            for definition in theirs:
                wait_until(lambda name=definition["metadata"]["name"]: _is_served(client, name), "a kind is served")
        yield started


@pytest.fixture
def client(cluster: RealCluster) -> Generator[httpx2.Client]:
    with cluster.client() as found:
        yield found


def _is_served(client: httpx2.Client, name: str) -> bool:
    conditions = client.get(f"{CRDS.path()}/{name}").json().get("status", {}).get("conditions", [])
    return {each["type"]: each["status"] for each in conditions}.get("Established") == "True"


def theirs(documents: list[Json]) -> list[Json]:
    return [item for item in documents if item["kind"] in KINDS]


def tried(client: httpx2.Client, item: Json) -> httpx2.Response:
    """The answer to a strict create as a dry run."""
    path = f"apis/{item['apiVersion']}/namespaces/{chart.NAMESPACE}/{KINDS[item['kind']]}"
    return client.post(path, json=item, params={"dryRun": "All", "fieldValidation": "Strict"})


def test_every_object_of_theirs_is_accepted_strictly(client: httpx2.Client) -> None:
    """The API server accepts the objects of all value sets: no unknown field, no wrong type, no warning; every kind
    is among them."""
    complaints: dict[str, str] = {}
    seen: dict[str, str] = {}
    for name in MATRIX:
        for item in theirs(rendered(name)):
            text = json.dumps(item, sort_keys=True)
            if text not in seen:
                seen[text] = item["kind"]
                answer = tried(client, item)
                if answer.status_code != 201 or "warning" in answer.headers:
                    complaints[f"{name}: {item['kind']}"] = answer.headers.get("warning") or answer.text
    assert complaints == {}
    assert set(seen.values()) == set(KINDS)


def test_a_mistake_in_one_is_noticed(client: httpx2.Client) -> None:
    """The API server refuses a misspelled field, in each kind."""
    examples = {item["kind"]: item for name in MATRIX for item in theirs(rendered(name))}
    for kind, item in examples.items():
        wrong = {**item, "spec": {**item["spec"], "misspelt": True}}
        answer = tried(client, wrong)
        assert answer.status_code == 400, (kind, answer.text)
        assert "misspelt" in answer.text


def test_a_release_with_all_of_them_is_installed_changed_and_removed(
    cluster: RealCluster, client: httpx2.Client
) -> None:
    """After a Helm upgrade the objects that the values no longer request are gone; after an uninstall all are."""

    def there() -> set[str]:
        found: set[str] = set()
        for item in client.get("apis").json()["groups"]:
            group = item["preferredVersion"]["groupVersion"]
            for kind, plural in KINDS.items():
                answer = client.get(f"apis/{group}/namespaces/{chart.NAMESPACE}/{plural}")
                found |= {kind} if answer.status_code == 200 and answer.json()["items"] else set()
        return found

    chart.install(cluster.kubeconfig, values=EVERYTHING)
    whole = {"HTTPRoute", "PodMonitor", "PrometheusRule", "ScaledObject", "TriggerAuthentication"}
    assert there() == whole
    metrics = {"podMonitor": {"enabled": False}, "serviceMonitor": {"enabled": True}, "alerts": {"enabled": True}}
    chart.upgrade(cluster.kubeconfig, values={**EVERYTHING, "metrics": metrics, "httpRoute": {"enabled": False}})
    assert there() == (whole - {"HTTPRoute", "PodMonitor"}) | {"ServiceMonitor"}
    chart.rollback(cluster.kubeconfig, revision=1)
    assert there() == whole
    chart.uninstall(cluster.kubeconfig)
    assert there() == set()
