"""The doctor's findings about a cluster with the chart, while one thing after another is really broken."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway.crd import rules
from slipway.local.apiserver.core import ClusterCore
from slipway.model.times import format_time
from slipway.ops.doctor.command import ApiCondition, DoctorTarget, examine
from slipway.ops.doctor.finding import Finding, FindingState
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.contract.kube.target import serving
from tests.support import chart
from tests.support.http_stub import write_kubeconfig
from tests.support.plain_http import NO_TLS

Json = dict[str, Any]
NAMESPACE = chart.NAMESPACE
RBAC = "apis/rbac.authorization.k8s.io/v1"
GROUP = "apis/slipway.dev/v1alpha1"
CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEASES = f"apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
DEPLOYMENTS = f"apis/apps/v1/namespaces/{NAMESPACE}/deployments"
MERGE = {"Content-Type": "application/merge-patch+json"}
UPGRADE = f"helm upgrade slipway ./helm --namespace {NAMESPACE} --reset-then-reuse-values"


class OffsetClock(SystemClock):
    """This machine's clock, off by some seconds."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def now(self) -> float:
        return super().now() + self._ahead_s


class Cluster:
    """The laptop's cluster over HTTP, with the chart and everything that its services would have created."""

    def __init__(self, url: str, folder: Path) -> None:
        self.kubeconfig = write_kubeconfig(folder, url)
        self._http = httpx2.Client(base_url=url, verify=NO_TLS, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def furnish(self) -> None:
        chart.install(self.kubeconfig)
        self.change("api/v1/namespaces/default", {"metadata": {"labels": {"slipway.dev/workspace": "true"}}})
        self.create(f"{GROUP}/resourcepools", {"metadata": {"name": "default"}, "spec": {}})
        self.create(f"{GROUP}/queues", {"metadata": {"name": "default"}, "spec": {"pool": "default"}})
        self.create("api/v1/nodes", {"metadata": {"name": "n1"}})
        for name in ("slipway-feed", "slipway-scheduler-default"):
            self.create(LEASES, {"metadata": {"name": name}, "spec": a_hold()})
        for name in chart.SERVICES:
            there = self.get(f"{DEPLOYMENTS}/slipway-{name}")
            self.replace(f"{DEPLOYMENTS}/slipway-{name}/status", {**there, "status": {"availableReplicas": 2}})

    def get(self, path: str) -> Json:
        return self._call("GET", path)

    def create(self, path: str, body: Json) -> Json:
        return self._call("POST", path, json=body)

    def replace(self, path: str, body: Json) -> Json:
        return self._call("PUT", path, json=body)

    def change(self, path: str, patch: Json) -> Json:
        return self._call("PATCH", path, json=patch, headers=MERGE)

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    async def findings(self, *, ahead_s: float = 0.0, inside: ApiCondition | None = None) -> dict[str, Finding]:
        """The doctor's findings, by check."""
        place = DoctorTarget(kubeconfig=str(self.kubeconfig), inside=inside)
        found = await examine(place, OffsetClock(ahead_s), SeededRandom(1))
        assert len({each.check for each in found}) == len(found)
        return {each.check: each for each in found}

    async def failures(self, **how: Any) -> dict[str, Finding]:
        """The failed findings."""
        return {name: each for name, each in (await self.findings(**how)).items() if each.state is FindingState.FAILED}

    def _call(self, method: str, path: str, **more: Any) -> Json:
        answer = self._http.request(method, f"/{path}", **more)
        assert answer.is_success, answer.text
        return dict(answer.json())


def a_hold(ahead_s: float = 0.0) -> Json:
    """A lease whose holder's clock is that far ahead."""
    renewed = format_time(SystemClock().now() + ahead_s, "microseconds")
    return {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": renewed}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    core = ClusterCore(clock=time.time, new_uid=lambda: str(uuid.uuid4()), twins=rules.TWINS)  # noqa: TID251
    core.bootstrap()
    with serving(core) as url:
        found = Cluster(url, tmp_path)
        try:
            found.furnish()
            yield found
        finally:
            found.close()


async def test_all_is_well(cluster: Cluster) -> None:
    """No check fails on the chart's objects; each account has every right that its service needs."""
    found = await cluster.findings()
    assert [each for each in found.values() if each.state is FindingState.FAILED] == []
    assert [found[f"rights of {name}"].state for name in chart.SERVICES] == [FindingState.OK] * 4
    assert [found[f"service {name}"].state for name in chart.SERVICES] == [FindingState.OK] * 4
    assert found["clock of kubernetes"].state is FindingState.OK
    assert found["lease slipway-feed"].found.startswith("pod-1, renewed")


async def test_a_missing_definition(cluster: Cluster) -> None:
    """The finding names the definition and the command that installs it; checks that depend on it are not reported
    as failed too."""
    cluster.delete(f"{CRDS}/queues.slipway.dev")
    found = await cluster.failures()
    assert list(found) == ["crd queues.slipway.dev"]
    mend = found["crd queues.slipway.dev"].mend
    assert mend == "kubectl apply --server-side -f helm/files/crds/queues.slipway.dev.yaml"
    assert (chart.CHART / "files/crds/queues.slipway.dev.yaml").is_file()


async def test_a_definition_of_another_version(cluster: Cluster) -> None:
    """A schema of another version, and a version that is not served, are reported."""
    path = f"{CRDS}/jobs.slipway.dev"
    there = cluster.get(path)
    version = there["spec"]["versions"][0]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["priority"]
    cluster.replace(path, there)
    assert "is not the schema of this command" in (await cluster.failures())["crd jobs.slipway.dev"].found
    there = cluster.get(path)
    there["spec"]["versions"][0]["served"] = False
    cluster.replace(path, there)
    assert "does not serve v1alpha1" in (await cluster.failures())["crd jobs.slipway.dev"].found


async def test_a_rule_that_was_taken_away(cluster: Cluster) -> None:
    """The finding names the missing verb, the account, and the upgrade that restores it."""
    path = f"{RBAC}/clusterroles/slipway-podworker"
    role = cluster.get(path)
    role["rules"] = [rule for rule in role["rules"] if "pods/binding" not in rule["resources"]]
    cluster.replace(path, role)
    found = await cluster.failures()
    assert list(found) == ["rights of podworker"]
    assert found["rights of podworker"].found == "may not create pods/binding"
    assert found["rights of podworker"].mend == UPGRADE


async def test_a_role_that_is_gone(cluster: Cluster) -> None:
    """The scheduler without a role for leases, and the api without one for its Secrets (in another namespace), are
    reported."""
    for name, namespace in (("scheduler", NAMESPACE), ("api", f"{NAMESPACE}-webhooks")):
        cluster.delete(f"{RBAC}/namespaces/{namespace}/roles/slipway-{name}")
    found = await cluster.failures()
    assert set(found) == {"rights of scheduler", "rights of api"}
    assert "create leases.coordination.k8s.io" in found["rights of scheduler"].found
    assert "get secrets" in found["rights of api"].found


async def test_rights_in_some_workspaces_only(cluster: Cluster) -> None:
    """With writes limited to namespaces, an omitted workspace is a failure, and a listed one is not."""
    chart.upgrade(cluster.kubeconfig, values={"rbac": {"namespaces": ["default"]}})
    assert await cluster.failures() == {}
    cluster.create("api/v1/namespaces", {"metadata": {"name": "red", "labels": {"slipway.dev/workspace": "true"}}})
    assert set(await cluster.failures()) == {f"rights of {name}" for name in chart.SERVICES}


async def test_rights_by_mode(cluster: Cluster) -> None:
    """The api needs one more right when it asks Kubernetes for authorization."""
    inside = ApiCondition(version="0.1.0", auth="kubernetes", task_listen="0.0.0.0:8082")
    found = await cluster.failures(inside=inside)
    assert found["rights of api"].found == "may not create subjectaccessreviews.authorization.k8s.io"


async def test_a_clock_that_is_wrong(cluster: Cluster) -> None:
    """When this machine is a minute ahead, the API server's Date shows it. The leases of holders are judged by the
    server's clock."""
    found = await cluster.failures(ahead_s=60.0)
    assert list(found) == ["clock of kubernetes"]
    assert "behind this machine" in found["clock of kubernetes"].found
    assert "timedatectl" in found["clock of kubernetes"].mend


async def test_a_holder_whose_clock_is_ahead(cluster: Cluster) -> None:
    """A lease that was renewed in the future is reported."""
    cluster.change(f"{LEASES}/slipway-feed", {"spec": a_hold(14.0)})
    found = await cluster.failures()
    assert list(found) == ["clock of the watcher"]
    assert "ahead" in found["clock of the watcher"].found


async def test_a_lease_that_nobody_renews(cluster: Cluster) -> None:
    """The lease is read twice, then reported with its last holder; a missing one is reported with its service."""
    cluster.change(f"{LEASES}/slipway-feed", {"spec": a_hold(-40.0)})
    cluster.delete(f"{LEASES}/slipway-scheduler-default")
    found = await cluster.failures()
    assert set(found) == {"lease slipway-feed", "lease slipway-scheduler-default"}
    assert "by pod-1" in found["lease slipway-feed"].found
    assert "does a scheduler run" in found["lease slipway-scheduler-default"].found


async def test_nothing_to_launch_with(cluster: Cluster) -> None:
    """A missing workspace, pool or node is reported with the command that creates it."""
    cluster.change("api/v1/namespaces/default", {"metadata": {"labels": {"slipway.dev/workspace": None}}})
    cluster.delete(f"{GROUP}/resourcepools/default")
    cluster.delete("api/v1/nodes/n1")
    found = await cluster.failures()
    assert set(found) == {"pools", "queues", "workspaces", "nodes"}
    assert found["workspaces"].mend == "kubectl label namespace NAME slipway.dev/workspace=true"
    assert "of a pool that does not exist: default" in found["queues"].found


async def test_services_that_are_away_or_too_old(cluster: Cluster) -> None:
    """A service without a replica is a failure, one with some missing is a warning; versions may be one apart."""
    there = cluster.get(f"{DEPLOYMENTS}/slipway-watcher")
    cluster.replace(f"{DEPLOYMENTS}/slipway-watcher/status", {**there, "status": {"availableReplicas": 0}})
    for name, version in (("api", "0.2.0"), ("podworker", "0.3.0")):
        labels = {"app.kubernetes.io/version": version}
        cluster.change(f"{DEPLOYMENTS}/slipway-{name}", {"metadata": {"labels": labels}})
    found = await cluster.findings()
    assert found["service watcher"].state is FindingState.FAILED
    assert "logs deployment/slipway-watcher" in found["service watcher"].mend
    assert found["service api"].state is FindingState.WARNING
    assert found["service podworker"].state is FindingState.FAILED


async def test_no_cluster() -> None:
    """An unreachable cluster is one finding."""
    place = DoctorTarget(kubeconfig="/nowhere/kubeconfig")
    [found, redis] = await examine(place, SystemClock(), SeededRandom(1))
    assert (found.check, found.state) == ("kubernetes", FindingState.FAILED)
    assert "no kubeconfig at /nowhere" in found.found
    assert redis.state is FindingState.SKIPPED
