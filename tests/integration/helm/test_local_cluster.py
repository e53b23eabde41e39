"""A real `helm install` on the laptop's cluster: installed, upgraded with its definitions, and uninstalled."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway.crd import rules
from slipway.local.apiserver.core import ClusterCore
from tests.contract.kube.target import serving
from tests.support import chart
from tests.support.http_stub import write_kubeconfig
from tests.support.plain_http import NO_TLS

Json = dict[str, Any]

DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEPLOYMENTS = f"apis/apps/v1/namespaces/{chart.NAMESPACE}/deployments"


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a new cluster in memory."""
    core = ClusterCore(clock=time.time, new_uid=lambda: str(uuid.uuid4()), twins=rules.TWINS)  # noqa: TID251
    core.bootstrap()
    with serving(core) as found:
        yield found


def _names(url: str, path: str) -> set[str]:
    answer = httpx2.get(f"{url}/{path}", verify=NO_TLS, trust_env=False)
    assert answer.status_code == 200, answer.text
    return {item["metadata"]["name"] for item in answer.json()["items"]}


def test_a_release_lives_its_life(url: str, tmp_path: Path) -> None:
    """The local cluster accepts every object of the chart as a real cluster does; an upgrade changes only what
    differs."""
    kubeconfig = write_kubeconfig(tmp_path, url)
    assert chart.install(kubeconfig)["status"] == "deployed"
    services = {f"slipway-{name}" for name in (*chart.SERVICES, "valkey")}
    assert _names(url, DEPLOYMENTS) == services
    assert chart.upgrade(kubeconfig, values={"valkey": {"enabled": False}})["revision"] == 2
    assert _names(url, DEPLOYMENTS) == services - {"slipway-valkey"}
    chart.rollback(kubeconfig, revision=1)
    assert _names(url, DEPLOYMENTS) == services
    chart.uninstall(kubeconfig)
    assert _names(url, DEPLOYMENTS) == set()
    assert "allocations.slipway.dev" in _names(url, DEFINITIONS)
