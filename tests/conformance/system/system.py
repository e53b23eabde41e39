"""The system under test as its users see it: the REST API, the command, kubectl, and the records of the nodes.

Owns the methods that the tests are written with. Every assertion about containers uses the simulated nodes' own
records, never the reports of the services.
"""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis

from slipway.cli.http import Api, Query
from slipway.errors import NotFoundError
from slipway.local.valkey import ValkeyProcess
from slipway.sdk.address import parse
from tests.conformance.kubelets import PLAY, Run
from tests.conformance.system.audit import Audit
from tests.conformance.system.deployment import Installation
from tests.conformance.system.nodes import Nodes
from tests.conformance.system.operator import GROUP, Json, Operator, must
from tests.support import patience
from tests.support.cli import CommandResult
from tests.support.wait import wait_until

T = TypeVar("T")
MANAGED = "app.kubernetes.io/managed-by=slipway"
OURS = ("pods", "configmaps", "services")
POD_GROUPS = "/apis/scheduling.k8s.io/v1beta1/podgroups"
SETTLED_S = 60.0


class System:
    """An installed Slipway on a real API server with simulated nodes."""

    def __init__(self, installation: Installation, nodes: Nodes, server: ValkeyProcess) -> None:
        self.installation = installation
        self.operator: Operator = installation.operator
        self.nodes = nodes
        self.audit = Audit(installation.operator.cluster.audit_log)
        self._server = server
        self._has_pod_groups: bool | None = None

    # --- the REST API and the command -------------------------------------------------------------------------------

    def ask(self, call: Callable[[Api], T]) -> T:
        """Return the answer of a call; retry while the API is unavailable."""
        return patience.ask(lambda: Api(parse(self.installation.url, "test"), user="tester"), call)

    def launch(self, body: Json) -> str:
        """Launch, with one idempotency key for all tries, and return the id."""
        key = uuid.uuid4().hex
        return str(self.ask(lambda api: api.launch(body, key=key))["id"])

    def get(self, path: str, query: Query | None = None) -> Any:
        """GET of the REST API."""
        return self.ask(lambda api: api.get(path, query))

    def post(self, path: str, body: Json | None = None) -> Any:
        """POST to the REST API."""
        return self.ask(lambda api: api.post(path, body))

    def view(self, id_: str) -> Json:
        """The allocation."""
        view: Json = self.get(f"/allocations/{id_}")
        return view

    def wait_for(self, id_: str, *phases: str, timeout_s: float = 40.0) -> Json:
        """Wait until the allocation is in one of these phases and return it."""
        return self.wait_until(id_, lambda view: view["phase"] in phases, f"in {phases}", timeout_s=timeout_s)

    def wait_until(self, id_: str, check: Callable[[Json], bool], what: str, *, timeout_s: float = 40.0) -> Json:
        """Wait until the allocation meets the condition and return it."""
        last: Json = {}

        def reached() -> Json | None:
            nonlocal last
            last = self.view(id_)
            return last if check(last) else None

        try:
            found = wait_until(reached, f"{id_} {what}", timeout_s=timeout_s)
        except AssertionError:
            raise AssertionError(f"{id_} is not {what} after {timeout_s:.0f} s but {json.dumps(last)}") from None
        assert found is not None
        return found

    def ended(self, id_: str, result: str, *, timeout_s: float = 40.0) -> Json:
        """Wait until the allocation has ended, with this result, and return it."""
        view = self.wait_for(id_, "Terminated", timeout_s=timeout_s)
        assert view["result"] == result, json.dumps(view)
        return view

    def events(self, id_: str) -> list[Json]:
        """Every event of an allocation."""
        items: list[Json] = self.get(f"/allocations/{id_}/events")["items"]
        return items

    def story(self, id_: str) -> list[str]:
        """The events of the allocation, in one word each."""
        return [item["type"].rpartition(".")[2] for item in self.events(id_)]

    def cli(self, *words: str, timeout_s: float = 60.0) -> CommandResult:
        """Run `slipway ...` as a process."""
        env = {**os.environ, "SLIPWAY_SERVER": self.installation.url, "NO_COLOR": "1"}
        argv = [sys.executable, "-m", "slipway.cli.main", *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    # --- Kubernetes -------------------------------------------------------------------------------------------------

    def object(self, id_: str, namespace: str = "default") -> Json:
        """The Allocation itself."""
        name = id_.rsplit("-", 1)[0]
        return self.operator.get(f"{GROUP}/namespaces/{namespace}/allocations/{name}")

    def applied_id(self, name: str, namespace: str = "default") -> str:
        """The id of an Allocation that was applied by name."""
        found = self.operator.get(f"{GROUP}/namespaces/{namespace}/allocations/{name}")
        return f"{name}-{found['metadata']['uid'][:8]}"

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 60.0) -> str:
        """Run kubectl and return its output; it must succeed."""
        return must(self.operator.kubectl(*words, stdin=stdin, timeout_s=timeout_s))

    def pods(self, id_: str) -> list[Json]:
        """The pods of an allocation, by name."""
        found = self.operator.items("/api/v1/pods", f"slipway.dev/allocation={id_}")
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def left(self, uid: str = "") -> list[str]:
        """The objects that we created, besides custom resources, for one allocation or for all."""
        selector = MANAGED + (f",slipway.dev/allocation-uid={uid}" if uid else "")
        return [
            f"{plural} {item['metadata']['namespace']}/{item['metadata']['name']}"
            for plural in OURS
            for item in self.operator.items(f"/api/v1/{plural}", selector)
        ] + [f"podgroups {item['metadata']['name']}" for item in self.pod_groups(selector)]

    def pod_groups(self, selector: str = MANAGED) -> list[Json]:
        """The groups of pods that we created; none when the API server serves no groups."""
        if self._has_pod_groups is None:
            served = self.operator.find("/apis/scheduling.k8s.io/v1beta1")
            self._has_pod_groups = any(item["name"] == "podgroups" for item in (served or {}).get("resources", ()))
        return self.operator.items(POD_GROUPS, selector) if self._has_pod_groups else []

    def nothing_left(self, uid: str = "") -> None:
        """Wait until no object that we created is left."""
        try:
            wait_until(lambda: not self.left(uid), "no pod, ConfigMap or Service of ours", timeout_s=SETTLED_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {self.left(uid)}") from None

    def settle(self) -> None:
        """End every running allocation, and wait until nothing is left."""
        for item in self.operator.items(f"{GROUP}/allocations"):
            if item["status"]["phase"] != "Terminated":
                path = f"{GROUP}/namespaces/{item['metadata']['namespace']}/allocations/{item['metadata']['name']}"
                self.operator.change(path, {"spec": {"desired": "Stopped"}})
        running = f"{GROUP}/allocations?fieldSelector=status.phase!=Terminated"
        wait_until(lambda: not self.operator.items(running), "every allocation has ended", timeout_s=SETTLED_S)
        self.nothing_left()

    def runs(self, id_: str) -> list[Run]:
        """Every start of a container of an allocation, from the nodes' records."""
        return self.nodes.runs(id_)

    def started_once(self, id_: str, ranks: int, *, attempt: int = 1) -> None:
        """Check that each rank of that attempt was started exactly once."""
        starts = sorted(run.rank for run in self.runs(id_) if run.attempt == attempt)
        assert starts == list(range(ranks)), self.runs(id_)

    # --- Redis ------------------------------------------------------------------------------------------------------

    @contextmanager
    def redis(self) -> Generator[Any]:
        """A connection to the Redis server."""
        client: Any = redis.Redis.from_url(self._server.url, decode_responses=True)  # pyright: ignore[reportUnknownMemberType]
        try:
            yield client
        finally:
            client.close()

    def stop_redis(self) -> None:
        """End the Redis server."""
        asyncio.run(self._server.stop())

    def start_redis(self) -> None:
        """Start the Redis server again, empty."""
        asyncio.run(self._server.start())

    def is_gone(self, id_: str) -> bool:
        """Whether the API no longer knows the allocation."""
        try:
            self.view(id_)
        except NotFoundError:
            return True
        return False


def play(**script: Any) -> Json:
    """The annotations of a pod that follows this script (see tests/conformance/kubelets/script.py)."""
    return {PLAY: json.dumps(script)}


def a_body(kind: str = "command", ranks: int = 1, script: Json | None = None, **fields: Any) -> Json:
    """A launch whose ranks follow the script."""
    container = {"name": "main", "image": "example.org/work:1", "command": ["work"]}
    return {
        "kind": kind,
        "template": {
            "metadata": {"annotations": play(**(script or {}))},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
        },
        "ranks": [{"name": "worker", "count": ranks, "resources": {"cpu": "100m", "memory": "64Mi"}}],
        **fields,
    }


def an_allocation(
    name: str,
    kind: str = "command",
    *,
    ranks: int = 1,
    script: Json | None = None,
    namespace: str = "default",
    **spec: Any,
) -> Json:
    """An Allocation as a user writes it by hand."""
    body = a_body(kind, ranks, script, **spec)
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name, "namespace": namespace},
        "spec": body,
    }
