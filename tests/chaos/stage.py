"""The whole system on one machine, with each part exposed to faults.

etcd, kube-apiserver and kube-controller-manager; Redis; simulated nodes; the chart installed, and two processes of each
service under their own accounts. Every process of a service reaches the API server and Redis through its own ports in
the fault proxy, and reads its wall clock through libfaketime from its own file.

Promises: `start` returns when everything is ready; after `stop` no process of it runs.
"""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from tests.chaos import upgrade
from tests.chaos.processes import NodesProcess, ProxyProcess, RedisProcess
from tests.conformance.cluster.binaries import MissingProgramError, ensure_binaries, ensure_debian
from tests.conformance.cluster.credentials import write_kubeconfig
from tests.conformance.cluster.servers import ClusterOptions, RealCluster
from tests.conformance.system.deployment import Installation
from tests.conformance.system.operator import Operator
from tests.conformance.system.process import ServiceProcess
from tests.support import chart
from tests.support.ports import free_port, free_ports

NODES = 6
REPLICAS = 2
LEASES = {"leaseDurationS": 8, "leaseRenewDeadlineS": 6, "leaseRetryS": 0.5}
ENDED_MAX = 60
"""The number of ended allocations that retention keeps in a workspace."""
LOG_BYTES_MAX = 2 * 1024 * 1024
"""The bytes of one allocation's logs: an eighth of it for each log of a small gang."""
VALUES: dict[str, Any] = {
    "valkey": {"enabled": False},
    "scheduler": {"settings": LEASES},
    "watcher": {"settings": {**LEASES, "retentionCountMax": ENDED_MAX, "logBytesMax": LOG_BYTES_MAX}},
}
"""All other values are the chart's own, because the promises are about those. Shorter leases fit more faults into a
run, a short retention gives it work, and of a flood more is printed than is stored."""

NAMES = tuple(f"{service}-{index}" if index else service for index in range(REPLICAS) for service in chart.SERVICES)
"""the names of the processes: api, scheduler, ... and api-1, ..."""
NO_SHIFT = "+0 x1"
"""The rate is included, because libfaketime keeps the last one."""


