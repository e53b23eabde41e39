"""A real JupyterHub, with its real proxy, whose single-user servers are launches on the whole system."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_stack import RunningStack
from tests.support.ports import free_port
from tests.support.wait import wait_until

Json = dict[str, Any]
TOKEN = "hub-token-of-this-test"
BIN = Path(sys.executable).parent
START_S = 90.0
CONFIG = """
c.JupyterHub.spawner_class = "slipway.adapters.jupyterhub.SlipwaySpawner"
c.SlipwaySpawner.server_url = {url!r}
c.SlipwaySpawner.token = {api_token!r}
c.SlipwaySpawner.launch = {{"cpus": 1, "labels": {{"team": "vision"}}}}
c.SlipwaySpawner.allowed_options = ["cpus"]
c.SlipwaySpawner.port = {server_port}
c.Spawner.cmd = [{singleuser!r}, "--allow-root", "--ServerApp.root_dir={folder}"]
c.Spawner.start_timeout = 60
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.allowed_users = {{"ada"}}
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie"
c.JupyterHub.cleanup_servers = False
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.pid_file = "{folder}/proxy.pid"
c.JupyterHub.services = [{{"name": "tests", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "tests", "scopes": ["admin:users", "admin:servers", "access:servers", "tokens"], "services": ["tests"]}}
]
"""


class Hub:
    """A running hub, and its REST API."""

    def __init__(self, stack: RunningStack, folder: Path) -> None:
        ports = {name: free_port() for name in ("port", "hub_port", "proxy_port", "server_port")}
        self.url = f"http://127.0.0.1:{ports['port']}"
        self.folder = folder
        text = CONFIG.format(
            url=stack.url,
            api_token=stack.stack.token,
            singleuser=str(BIN / "jupyterhub-singleuser"),
            proxy=str(BIN / "configurable-http-proxy"),
            folder=folder,
            token=TOKEN,
            **ports,
        )
        (folder / "config.py").write_text(text, encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The log so far."""
        return (self.folder / "log").read_text("utf-8", errors="replace")

    def start(self) -> None:
        """Start the hub, and wait until it answers."""
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        argv = [str(BIN / "jupyterhub"), "-f", str(self.folder / "config.py")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, cwd=self.folder, env=env, stdout=log, stderr=log)
        wait_until(lambda: self.call("GET", "/hub/api/")[0] == 200, lambda: self.log[-3000:], timeout_s=START_S)

    def stop(self) -> None:
        """Stop the hub; its servers run on."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Call the API and return (status, answer); 0 when nothing answers."""
        content = json.dumps(body).encode() if body is not None else b"" if method != "GET" else None
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith(b"{") else {}
        except urllib.error.HTTPError as error:
            return error.code, {"text": error.read().decode(errors="replace")}
        except OSError:
            return 0, {}

    def server(self) -> Json:
        """The server of ada as the hub knows it; empty when there is none."""
        found: Json = self.call("GET", "/hub/api/users/ada")[1].get("servers", {}).get("", {})
        return found


@pytest.fixture
def hub(stack: RunningStack, tmp_path: Path) -> Generator[Hub]:
    """A hub whose user is ada."""
    tmp_path.chmod(0o777)
    made = Hub(stack, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def launched(stack: RunningStack) -> list[Json]:
    """The allocations that the hub has launched and that have not ended."""
    answer = stack.ask(
        lambda api: api.get("/allocations", query={"active": "true", "labelSelector": "jupyterhub-hub=hub"})
    )
    items: list[Json] = answer["items"]
    return items


def test_a_server_is_a_launch_until_the_hub_ends_it(hub: Hub, stack: RunningStack) -> None:
    """The server is reached through the proxy, outlives the hub, contains no readable token, and is ended by the
    hub."""
    assert hub.call("POST", "/hub/api/users/ada/server", {"cpus": 2})[0] in (201, 202)
    wait_until(lambda: hub.server().get("ready"), lambda: hub.log[-3000:], timeout_s=START_S)
    [view] = launched(stack)
    assert (view["phase"], view["labels"]["team"]) == ("Running", "vision")
    assert view["labels"]["jupyterhub-user"].startswith("ada.")
    assert hub.server()["state"] == {"allocation_id": view["id"]}
    assert json.dumps(view["spec"]["ranks"][0]["resources"]).count('"cpu": "2"') >= 1
    assert "JUPYTERHUB_API_TOKEN" in view["spec"]["secretVariables"]
    assert "JUPYTERHUB_API_TOKEN" not in view["spec"].get("env", {})
    status, answer = hub.call("GET", "/user/ada/api/status")
    assert (status, "started" in answer) == (200, True), answer
    hub.stop()
    hub.start()
    assert wait_until(lambda: hub.server().get("ready"), lambda: hub.log[-3000:], timeout_s=START_S)
    assert hub.server()["state"] == {"allocation_id": view["id"]}
    assert hub.call("GET", "/user/ada/api/status")[0] == 200
    assert hub.call("DELETE", "/hub/api/users/ada/server")[0] in (202, 204)
    wait_until(lambda: launched(stack) == [], lambda: hub.log[-3000:], timeout_s=START_S)
    assert stack.view(view["id"])["result"] == "Canceled"


def test_an_option_that_users_may_not_choose_is_refused(hub: Hub, stack: RunningStack) -> None:
    """Nothing is launched, and the hub's log names the option."""
    hub.call("POST", "/hub/api/users/ada/server", {"image": "evil"})
    wait_until(lambda: "allowed_options does not name it" in hub.log, lambda: hub.log[-3000:], timeout_s=START_S)
    assert launched(stack) == []


def test_a_server_that_is_killed_outside_is_gone_for_the_hub(hub: Hub, stack: RunningStack) -> None:
    """The hub notices it at its next check, and starts another one on request."""
    hub.call("POST", "/hub/api/users/ada/server", {})
    wait_until(lambda: hub.server().get("ready"), lambda: hub.log[-3000:], timeout_s=START_S)
    [first] = launched(stack)
    assert stack.command("kill", first["id"], "--wait").code == 0
    # The hub checks only every half a minute; asked to end the server, it finds that there is none.
    hub.call("DELETE", "/hub/api/users/ada/server")
    wait_until(lambda: hub.server() == {}, lambda: hub.log[-3000:], timeout_s=START_S)
    assert hub.call("POST", "/hub/api/users/ada/server", {})[0] in (201, 202)
    wait_until(lambda: hub.server().get("ready"), lambda: hub.log[-3000:], timeout_s=START_S)
    [second] = launched(stack)
    assert second["id"] != first["id"]
    hub.call("DELETE", "/hub/api/users/ada/server")
    wait_until(lambda: launched(stack) == [], lambda: hub.log[-3000:], timeout_s=START_S)
