"""A release in its whole life, under load: installed, upgraded to a next version, rolled back, uninstalled.

Kubernetes' own controllers create, replace and probe its pods, which run as processes; Helm is the real one. The
next version has its own definitions with more fields, and its own programs, which write those fields.
"""

import contextlib
import shutil
import threading
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from slipway.api.webhooks.hook import Config, Webhook, to_secret
from slipway.local.valkey import ServerOptions
from tests.chaos.upgrade import ASKED, OBSERVED, Copy, copy_this, make_next
from tests.conformance.cluster.servers import RealCluster, running_cluster
from tests.conformance.system.conftest import QUICK
from tests.conformance.system.operator import GROUP, Json, Operator
from tests.conformance.system.pods import addresses, await_rolled_out, running_pods, with_version
from tests.conformance.wanted import require_own_cluster
from tests.support import chart
from tests.support.gangs import starts_of
from tests.support.plain_http import NO_TLS
from tests.support.ports import free_port
from tests.support.redis import running_server
from tests.support.wait import wait_until
from tools.release.version import version as own_version

ALLOCATIONS = f"{GROUP}/namespaces/default/allocations"
OURS = "app.kubernetes.io/managed-by=slipway"
MARK = 'echo started >> "$MARKS/$SLIPWAY_ALLOCATION_ID.$SLIPWAY_ATTEMPT.$RANK.$POD_UID"'
BRIEF, UNTIL_TOLD = f"{MARK}; sleep 0.5", f'{MARK}; while [ ! -e "$MARKS/go" ]; do sleep 0.1; done'
RANKS = 2
EVERY_S = 0.4
AT_ONCE_MAX = 6
ENDED_S = 120.0


class ReleaseCluster:
    """One cluster with nodes that run processes, and one release on it."""

    def __init__(self, operator: Operator, redis_url: str, marks: Path, following: Copy, folder: Path) -> None:
        self.operator = operator
        self.kubeconfig = operator.cluster.kubeconfig
        self.redis_url = redis_url
        self.marks = marks
        self.newer_chart = _chart_of(following, folder / "chart")
        more = {"externalRedis": {"url": redis_url}, "audit": {"enabled": False}}
        self.values = with_version({**QUICK, **more}, "this")

    def install(self, **values: Any) -> None:
        chart.install(self.kubeconfig, values={**self.values, **values})
        self.settle()

    @property
    def is_installed(self) -> bool:
        return bool(self.operator.items(f"/api/v1/namespaces/{chart.NAMESPACE}/secrets", "owner=helm"))

    def settle(self) -> None:
        """Wait until the pods are those of the release and the setup has run."""
        await_rolled_out(self.operator)
        jobs = f"/apis/batch/v1/namespaces/{chart.NAMESPACE}/jobs"
        wait_until(
            lambda: all(job["status"].get("succeeded") for job in self.operator.items(jobs)),
            "the setup has run",
            timeout_s=60,
        )

    def apply(self, name: str, script: str = BRIEF) -> str:
        """Apply an Allocation and return its id."""
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": name}}
        made = self.operator.create(ALLOCATIONS, {**body, "spec": self.spec(script)})
        return f"{name}-{made['metadata']['uid'][:8]}"

    def post(self, name: str, key: str) -> str | None:
        """Launch over REST, at any ready pod; return None when no pod answered successfully."""
        headers = {"Idempotency-Key": key, "X-Slipway-User": "tester"}
        for address in addresses(self.operator, "api"):
            with contextlib.suppress(httpx2.HTTPError):
                url = f"http://{address}:8080/api/v1/allocations"
                answer = httpx2.post(
                    url, json={"name": name, **self.spec()}, headers=headers, verify=NO_TLS, trust_env=False, timeout=10
                )
                if answer.status_code in (200, 201):
                    return str(answer.json()["id"])
                assert answer.status_code in (409, 429, 503), answer.text
        return None

    def spec(self, script: str = BRIEF) -> Json:
        env: list[Json] = [
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "MARKS", "value": str(self.marks)},
        ]
        container = {"name": "main", "image": "local", "command": ["sh", "-c", script], "env": env}
        return {
            "kind": "training",
            "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
            "ranks": [{"name": "worker", "count": RANKS, "resources": {"cpu": "10m", "memory": "16Mi"}}],
        }

    def live(self) -> list[Json]:
        return [item for item in self.operator.items(ALLOCATIONS) if item["status"].get("phase") != "Terminated"]

    def left(self) -> list[str]:
        """The objects of ours that exist beside allocations."""
        return [
            f"{plural}/{item['metadata']['name']}"
            for plural in ("pods", "configmaps", "services")
            for item in self.operator.items(f"/api/v1/{plural}", OURS)
            if item["metadata"]["labels"].get("slipway.dev/allocation-uid")
        ]

    def await_running(self, id_: str) -> None:
        wait_until(lambda: len(starts_of(self.marks, id_)) == RANKS, f"every rank of {id_} has begun", timeout_s=60)

    def check_ended(self, name: str, id_: str) -> None:
        """Check that it succeeded, that each rank started once in all attempts, and that its stream has every event
        once and in order.

        An allocation that one version has admitted and the other would launch is placed again when they read its spec
        differently (docs/reliability.md): the attempt before has started no rank.
        """
        status = self.operator.get(f"{ALLOCATIONS}/{name}")["status"]
        assert (status["phase"], status["result"]) == ("Terminated", "Succeeded"), status
        starts = starts_of(self.marks, id_)
        assert sorted(start.rsplit(".", 1)[0] for start in starts) == [f"{status['attempt']}.{n}" for n in range(RANKS)]
        assert set(starts.values()) == {1}, (name, starts)
        client: Any = redis.Redis.from_url(self.redis_url, decode_responses=True)  # pyright: ignore[reportUnknownMemberType]
        with contextlib.closing(client):
            entries: Any = client.xrange(f"slipway:alloc:{{{id_}}}")
        told = [int(entry_id.rpartition("-")[2]) for entry_id, _ in entries]
        assert told == list(range(1, status["seq"] + 1)), (name, told)