class Stage:
    """The system of one run, in one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._seed = seed
        policy = folder / "audit-policy.json"
        more = {
            "apiserver": [
                # History is read from etcd itself, so that restarts of the API server hide nothing.
                "--storage-media-type=application/json",
                "--etcd-compaction-interval=0",
                f"--audit-policy-file={policy}",
                "--audit-log-maxsize=8000",
            ]
        }
        policy.write_text(_POLICY, encoding="utf-8")
        self.cluster = RealCluster(folder / "cluster", ClusterOptions(scheduler=False, more=more), ensure_binaries())
        ensure_debian("redis-server")
        self.redis = RedisProcess(folder, free_port())
        self.faketime = _faketime()
        """the path of libfaketime, empty when it is missing and cannot be installed"""
        self.this = upgrade.copy_this(folder / "this")
        self.next = upgrade.make_next(folder / "next")
        self.is_next = False
        """whether the processes have, or will have, the next version"""
        self.proxy: ProxyProcess
        self.nodes: NodesProcess
        self.installation: Installation
        self._operator: Operator | None = None
        self._started: list[Any] = []

    @property
    def operator(self) -> Operator:
        """An administrator."""
        assert self._operator is not None, "the stage has not been started"
        return self._operator

    @property
    def etcd_url(self) -> str:
        """The URL of etcd's own API."""
        return self.cluster.etcd_url

    def start(self) -> None:
        """Start all of it."""
        self.cluster.start()
        self._operator = Operator(self.cluster)
        asyncio.run(self.redis.start())
        self.nodes = NodesProcess(self.cluster.kubeconfig, NODES, self.folder)
        self._started.append(self.nodes)
        ports = free_ports(2 * len(NAMES))
        kube = dict(zip(NAMES, ports, strict=False))
        streams = dict(zip(NAMES, ports[len(NAMES) :], strict=True))
        config = {
            "seed": self._seed,
            "kube_port": int(self.cluster.url.rpartition(":")[2]),
            "redis_port": self.redis.port,
            "kube_listeners": kube,
            "redis_listeners": streams,
            "ca": str(self.cluster.ca),
        }
        self.proxy = ProxyProcess(config, self.folder)
        self._started.append(self.proxy)
        url = f"redis://127.0.0.1:{self.redis.port}/0"
        self.installation = Installation(self.operator, self.folder, {**VALUES, "externalRedis": {"url": url}})
        self._started.append(self.installation)
        self.installation.install()
        for name in NAMES:
            self.installation.resume(name, more=self._environment(name, kube[name], streams[name]), wait=False)
        self.installation.await_ready()

    def stop(self) -> None:
        """Stop all of it."""
        with contextlib.ExitStack() as stopping:
            # In reverse order, and each also when another fails.
            stopping.callback(self.cluster.stop)
            stopping.callback(lambda: asyncio.run(self.redis.stop()))
            if self._operator is not None:
                stopping.callback(self._operator.close)
            for part in self._started:
                stopping.callback(part.stop)
            self._started.clear()

    @property
    def processes(self) -> dict[str, ServiceProcess]:
        """The processes of the services, by name."""
        return self.installation.processes

    @property
    def urls(self) -> list[str]:
        """The URLs of the replicas of the API."""
        return [f"http://{self.installation.addresses[name]}" for name in NAMES if name.startswith("api")]

    def shift_clock(self, name: str, words: str) -> None:
        """Set the wall clock of one process: `+600`, `-600`, `+0 x1.5` (of the time since the process began), or
        NO_SHIFT; it is read again each second."""
        fresh = self._clock(name).with_suffix(".new")
        fresh.write_text(words + "\n", encoding="utf-8")
        fresh.replace(self._clock(name))

    def set_version(self, name: str, *, is_next: bool) -> None:
        """Set the version for the next start of that process."""
        self.processes[name].env["PYTHONPATH"] = self._path(self.next if is_next else self.this)

    def logs(self) -> list[Path]:
        """The logs of every process, without the API server's audit log."""
        found = [*self.folder.glob("*.log"), *(self.folder / "cluster").glob("*.log")]
        return [path for path in found if path != self.cluster.audit_log]

    def _environment(self, name: str, kube_port: int, redis_port: int) -> dict[str, str]:
        """The environment that differs between the processes of a service."""
        account = self.installation.credentials(name.partition("-")[0])
        config = self.folder / f"{name}.kubeconfig"
        url = f"http://127.0.0.1:{kube_port}"
        user = {"tokenFile": str(account.token)}
        write_kubeconfig(config, url=url, ca=self.cluster.ca, user=user, namespace=chart.NAMESPACE)
        env = {
            "KUBECONFIG": str(config),
            "SLIPWAY_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
            "PYTHONPATH": self._path(self.this),
        }
        if self.faketime:
            self.shift_clock(name, NO_SHIFT)
            env |= {
                "LD_PRELOAD": self.faketime,
                "FAKETIME_TIMESTAMP_FILE": str(self._clock(name)),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
        return env

    def _path(self, version: upgrade.Copy) -> str:
        return os.pathsep.join([version.path, *filter(None, [os.environ.get("PYTHONPATH")])])

    def _clock(self, name: str) -> Path:
        return self.folder / f"{name}.clock"


def _faketime() -> str:
    try:
        ensure_debian("faketime")
    except MissingProgramError:
        return ""
    return find_faketime()


def find_faketime() -> str:
    """The path of libfaketime; empty when it is not on this machine."""
    program = shutil.which("faketime")
    if program is None:
        return ""
    found = sorted(Path(program).parents[1].glob("lib/*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else ""


_POLICY = """{
  "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
    {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
    {"level": "RequestResponse", "userGroups": ["system:serviceaccounts:slipway-system"],
     "verbs": ["create", "update", "patch", "delete"]},
    {"level": "None"}
  ]
}
"""
