"""Authorization of callers by a real API server: real accounts, the built-in roles, and both kinds of reviews.

A second api runs in mode `kubernetes` under the chart's account, with the rule that the chart has for it.
"""

import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body
from tests.support import chart
from tests.support.local_stack import cli_words
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
API_ROLE = f"{RBAC}/clusterroles/slipway-api"
SECOND = "api-users"
TEAMS = ("users-red", "users-blue")


class Users:
    """The second api, and accounts in two workspaces."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.url = f"http://{system.installation.addresses[SECOND]}"

    def token(self, name: str, audience: str = "slipway-api") -> str:
        """The token that `kubectl create token` requests."""
        spec = {"audiences": [audience], "expirationSeconds": 3600}
        body = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec}
        path = f"/api/v1/namespaces/{TEAMS[0]}/serviceaccounts/{name}/token"
        return str(self.system.operator.create(path, body)["status"]["token"])

    def call(self, method: str, path: str, token: str, body: Json | None = None) -> tuple[int, Any]:
        """Call the api and return (status, answer)."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.url}/api/v1{path}"
        answer = httpx2.request(method, url, json=body, headers=headers, verify=NO_TLS, trust_env=False, timeout=30)
        return answer.status_code, answer.json()

    def bind(self, name: str, role: str, where: str) -> None:
        """Create a RoleBinding of a built-in role, and return when it is effective."""
        meta = {"name": f"{name}-{role}", "namespace": where}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": TEAMS[0]}
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        self.system.operator.create(
            f"{RBAC}/namespaces/{where}/rolebindings", {"metadata": meta, "roleRef": ref, "subjects": [subject]}
        )
        token = self.token(name)
        wait_until(
            lambda: where in self.call("GET", "/me", token)[1].get("workspaces", ()), f"{role} counts in {where}"
        )


@pytest.fixture(scope="module")
def users(system: System) -> Generator[Users]:
    operator, installation = system.operator, system.installation
    before = operator.get(API_ROLE)
    values = {**installation.values, "api": {"settings": {"auth": "kubernetes", "listen": "0.0.0.0:8080"}}}
    wanted = chart.find(chart.render(values), "ClusterRole", "slipway-api")["rules"]
    reviews = [rule for rule in wanted if "subjectaccessreviews" in rule["resources"]]
    assert reviews == [
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]}
    ]
    operator.replace(API_ROLE, {**before, "rules": [*before["rules"], *reviews]})
    labels = {"slipway.dev/workspace": "true"}
    for team in TEAMS:
        operator.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team, "labels": labels}},
        )
    for name in ("ada", "vera", "eve"):
        meta = {"name": name, "namespace": TEAMS[0]}
        operator.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    try:
        installation.resume(SECOND, more={"SLIPWAY_AUTH": "kubernetes"})
        made = Users(system)
        made.bind("ada", "edit", TEAMS[0])
        made.bind("vera", "view", TEAMS[0])
        made.bind("eve", "edit", TEAMS[1])
        yield made
    finally:
        installation.halt(SECOND)
        del installation.processes[SECOND]
        now = operator.get(API_ROLE)
        operator.replace(API_ROLE, {**now, "rules": before["rules"]})
        for team in TEAMS:
            operator.delete(f"/api/v1/namespaces/{team}")


def test_the_built_in_roles_open_their_workspace(users: Users) -> None:
    """An editor of a namespace launches there, as their account; a viewer reads it; others get 404."""
    ada, vera, eve = users.token("ada"), users.token("vera"), users.token("eve")
    status, made = users.call("POST", "/allocations", ada, {**a_body(), "workspace": TEAMS[0]})
    assert status == 201, made
    id_ = made["id"]
    stored = users.system.object(id_, TEAMS[0])
    assert stored["metadata"]["annotations"]["slipway.dev/user"] == f"system:serviceaccount:{TEAMS[0]}:ada"
    assert users.call("GET", f"/allocations/{id_}", vera)[0] == 200
    assert users.call("POST", f"/allocations/{id_}/kill", vera)[0] == 403
    assert users.call("POST", "/allocations", vera, {**a_body(), "workspace": TEAMS[0]})[0] == 403
    for method, path in (("GET", ""), ("GET", "/events"), ("GET", "/pods"), ("POST", "/kill"), ("DELETE", "")):
        hidden = users.call(method, f"/allocations/{id_}{path}", eve)
        nowhere = users.call(method, f"/allocations/run-nothere-00000000{path}", eve)
        assert hidden[0] == nowhere[0] == 404
        assert hidden[1]["detail"] == nowhere[1]["detail"].replace("run-nothere-00000000", id_)
    assert users.call("POST", "/allocations", eve, {**a_body(), "workspace": TEAMS[0]})[0] == 404
    assert users.call("GET", "/allocations", eve)[1]["items"] == []
    assert [each["id"] for each in users.call("GET", "/allocations", vera)[1]["items"]] == [id_]
    assert users.call("POST", f"/allocations/{id_}/kill", ada)[0] in (200, 202)


def test_a_token_must_be_for_the_api(users: Users) -> None:
    """A missing token, one for the API server or for tasks, and a forged one are refused; only an administrator may
    change nodes."""
    good = users.token("ada")
    head, body, seal = good.split(".")
    for token in ("", users.token("ada", "https://kubernetes.default.svc"), f"{head}.{body}.{seal[::-1]}"):
        assert users.call("GET", "/allocations", token)[0] == 401
    assert users.call("GET", "/allocations", users.token("ada", "slipway"))[0] == 403
    assert users.call("POST", "/nodes/none/drain", good)[0] == 403


def test_a_removed_role_binding_has_no_effect(users: Users) -> None:
    """A removed binding has no effect after a few seconds."""
    users.bind("eve", "view", TEAMS[0])
    eve = users.token("eve")
    assert TEAMS[0] in users.call("GET", "/me", eve)[1]["workspaces"]
    users.system.operator.delete(f"{RBAC}/namespaces/{TEAMS[0]}/rolebindings/eve-view")
    wait_until(lambda: TEAMS[0] not in users.call("GET", "/me", eve)[1]["workspaces"], "the role is gone")


def test_the_command_logs_in_as_an_account(users: Users, tmp_path: Path) -> None:
    """The command gets the token from kubectl, and writes it to no file."""
    cluster = users.system.operator.cluster
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    env |= {"SLIPWAY_CONFIG_DIR": str(tmp_path), "KUBECONFIG": str(cluster.kubeconfig), "NO_COLOR": "1"}
    env["PATH"] = f"{Path(cluster.binaries.kubectl).parent}:{env['PATH']}"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(cli_words(*words), env=env, capture_output=True, text=True, timeout=60, check=False)

    done = run("login", users.url, "--kubernetes", "--account", f"{TEAMS[0]}/ada")
    assert done.returncode == 0, done.stderr
    assert f"as system:serviceaccount:{TEAMS[0]}:ada" in done.stdout
    assert f"workspaces: {TEAMS[0]}" in done.stdout
    assert run("ps").returncode == 0
    assert "eyJ" not in (tmp_path / "contexts.json").read_text(encoding="utf-8")