class Load:
    """Launches without end, half of them applied and half over REST, until `stop`."""

    def __init__(self, release_cluster: ReleaseCluster) -> None:
        self.release_cluster = release_cluster
        self.ids: dict[str, str] = {}
        """{name: id} of all accepted launches"""
        self.errors: list[BaseException] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def more(self, count: int = 6) -> None:
        """Wait until that many more launches were accepted."""
        before = len(self.ids)
        wait_until(
            lambda: len(self.ids) >= before + count or self.errors, f"{count} more are accepted", timeout_s=ENDED_S
        )
        assert self.errors == []

    def _run(self) -> None:
        number = 0
        try:
            while not self._enough.wait(EVERY_S):
                if len(self.release_cluster.live()) >= AT_ONCE_MAX:
                    continue
                number += 1
                name = f"load-{number}"
                self.ids[name] = self.release_cluster.apply(name) if number % 2 else self._posted(name)
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            self.errors.append(error)

    def _posted(self, name: str) -> str:
        """Launch once, with one idempotency key for all tries."""
        key = uuid.uuid4().hex
        return wait_until(lambda: self.release_cluster.post(name, key), f"{name} is launched", timeout_s=60) or ""


def _chart_of(version: Copy, folder: Path) -> Path:
    """The chart of that version, with its definitions and its number."""
    shutil.copytree(chart.CHART, folder)
    for file in version.definitions:
        shutil.copy(file, folder / "files" / "crds" / file.name)
    about = folder / "Chart.yaml"
    about.write_text(about.read_text("utf-8").replace(f"ersion: {own_version()}", "ersion: 99.2.0"), "utf-8")
    return folder


