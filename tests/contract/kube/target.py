"""The API server that the suite tests: the local cluster's over a real socket, or the one that a kubeconfig names.

`SLIPWAY_CONTRACT_KUBECONFIG` names a kubeconfig of a throw-away server. `SLIPWAY_CONTRACT_CONTROLLERS=1` states that a
controller manager runs beside it; without one, tests of rules that controllers enforce are skipped.
"""

import base64
import os
import ssl
import tempfile
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import yaml

from slipway.crd import rules
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import create_app
from tests.contract.kube.samples import TWINS

_ADMIN = "administrator"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server as its administrator. `core` is set for the local server only."""

    url: str
    headers: dict[str, str] = {}
    tls: Any = None
    ca_only: Any = None
    has_controllers: bool = True
    core: Any = None

    def as_bearer(self, token: str) -> "Target":
        """The same server for a client with nothing but a token; an empty token means no credentials."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return msgspec.structs.replace(self, headers=headers, tls=self.ca_only)


@contextmanager
def running_target() -> Generator[Target]:
    kubeconfig = os.environ.get("SLIPWAY_CONTRACT_KUBECONFIG", "")
    if kubeconfig:
        yield target_of(Path(kubeconfig))
        return
    core = ClusterCore(clock=time.time, new_uid=lambda: str(uuid.uuid4()), twins={**TWINS, **rules.TWINS})  # noqa: TID251
    core.serve_pod_groups()
    core.bootstrap()
    with serving(core, authorization="rbac", token=_ADMIN) as url:
        yield Target(url=url, headers={"authorization": f"Bearer {_ADMIN}"}, core=core)


@contextmanager
def serving(core: ClusterCore, certificate: Path | None = None, **options: Any) -> Generator[str]:
    """Serve a core on a free port of the loopback, from a thread with its own event loop; yield the URL.

    certificate: a file with certificate and key, to serve over TLS.
    """
    app = create_app(core, **options)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="warning",
        access_log=False,
        date_header=False,
        ssl_certfile=certificate,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="local-apiserver")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            threading.Event().wait(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    finally:
        app.state.server.stop_soon()
        server.should_exit = True
        thread.join(timeout=10)


def target_of(path: Path) -> Target:
    """The server of a kubeconfig, with its user's credentials."""
    config = yaml.safe_load(path.read_text())
    context = next(each["context"] for each in config["contexts"] if each["name"] == config["current-context"])
    cluster = next(each["cluster"] for each in config["clusters"] if each["name"] == context["cluster"])
    user = next(each["user"] for each in config["users"] if each["name"] == context["user"])
    headers = {"authorization": f"Bearer {user['token']}"} if user.get("token") else {}
    has_controllers = os.environ.get("SLIPWAY_CONTRACT_CONTROLLERS") == "1"
    is_https = str(cluster["server"]).startswith("https")
    tls, ca_only = (_tls(cluster, user), _tls(cluster, {})) if is_https else (None, None)
    return Target(url=cluster["server"], headers=headers, tls=tls, ca_only=ca_only, has_controllers=has_controllers)


def _tls(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority = _file(cluster, "certificate-authority")
    if authority:
        context.load_verify_locations(authority)
    elif cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _file(user, "client-certificate")
    if certificate:
        context.load_cert_chain(certificate, _file(user, "client-key"))
    return context


def _file(section: dict[str, Any], name: str) -> str:
    if section.get(name):
        return str(section[name])
    encoded = section.get(f"{name}-data")
    if not encoded:
        return ""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(base64.b64decode(encoded))
    return file.name
