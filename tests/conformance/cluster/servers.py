"""A real Kubernetes control plane on the loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

Owns the processes: each is started on free ports, in a folder of the cluster, and stopped by its pid. There are no
nodes, so nothing runs pods; `tests.conformance.kubelets` plays the nodes.

Promises: when `start` returns, the API answers, the namespace `default` has its service account, and the requested
parts run; after `stop` no process of the cluster runs.
"""

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec
import yaml

from tests.conformance.cluster.binaries import Binaries, ensure_binaries
from tests.conformance.cluster.credentials import Credentials, make_credentials
from tests.support.ports import free_ports
from tests.support.wait import wait_until

READY_S = 90.0
STOP_S = 15.0
TAIL_LINES = 20
SERVICE_CIDR = "10.96.0.0/16"
PARTS = ("etcd", "apiserver", "controller-manager", "scheduler")
GO_ENVIRONMENT = {"GOGC": "400"}
"""For programs in Go that live as long as a test run: they collect garbage less often, which takes a fifth less
processor time, and half as much memory again."""
_GATE = "--feature-gates=GenericWorkload=true"
_POD_GROUPS = {
    "apiserver": (_GATE, "--runtime-config=scheduling.k8s.io/v1beta1=true"),
    "controller-manager": (_GATE,),
    "scheduler": (_GATE,),
}
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts and settings of a cluster."""

    controller_manager: bool = True
    scheduler: bool = True
    audit: bool = True
    """whether requests of service accounts are written to the audit log; costs the API server some time"""
    node_monitor_grace_s: int = 40
    """a node whose lease is older is NotReady"""
    address: str = "127.0.0.1"
    """where the API server listens; pods with their own networks reach it only when this is no loopback address"""
    nodes: Mapping[str, str] = {}
    """{name: address} of real nodes, which get keys and certificates"""
    more: Mapping[str, Sequence[str]] = {}
    """{part: additional flags}"""
    pod_groups: bool = False
    """whether the API server serves groups of pods and the scheduler places them whole; Kubernetes is delivered with
    this off"""


class RealCluster:
    """One control plane in one folder."""

    def __init__(self, folder: Path, options: ClusterOptions, binaries: Binaries) -> None:
        self.folder = folder
        self.options = options
        self.binaries = binaries
        self.audit_log = folder / "audit.log"
        names = ["etcd", "peer", "api", "controller-manager", "scheduler"]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = f"https://{options.address}:{self._ports['api']}"
        self._credentials: Credentials | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def etcd_url(self) -> str:
        """The URL of etcd's own API."""
        return f"http://127.0.0.1:{self._ports['etcd']}"

    @property
    def credentials(self) -> Credentials:
        """The keys and certificates, once the cluster is started."""
        assert self._credentials is not None, "the cluster has not been started"
        return self._credentials

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator with every right."""
        return self.credentials.kubeconfig("admin")

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the API server's certificate."""
        return self.credentials.ca

    def start(self) -> None:
        """Start the parts of the options and wait until the API server answers.

        Raises:
            RuntimeError: a part ended or was not ready in time; the message has the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._credentials = make_credentials(self.folder, self.url, self.options.address, self.options.nodes)
        try:
            self.start_part("etcd")
            self.start_part("apiserver")
            self._wait(self._is_api_ready, "apiserver")
            if self.options.controller_manager:
                self.start_part("controller-manager")
            if self.options.scheduler:
                self.start_part("scheduler")
            if self.options.controller_manager:
                self._wait(self._has_default_account, "controller-manager")
            if self.options.scheduler:
                self._wait(lambda: self._is_healthy("scheduler"), "scheduler")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every part, in the reverse order of their starts."""
        for part in reversed(PARTS):
            self.stop_part(part)

    def start_part(self, part: str) -> None:
        """Start one part (again)."""
        argv = self._argv(part)
        guard = shutil.which("setpriv")
        if guard:
            # The guard ends the part with its parent, so it cannot outlive a killed test run.
            argv = [guard, "--pdeathsig", "TERM", *argv]
        with self._log(part).open("ab") as log:
            self._processes[part] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **GO_ENVIRONMENT},
                start_new_session=True,
            )

    def stop_part(self, part: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End one part by its pid and wait for it."""
        process = self._processes.pop(part, None)
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)

    def pid(self, part: str) -> int:
        """The process id of a running part."""
        return self._processes[part].pid

    def await_ready(self) -> None:
        """Wait until the API answers (after a part was started again)."""
        self._wait(self._is_api_ready, "apiserver")

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl as an administrator."""
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)}
        argv = [self.binaries.kubectl, *words]
        return subprocess.run(
            argv, env=env, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def client(self) -> httpx2.Client:
        """An HTTP client with the rights of an administrator."""
        return httpx2.Client(base_url=self.url, verify=self.credentials.tls(), trust_env=False, timeout=30.0)

    # --- how each is started ----------------------------------------------------------------------------------------

    def _argv(self, part: str) -> list[str]:
        build = {
            "etcd": self._etcd,
            "apiserver": self._apiserver,
            "controller-manager": self._controller_manager,
            "scheduler": self._scheduler,
        }[part]
        groups = _POD_GROUPS.get(part, ()) if self.options.pod_groups else ()
        return [*build(), *groups, *self.options.more.get(part, ())]

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._ports['etcd']}", f"http://127.0.0.1:{self._ports['peer']}"
        return [
            self.binaries.etcd,
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--quota-backend-bytes=8589934592",
            # A watch also reports its progress for a kind without events: Kubernetes' own installer sets this too.
            "--watch-progress-notify-interval=5s",
            "--logger=zap",
            "--log-level=warn",
        ]

    def _apiserver(self) -> list[str]:
        made = self.credentials
        flags = [
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            f"--bind-address={self.options.address}",
            f"--advertise-address={self.options.address}",
            f"--secure-port={self._ports['api']}",
            # An Endpoints object may not contain a loopback address.
            f"--endpoint-reconciler-type={'none' if self.options.address == '127.0.0.1' else 'lease'}",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--tls-cert-file={made.server}",
            f"--tls-private-key-file={made.server}",
            f"--client-ca-file={made.ca}",
            f"--kubelet-client-certificate={made.kubelet_client}",
            f"--kubelet-client-key={made.kubelet_client}",
            f"--kubelet-certificate-authority={made.ca}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={made.accounts_key}",
            f"--service-account-signing-key-file={made.accounts_key}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
        ]
        if self.options.audit:
            policy = self.folder / "audit-policy.yaml"
            policy.write_text(yaml.safe_dump(_AUDIT_POLICY), encoding="utf-8")
            flags += [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        return [self.binaries.apiserver, *flags]

    def _controller_manager(self) -> list[str]:
        made, kubeconfig = self.credentials, self.credentials.kubeconfig("controller-manager")
        return [
            self.binaries.controller_manager,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['controller-manager']}",
            f"--service-account-private-key-file={made.accounts_key}",
            f"--root-ca-file={made.ca}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            f"--node-monitor-grace-period={self.options.node_monitor_grace_s}s",
        ]

    def _scheduler(self) -> list[str]:
        kubeconfig = self.credentials.kubeconfig("scheduler")
        return [
            self.binaries.scheduler,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['scheduler']}",
            "--leader-elect=false",
        ]

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, check: Callable[[], bool], part: str) -> None:
        def is_over() -> bool:
            return check() or self._processes[part].poll() is not None

        with contextlib.suppress(AssertionError):
            wait_until(is_over, f"{part} is ready", timeout_s=READY_S)
        code = self._processes[part].poll()
        if code is not None:
            raise RuntimeError(f"{part} ended with {code}; the end of its log:\n{self.tail(part)}")
        if not check():
            raise RuntimeError(f"{part} was not ready in {READY_S:.0f} s; the end of its log:\n{self.tail(part)}")

    def _is_api_ready(self) -> bool:
        return self._answers(f"{self.url}/readyz")

    def _is_healthy(self, part: str) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with contextlib.suppress(httpx2.HTTPError):
            url = f"https://127.0.0.1:{self._ports[part]}/healthz"
            return httpx2.get(url, verify=context, trust_env=False, timeout=2.0).status_code == 200
        return False

    def _has_default_account(self) -> bool:
        return self._answers(f"{self.url}/api/v1/namespaces/default/serviceaccounts/default")

    def _answers(self, url: str) -> bool:
        with contextlib.suppress(httpx2.HTTPError), self.client() as client:
            return client.get(url, timeout=5.0).status_code == 200
        return False

    def tail(self, part: str) -> str:
        """The last lines of a part's log."""
        lines = self._log(part).read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def _log(self, part: str) -> Path:
        return self.folder / f"{part}.log"


@contextmanager
def running_cluster(folder: Path, options: ClusterOptions | None = None) -> Generator[RealCluster]:
    """Run a control plane in `folder`, and stop it at the end whatever happened."""
    cluster = RealCluster(folder, options or ClusterOptions(), ensure_binaries())
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