@pytest.fixture(scope="module")
def release_cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[ReleaseCluster]:
    """A control plane of its own, because only one release may own the definitions."""
    require_own_cluster()
    folder = tmp_path_factory.mktemp("release")
    marks = folder / "marks"
    marks.mkdir()
    this, following = copy_this(folder / "this"), make_next(folder / "next")
    with contextlib.ExitStack() as stays:
        cluster: RealCluster = stays.enter_context(running_cluster(folder / "cluster"))
        server = stays.enter_context(running_server("valkey", ServerOptions(port=free_port())))
        stays.enter_context(running_pods(cluster, folder / "pods", {"this": this.path, "next": following.path}))
        operator = Operator(cluster)
        stays.callback(operator.close)
        yield ReleaseCluster(operator, server.url, marks, following, folder)


def _versions(release_cluster: ReleaseCluster) -> set[str]:
    """The versions that the pods of the services report."""
    pods = release_cluster.operator.items(
        f"/api/v1/namespaces/{chart.NAMESPACE}/pods", "app.kubernetes.io/part-of=slipway"
    )
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/version"] for pod in pods if pod["status"]["phase"] == "Running"
    }


def _is_of_the_next(release_cluster: ReleaseCluster, name: str) -> bool:
    """Whether an api of the next version launched it and a watcher of the next version observed it."""
    found = release_cluster.operator.get(f"{ALLOCATIONS}/{name}")
    return ASKED in found["spec"] and OBSERVED in found["status"]


def test_an_upgrade_and_a_rollback_under_load_lose_and_double_nothing(release_cluster: ReleaseCluster) -> None:
    """Every accepted launch, by either version, succeeds, with every rank run once and with all its events.

    Fields of the next version are gone from reads once its definitions are.
    """
    if release_cluster.is_installed:
        chart.uninstall(release_cluster.kubeconfig)
    release_cluster.install()
    with Load(release_cluster) as load:
        load.more()
        values = with_version({}, "next")
        kept = chart.reset_then_reuse(release_cluster.kubeconfig, values)
        assert kept["externalRedis"] == {"url": release_cluster.redis_url}
        chart.upgrade(release_cluster.kubeconfig, values=kept, chart=release_cluster.newer_chart)
        release_cluster.settle()
        wait_until(lambda: _versions(release_cluster) == {"99.2.0"}, "the pods of the other version are gone")
        before = set(load.ids)
        load.more()
        wait_until(
            lambda: any(_is_of_the_next(release_cluster, name) for name in set(load.ids) - before),
            "the next version wrote",
        )
        chart.rollback(release_cluster.kubeconfig)
        release_cluster.settle()
        wait_until(lambda: _versions(release_cluster) == {own_version()}, "the pods of the other version are gone")
        load.more()
    assert load.errors == []
    wait_until(lambda: not release_cluster.live(), "every launch has ended", timeout_s=ENDED_S)
    wait_until(lambda: not release_cluster.left(), f"nothing is left: {release_cluster.left()}", timeout_s=60)
    names = {item["metadata"]["name"] for item in release_cluster.operator.items(ALLOCATIONS)}
    assert names == set(load.ids)
    for name, id_ in load.ids.items():
        release_cluster.check_ended(name, id_)
    assert [item for item in release_cluster.operator.items(ALLOCATIONS) if ASKED in item["spec"]] == []


