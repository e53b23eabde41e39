"""The administrator of the cluster: plain calls of the Kubernetes API, and kubectl.

Owns the connection. Must not know what is installed. Code that plays a service of ours must not use it.
"""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import httpx2
import yaml

from tests.conformance.cluster.servers import RealCluster
from tests.support.cli import CommandResult
from tests.support.wait import wait_until

Json = dict[str, Any]
NOT_FOUND = 404
GROUP = "/apis/slipway.dev/v1alpha1"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Operator:
    """An administrator of one real cluster; its methods may be called from any thread."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self._http = cluster.client()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Return an object or a list."""
        return self._call("GET", path, params=dict(query) if query else None)

    def find(self, path: str) -> Json | None:
        """Return an object, or None when it does not exist."""
        try:
            return self.get(path)
        except httpx2.HTTPStatusError as error:
            if error.response.status_code == NOT_FOUND:
                return None
            raise

    def items(self, path: str, selector: str = "") -> list[Json]:
        """The objects of a list."""
        found: list[Json] = self.get(path, {"labelSelector": selector} if selector else None)["items"]
        return found

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """POST."""
        return self._call("POST", path, json=dict(body))

    def create_text(self, path: str, body: str) -> None:
        """POST a body that is JSON text already; the answer is not read."""
        with self._lock:
            self._http.post(path, content=body, headers={"Content-Type": "application/json"}).raise_for_status()

    def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        """PUT."""
        return self._call("PUT", path, json=dict(body))

    def change(self, path: str, patch: Mapping[str, Any]) -> Json:
        """A merge patch."""
        return self._call("PATCH", path, json=dict(patch), headers=MERGE)

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """DELETE; an object that is gone already is no error."""
        with contextlib.suppress(httpx2.HTTPStatusError):
            self._call("DELETE", path, json=dict(body or {}))

    def refusal(self, call: Callable[[], object]) -> tuple[int, str]:
        """Return the status and the message with which a call is refused."""
        try:
            call()
        except httpx2.HTTPStatusError as error:
            return error.response.status_code, str(error.response.json()["message"])
        raise AssertionError("the server took it")

    def objection(self, path: str, body: Mapping[str, Any]) -> str:
        """Return the message with which a POST would be refused, by a dry run; empty when it would succeed."""
        try:
            self._call("POST", path, json=dict(body), params={"dryRun": "All"})
        except httpx2.HTTPStatusError as error:
            return str(error.response.json()["message"])
        return ""

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 60.0) -> CommandResult:
        """Run the real kubectl."""
        done = self.cluster.kubectl(*words, stdin=stdin, timeout_s=timeout_s)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def apply(self, *manifests: Mapping[str, Any]) -> str:
        """Run `kubectl apply` with these objects and return its output."""
        done = self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(item) for item in manifests]))
        assert done.code == 0, done.err
        return done.out

    def _call(self, method: str, path: str, **more: Any) -> Json:
        def answered() -> list[httpx2.Response]:
            """Return the answer, or nothing while the server asks for a retry: it reloads a changed definition, and
            after its start it does not serve all definitions yet."""
            answer = self._http.request(method, path, **more)
            is_early = answer.status_code == HTTPStatus.TOO_MANY_REQUESTS and "initializing" in answer.text
            return [] if is_early or answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE else [answer]

        with self._lock:
            (answer,) = wait_until(answered, f"{method} {path} is answered")
        answer.raise_for_status()
        found: Json = answer.json()
        return found


def must(ran: CommandResult) -> str:
    """Return the output of a command, which must succeed."""
    assert ran.code == 0, ran.err or ran.out
    return ran.out


def is_over(process: "subprocess.Popen[Any]") -> bool:
    """Whether a process has ended."""
    return process.poll() is not None
