"""The accounts' tokens: renewed in place, replaced, and read as a pod has them mounted."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slipway.errors import DeniedError
from slipway.kube import client
from slipway.kube.resources import CRDS, PODS
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.conformance.system.system import System, a_body
from tests.support import chart

ACCOUNTS = "/api/v1/namespaces/slipway-system/serviceaccounts"


@pytest.mark.parametrize("component", ["podworker", "watcher"])
def test_a_token_is_replaced_under_a_running_service(system: System, component: str) -> None:
    """A new account invalidates the old token (401): the service reads the new token and works on."""
    name = system.installation.account(component).name
    account = system.operator.get(f"{ACCOUNTS}/{name}")
    meta = {key: account["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    pid = system.installation.processes[component].pid
    system.operator.delete(f"{ACCOUNTS}/{name}")
    system.operator.create(ACCOUNTS, {"metadata": meta, "automountServiceAccountToken": False})
    system.installation.credentials(component).renew()
    id_ = system.launch(a_body(script={"runsS": 0.1}))
    system.ended(id_, "Succeeded", timeout_s=60)
    assert system.installation.processes[component].pid == pid


def test_as_a_pod_finds_it(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kubeconfig the client uses the environment, the token and the authority of a pod; it has only the
    rights of its role."""
    library = client._library()  # pyright: ignore[reportPrivateUsage] - the library knows no other place to look
    names = library._load_in_cluster.__globals__  # pyright: ignore[reportPrivateUsage]
    token = tmp_path / "token"
    token.write_text(system.installation.credentials("api").renew() + "\n")
    monkeypatch.setitem(names, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setitem(names, "SERVICE_CERT_FILENAME", str(system.operator.cluster.ca))
    at = urlsplit(system.operator.cluster.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(at.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(at.port))

    async def ask() -> None:
        async with client.connect(None, clock=SystemClock(), random=SeededRandom(1)) as kube:
            await kube.list(PODS)
            with pytest.raises(DeniedError):
                await kube.list(CRDS)

    with system.audit.excluded():
        asyncio.run(ask())


def test_each_account_has_only_the_rights_of_its_service(system: System) -> None:
    """Each account has only the rights of its service: none can read secrets, and the api cannot write a status."""
    refused = [("get", "", "secrets", ""), ("delete", "", "nodes", ""), ("*", "*", "*", "")]
    for component in (*chart.SERVICES, chart.SETUP):
        account = system.installation.account(component)
        own = [("create", "", "pods", ""), ("update", "slipway.dev", "allocations", "status")]
        for words in [*refused, *(own if component in ("api", chart.SETUP) else [])]:
            verb, group, resource, subresource = words
            asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
            spec = {"user": account.user, "resourceAttributes": asked}
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
            answer = system.operator.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
            assert answer["status"]["allowed"] is False, (account.name, words)


def test_the_environment_is_the_charts(system: System) -> None:
    """The processes run with the installed environment, except for where they listen and where their files are."""
    for component in chart.SERVICES:
        installed = system.installation.rendered(component)
        used = system.installation.processes[component].env
        differs = {name for name in installed if used.get(name) != installed[name]}
        places = {"SLIPWAY_LISTEN", "SLIPWAY_HEALTH_LISTEN", "SLIPWAY_TASK_LISTEN", "SLIPWAY_FEED_KEY_DIR"}
        assert differs <= places, component
        ours = {name for name in used if name.startswith("SLIPWAY_")}
        assert ours == {name for name in installed if name.startswith("SLIPWAY_")}
        assert "tokenFile" in Path(used["KUBECONFIG"]).read_text(encoding="utf-8")
    system.installation.await_ready()