def test_webhooks_of_an_older_release_move_at_an_upgrade(release_cluster: ReleaseCluster) -> None:
    """A hook that exists only while it runs moves them from the release's namespace into the one of webhooks; it
    moves them once."""
    if not release_cluster.is_installed:
        release_cluster.install()
    webhook = to_secret(Webhook(name="older", config=Config(url="https://receiver.example/"), key=b"k" * 32), "")
    webhook["metadata"].pop("namespace")
    old, own = (f"/api/v1/namespaces/{name}/secrets" for name in (chart.NAMESPACE, f"{chart.NAMESPACE}-webhooks"))
    created = release_cluster.operator.create(old, webhook)["metadata"]["creationTimestamp"]
    chart.upgrade(release_cluster.kubeconfig, values=release_cluster.values)
    release_cluster.settle()
    moved = release_cluster.operator.get(f"{own}/slipway-webhook-older")
    assert moved["data"] == webhook["data"]
    assert moved["metadata"]["annotations"]["slipway.dev/created"] == created
    assert (
        release_cluster.operator.find(f"/api/v1/namespaces/{chart.NAMESPACE}/serviceaccounts/slipway-webhooks") is None
    )
    assert release_cluster.operator.find("/apis/rbac.authorization.k8s.io/v1/clusterroles/slipway-webhooks") is None
    release_cluster.operator.delete(f"{own}/slipway-webhook-older")
    chart.upgrade(release_cluster.kubeconfig, values=release_cluster.values)
    release_cluster.settle()
    assert release_cluster.operator.find(f"{own}/slipway-webhook-older") is None
    release_cluster.operator.delete(f"{old}/slipway-webhook-older")


def test_an_uninstall_with_removal_removes_every_allocation_first(release_cluster: ReleaseCluster) -> None:
    """The Job that Helm runs before the uninstall has its own account and pod: no rank, allocation or finalizer is
    left."""
    values = {**release_cluster.values, "uninstall": {"removeAllocations": True}}
    if release_cluster.is_installed:
        chart.upgrade(release_cluster.kubeconfig, values=values)
        release_cluster.settle()
    else:
        release_cluster.install(uninstall={"removeAllocations": True})
    ids = {name: release_cluster.apply(name, UNTIL_TOLD) for name in ("runs-on", "runs-too")}
    for id_ in ids.values():
        release_cluster.await_running(id_)
    chart.uninstall(release_cluster.kubeconfig)
    assert release_cluster.operator.items(ALLOCATIONS) == []
    assert release_cluster.left() == []
    accounts = release_cluster.operator.items(f"/api/v1/namespaces/{chart.NAMESPACE}/serviceaccounts")
    assert [each["metadata"]["name"] for each in accounts if "slipway" in each["metadata"]["name"]] == []


def test_running_work_survives_an_uninstall_and_is_adopted_by_the_next_install(release_cluster: ReleaseCluster) -> None:
    """An uninstall touches no allocation: ranks run on, and the next install records their ends."""
    (release_cluster.marks / "go").unlink(missing_ok=True)
    if not release_cluster.is_installed:
        release_cluster.install()
    id_ = release_cluster.apply("outlives", UNTIL_TOLD)
    release_cluster.await_running(id_)
    wait_until(
        lambda: release_cluster.operator.get(f"{ALLOCATIONS}/outlives")["status"]["phase"] == "Running",
        "it is seen to run",
    )
    chart.uninstall(release_cluster.kubeconfig)
    pods = f"/api/v1/namespaces/{chart.NAMESPACE}/pods"
    wait_until(lambda: not release_cluster.operator.items(pods), "our pods are gone", timeout_s=60)
    phases = [pod["status"]["phase"] for pod in release_cluster.operator.items("/api/v1/namespaces/default/pods", OURS)]
    assert phases == ["Running"] * RANKS
    (release_cluster.marks / "go").touch()
    wait_until(
        lambda: (
            {p["status"]["phase"] for p in release_cluster.operator.items("/api/v1/namespaces/default/pods", OURS)}
            == {"Succeeded"}
        ),
        "the ranks have ended",
    )
    release_cluster.install()
    wait_until(lambda: not release_cluster.live(), "the end is recorded", timeout_s=60)
    release_cluster.check_ended("outlives", id_)
    release_cluster.operator.delete(f"{ALLOCATIONS}/outlives")
    wait_until(lambda: release_cluster.operator.find(f"{ALLOCATIONS}/outlives") is None, "the removal of its finalizer")
    chart.uninstall(release_cluster.kubeconfig)
