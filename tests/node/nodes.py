"""Real nodes: containerd, runc, CNI plugins and a kubelet each, and kube-proxy and CoreDNS for all of them.

Owns how each program is started and stopped, in namespaces that `tests.node.__main__` has made. All nodes share one
network, in which each has an address and a range of addresses for pods, so that none of it conflicts with this
machine's network.

Promises: when `start` returns every node is Ready; after `stop` no process, mount or control group of theirs is left.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.conformance.cluster import binaries
from tests.conformance.cluster.servers import GO_ENVIRONMENT, SERVICE_CIDR, ClusterOptions, RealCluster
from tests.node.programs import PLUGINS, NodePrograms
from tests.support.wait import wait_until

CONTROL_PLANE = "192.0.2.10"
"""An address for documentation (RFC 5737), on the loopback interface of our own network."""
WITNESS_PORT = 29600
"""udp, at the control plane: what containers report to the audit (`tests.node.rank_reports`)"""
DNS_SERVICE = "10.96.0.10"
DOMAIN = "cluster.local"
PAUSE = "slipway.local/pause:1"
READY_S = 60.0
GRACE_S = 20
"""Seconds of silence after which a node is not Ready; half of the default, so that tests wait less."""
STOP_S = 20.0
CONTROLLERS = Path("/sys/fs/cgroup")
RECORDS = Path("/var/lib/cni")
"""The folder in which network plugins record the pods that they have served, for ever."""
LINKS = Path("/var/log/containers")
"""The folder in which each kubelet links the logs of its containers; it cannot be configured."""
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""The folder in which each kubelet makes the socket for device plugins; it cannot be configured. A kubelet deletes an
old socket and then makes its own; it exits when another kubelet makes one in between."""
GROUPS = "slipway-node"
"""The control group above those of all clusters of this machine: each cluster has one in it, named like its folder."""
PODS_WEIGHT = 8
"""All pods together have the weight of this many programs beside them: a real node has a machine for itself, and
here a Redis that waits for the processor behind tests would answer no client."""
LOG_BYTES_MAX = 4 * 2**20
"""The size after which the kubelet begins a new file, less than the default of 10 MiB: tests print less."""
DISK_MB = 3072
"""The disk of the last of several nodes; the others have the machine's."""
PINNED = "io.cri-containerd.pinned=pinned"
"""The label that keeps a kubelet from removing an image: there is no registry to pull it from again."""
Json = dict[str, Any]


class Program:
    """One process of a node, in a session of its own, with a log."""

    def __init__(self, name: str, folder: Path, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.name, self.argv = name, list(argv)
        self.log = folder / f"{name}.log"
        self._env = {**os.environ, **GO_ENVIRONMENT, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it by its pid, and wait for the end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)

    def freeze(self) -> None:
        """Stop it without ending it: it answers nothing, and does not notice the time when it continues."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, sign: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} does not run"
        self._process.send_signal(sign)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


class Runtime:
    """containerd with its own root, state and socket."""

    def __init__(self, folder: Path, programs: NodePrograms, *, network: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.root, self.socket = folder / "containerd", Path("/run") / folder.name / "containerd.sock"
        self.env = {"PATH": f"{programs.containerd}:/usr/sbin:/usr/bin:/sbin:/bin"}
        self._programs = programs
        config = folder / "containerd.toml"
        config.write_text(_config(self.root, self.socket, network or folder), encoding="utf-8")
        argv = [f"{programs.containerd}/containerd", "--config", str(config)]
        self.program = Program("containerd", folder, argv, self.env)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.program.start()
        _wait(self._is_serving, self.program, "containerd answers")

    def ctr(self, *words: str) -> str:
        """Run containerd's own client."""
        argv = [f"{self._programs.containerd}/ctr", "--address", str(self.socket), "--namespace", "k8s.io", *words]
        return _run(argv)

    def _is_serving(self) -> bool:
        try:
            self.ctr("version")
        except RuntimeError:
            return False
        return True


def _config(root: Path, socket: Path, network: Path) -> str:
    return f"""version = 3
root = "{root}"
state = "{socket.parent / "state"}"
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE the score by which the kernel chooses what to end cannot be lowered.
restrict_oom_score_adj = true
# What a boot clears is the node's own, although /run is shared.
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
options = {{ Root = "{socket.parent / "runc"}" }}
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{PLUGINS}"]
conf_dir = "{network}"
"""


def unpacked(programs: NodePrograms, images: Sequence[Path]) -> Path:
    """The root of a containerd with these images unpacked; made once, in the cache, which keeps the newest one.

    The last image is ours, which changes most: the root with only the others is cached too, and ours is imported into a
    copy of it.
    """
    folder = binaries.cache() / "roots"
    with binaries.locked(folder.with_suffix(".lock")):
        return _unpacked(folder, programs, images)


def _unpacked(folder: Path, programs: NodePrograms, images: Sequence[Path]) -> Path:
    names = [
        hashlib.sha256("".join(image.name for image in part).encode()).hexdigest()[:16]
        for part in (images[:-1], images)
    ]
    base, whole = (folder / name for name in names)
    if not whole.exists():
        if not base.exists():
            shutil.rmtree(folder, ignore_errors=True)
        for older in folder.glob("*"):
            if older != base:
                shutil.rmtree(older)
        runtime = Runtime(folder / "part", programs)
        if not base.exists():
            _import(runtime, images[:-1])
            runtime.root.rename(base)
        copy_root(base, runtime.root)
        _import(runtime, images[-1:])
        runtime.root.rename(whole)
    return whole


def _import(runtime: Runtime, images: Sequence[Path]) -> None:
    """Unpack these images, and pin them."""
    runtime.start()
    try:
        for image in images:
            runtime.ctr("images", "import", str(image))
        for name in runtime.ctr("images", "list", "--quiet").split():
            runtime.ctr("images", "label", name, PINNED)
    finally:
        runtime.program.stop()


def copy_root(source: Path, target: Path, *, is_linked: bool = True) -> None:
    """Copy the root of a containerd that does not run. Files that containerd never writes again are hard links."""
    how = ("--link",) if is_linked else ()
    _run(["cp", "--archive", *how, str(source), str(target)])
    for database in source.rglob("*.db"):
        # A file that containerd writes to must be a real copy.
        place = target / database.relative_to(source)
        place.unlink()
        shutil.copy(database, place)


class RealNode:
    """One kubelet with its own containerd. `number` is from 1; with `disk_mb` it has a disk of its own."""

    def __init__(
        self, folder: Path, number: int, cluster: RealCluster, programs: NodePrograms, *, disk_mb: int = 0
    ) -> None:
        self.name, self.address = node_name(number), node_address(number)
        self.folder = folder / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._has_disk = disk_mb > 0
        if self._has_disk:
            _run(["mount", "-t", "tmpfs", "-o", f"size={disk_mb}m", "tmpfs", str(self.folder)])
        self.pods = f"10.244.{number}.0/24"
        self._cluster, self._programs = cluster, programs
        self._group = f"/{GROUPS}/{folder.name}/{self.name}"
        self.runtime = Runtime(self.folder, programs, network=self._network())
        self.kubelet = Program("kubelet", self.folder, self._kubelet(), self.runtime.env)

    def start(self, images: Path) -> None:
        """Start containerd with images that were unpacked before, then the kubelet."""
        _run(["ip", "address", "replace", f"{self.address}/32", "dev", "lo"])
        for controller in _controllers():
            (controller / self._group.lstrip("/")).mkdir(parents=True, exist_ok=True)
            _weigh(controller / GROUPS)
        copy_root(images, self.runtime.root, is_linked=not self._has_disk)
        self.runtime.start()
        self.kubelet.start()

    def power_off(self) -> None:
        """Turn the machine off without warning: end kubelet, containerd and every container at once."""
        self.kubelet.stop(signal.SIGKILL)
        self.runtime.program.stop(signal.SIGKILL)
        for pid in _processes_with(str(self.runtime.socket)):
            _kill(pid)
        end_processes([group for each in _controllers() if (group := each / self._group.lstrip("/")).exists()])

    def power_on(self) -> None:
        """Start the machine as after a boot: its memory is empty, its disk is unchanged."""
        kept = (str(self.runtime.socket.parent), str(self.folder / "kubelet"))
        for place in reversed([line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]):
            if place.startswith(kept):
                _run(["umount", "--lazy", place])
        shutil.rmtree(self.runtime.socket.parent)
        self.runtime.start()
        self.kubelet.start()

    def remove_disk(self) -> None:
        """Remove its own disk with its content, after all its programs have ended."""
        if self._has_disk:
            _run(["umount", "--lazy", str(self.folder)])

    def cut_off(self) -> None:
        """Block all its traffic, while its containers run on.

        Only reports to the collector pass: a rank may begin and end in this time, and its end is known.
        """
        self._at_the_wall("--insert")
        self.kubelet.freeze()

    def reconnect(self) -> None:
        self._at_the_wall("--delete")
        self.kubelet.thaw()

    def running(self, namespace: str = "default") -> list[str]:
        """The pods of a namespace that have a process here according to containerd, also pods that no API object
        describes."""
        return sorted(self.processes(namespace))

    def processes(self, namespace: str) -> dict[str, list[int]]:
        """{pod: the first process of each of its running containers here}"""
        here = f'labels."io.kubernetes.pod.namespace"=={namespace}'
        known = self.runtime.ctr("containers", "list", "--quiet", here).split()
        tasks = [line.split() for line in self.runtime.ctr("tasks", "list").splitlines()[1:]]
        live = {words[0]: int(words[1]) for words in tasks if words[2] == "RUNNING"}
        found: dict[str, list[int]] = {}
        for id_ in known:
            if id_ in live:
                info = msgspec.json.decode(self.runtime.ctr("containers", "info", id_))
                found.setdefault(info["Labels"]["io.kubernetes.pod.name"], []).append(live[id_])
        return found

    def _at_the_wall(self, how: str) -> None:
        for chain, side in (("FORWARD", "--source"), ("FORWARD", "--destination"), ("INPUT", "--source")):
            _run(["iptables", "--wait", how, chain, side, self.pods, "--jump", "DROP"])
        witness = ["--source", self.pods, "--protocol", "udp", "--dport", str(WITNESS_PORT)]
        _run(["iptables", "--wait", how, "INPUT", *witness, "--jump", "ACCEPT"])

    def _network(self) -> Path:
        """The folder with the configuration of the pods' network."""
        network = self.folder / "cni" / "10-pods.conflist"
        network.parent.mkdir(exist_ok=True)
        ranges = [[{"subnet": self.pods}]]
        ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
        plugins: list[Json] = [
            {"type": "ptp", "mtu": 1450, "ipam": {**ipam, "dataDir": str(self.folder / "addresses")}},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ]
        network.write_bytes(msgspec.json.encode({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}))
        return network.parent

    def _kubelet(self) -> list[str]:
        config: Json = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": 10250,
            "healthzBindAddress": self.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True, "cacheTTL": "10s"},
                "x509": {"clientCAFile": str(self._cluster.folder / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self._cluster.folder / f"{self.name}.pem"),
            "tlsPrivateKeyFile": str(self._cluster.folder / f"{self.name}.pem"),
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._group,
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": DOMAIN,
            "podLogsDir": str(self.folder / "pods"),
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "containerLogMaxSize": str(LOG_BYTES_MAX),
            "containerLogMonitorInterval": "3s",
            "registerNode": True,
            "resolvConf": str(self._resolver()),
            "maxPods": 60,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "10%" if self._has_disk else "1%",
                "imagefs.available": "10%" if self._has_disk else "1%",
            },
            "evictionPressureTransitionPeriod": "5s",
            "imageMinimumGCAge": "1s",
        }
        file = self.folder / "kubelet.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        return [
            self._programs.kubelet,
            f"--config={file}",
            f"--kubeconfig={self._cluster.folder / f'{self.name}.kubeconfig'}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        ]

    def _resolver(self) -> Path:
        """A configuration in which names outside of the cluster cannot be resolved."""
        file = self.folder / "resolv.conf"
        file.write_text("nameserver 127.0.0.1\n", encoding="utf-8")
        return file


class NodeCluster:
    """A control plane with real nodes, in the namespaces of this process."""

    def __init__(self, folder: Path, programs: NodePrograms, images: Sequence[Path], *, nodes: int = 2) -> None:
        self.folder, self.images = folder, list(images)
        names = {node_name(number): node_address(number) for number in range(1, nodes + 1)}
        # The audit of a chaos run reads every stored object in etcd, from the beginning.
        more = {"apiserver": ["--storage-media-type=application/json", "--etcd-compaction-interval=0"]}
        options = ClusterOptions(
            address=CONTROL_PLANE, nodes=names, audit=False, node_monitor_grace_s=GRACE_S, more=more
        )
        self.control = RealCluster(folder / "control", options, programs.cluster)
        self.nodes = [
            RealNode(folder, number, self.control, programs, disk_mb=DISK_MB if 1 < number == nodes else 0)
            for number in range(1, nodes + 1)
        ]
        self._programs = programs
        self._shared: list[Program] = []

    def start(self) -> None:
        """Start everything and wait until each node is Ready and names are served.

        Raises:
            RuntimeError: a part ended or was not ready in time; the message has the end of its log.
        """
        _own_network()
        try:
            self.control.start()
            for node in self.nodes:
                node.start(unpacked(self._programs, self.images))
                _wait(
                    (DEVICE_PLUGINS / "kubelet.sock").exists, node.kubelet, f"the kubelet of {node.name} takes plugins"
                )
            self._start_proxy()
            self._start_dns()
            for node in self.nodes:
                _wait(lambda name=node.name: self.has_condition(name, "Ready"), node.kubelet, f"{node.name} is Ready")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every pod's processes by their control groups, then every program, in the reverse order of their
        starts."""
        for node in self.nodes:
            node.kubelet.stop()
        for program in reversed(self._shared):
            program.stop()
        end_groups(self.folder)
        for node in self.nodes:
            node.runtime.program.stop()
            node.remove_disk()
        self.control.stop()

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 60.0) -> str:
        """Run kubectl and return its output.

        Raises:
            RuntimeError: it failed; the message is kubectl's own.
        """
        done = self.control.kubectl(*words, stdin=stdin, timeout_s=timeout_s)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def has_condition(self, node: str, type_: str) -> bool:
        """Whether a node exists and its condition, such as Ready, is True.

        It is read in this process, because tests poll it.
        """
        with self.control.client() as client:
            found = client.get(f"/api/v1/nodes/{node}").json()
        conditions = found.get("status", {}).get("conditions", ()) if found["kind"] == "Node" else ()
        return any(each["type"] == type_ and each["status"] == "True" for each in conditions)

    def _start_proxy(self) -> None:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "bindAddress": CONTROL_PLANE,
            "healthzBindAddress": f"{CONTROL_PLANE}:10256",
            "metricsBindAddress": f"{CONTROL_PLANE}:10249",
            "hostnameOverride": self.nodes[0].name,
            "clusterCIDR": "10.244.0.0/16",
            # Settings of the whole machine are not ours to change.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "clientConnection": {"kubeconfig": str(self.control.credentials.kubeconfig("proxy"))},
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        }
        file = self.folder / "kube-proxy.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        self._start(Program("kube-proxy", self.folder, [self._programs.proxy, f"--config={file}"]))

    def _start_dns(self) -> None:
        """Start CoreDNS beside the nodes, behind the Service that pods use for DNS."""
        address, port = CONTROL_PLANE, 53
        file = self.folder / "Corefile"
        kubeconfig = self.control.kubeconfig
        file.write_text(
            f"{DOMAIN}:{port} in-addr.arpa:{port} {{\n bind {address}\n errors\n"
            f" kubernetes {DOMAIN} in-addr.arpa {{\n  kubeconfig {kubeconfig}\n  pods insecure\n  ttl 5\n }}\n}}\n",
            encoding="utf-8",
        )
        ports = [{"name": name, "port": 53, "targetPort": port, "protocol": name.upper()} for name in ("udp", "tcp")]
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIP": DNS_SERVICE, "ports": ports},
        }
        slices = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": name, "port": port, "protocol": name.upper()} for name in ("udp", "tcp")],
        }
        for body in (service, slices):
            self.kubectl("apply", "-f", "-", stdin=msgspec.json.encode(body).decode())
        self._start(Program("coredns", self.folder, [self._programs.coredns, "-conf", str(file)]))

    def _start(self, program: Program) -> None:
        program.start()
        self._shared.append(program)


def node_name(number: int) -> str:
    return f"node-{number}"


def node_address(number: int) -> str:
    return f"192.0.2.{10 + number}"


def end_groups(folder: Path) -> None:
    """End every process in the control groups of the cluster with this folder, and remove the groups."""
    for root in groups(folder):
        end_processes([root], removed=True)
        with contextlib.suppress(OSError):
            root.parent.rmdir()  # not while another cluster has a group in it


def end_processes(roots: Sequence[Path], *, removed: bool = False) -> None:
    """End every process in these control groups and those below them, and remove the groups."""
    deadline = time.monotonic() + STOP_S
    for group in (Path(path) for root in roots for path, _, _ in os.walk(root, topdown=False)):
        while time.monotonic() < deadline:
            pids = _pids(group)
            for pid in pids:
                _kill(pid)
            if removed:
                with contextlib.suppress(OSError):
                    group.rmdir()
            if not (group.exists() if removed else pids):
                break
            time.sleep(0.02)


def _weigh(group: Path) -> None:
    """Set the processor share of a control group, in the form of this machine: shares, or a weight."""
    for file, one in ((group / "cpu.shares", 1024), (group / "cpu.weight", 100)):
        if file.exists():
            file.write_text(str(one * PODS_WEIGHT), encoding="utf-8")


def groups(folder: Path) -> list[Path]:
    """The control groups of the cluster with this folder, one per hierarchy."""
    return [root for each in _controllers() if (root := each / GROUPS / folder.name).exists()]


def leftovers(folder: Path) -> list[str]:
    """Return the leftovers of the cluster with this folder: control groups, mounts, processes, files."""
    found = [f"control group {group}" for group in groups(folder)]
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        if str(folder) in line:
            found.append(f"mount {line.split()[1]}")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            group = (process / "cgroup").read_text()
            if str(folder) in words or f"/{GROUPS}/{folder.name}/" in group:
                found.append(f"process {process.name}: {words}")
    return [*found, *([f"folder {folder}"] if folder.exists() else [])]


def machine_files() -> set[str]:
    """Files that network plugins and kubelets keep on the machine, outside of any cluster's folder: named
    namespaces, records, links to logs."""
    names = {f"network namespace {path.name}" for path in Path("/run/netns").glob("cni-*")}
    names |= {f"link {path}" for path in LINKS.glob("*")}
    return names | {f"file {path}" for path in RECORDS.rglob("*") if path.is_file()}


def _pids(group: Path) -> list[int]:
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split() if line != "0"]
    except OSError:
        return []


def _processes_with(word: str) -> list[int]:
    """The processes that have the word on their command line."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if word in (process / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                found.append(int(process.name))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _controllers() -> list[Path]:
    """The folder of each hierarchy of control groups; one folder when they are unified."""
    if (CONTROLLERS / "cgroup.controllers").exists():
        return [CONTROLLERS]
    return sorted(path for path in CONTROLLERS.iterdir() if path.is_dir() and not path.is_symlink())


def _own_network() -> None:
    """Set up the loopback interface with the control plane's address, and forwarding between pods; hide the
    machine's own folders for network and container logs."""
    _run(["ip", "link", "set", "lo", "up"])
    _run(["ip", "address", "replace", f"{CONTROL_PLANE}/32", "dev", "lo"])
    # Services are reached from here too: an address without a route is refused before kube-proxy sees it.
    _run(["ip", "route", "replace", SERVICE_CIDR, "dev", "lo", "src", CONTROL_PLANE])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    own_places()


def own_places() -> None:
    """Mount empty folders over those where the machine keeps such files, in this mount namespace."""
    for place in (Path("/run"), RECORDS, LINKS, DEVICE_PLUGINS):
        place.mkdir(parents=True, exist_ok=True)
        _run(["mount", "-t", "tmpfs", "tmpfs", str(place)])


def _run(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _wait(check: Callable[[], bool], program: Program, what: str) -> None:
    def is_over() -> bool:
        return not program.is_running or check()

    with contextlib.suppress(AssertionError):
        wait_until(is_over, what, timeout_s=READY_S)
    if not program.is_running or not check():
        raise RuntimeError(f"not within {READY_S:.0f} s: {what}; the end of {program.log}:\n{program.tail()}")


def clean(folder: Path) -> None:
    """Remove a cluster's folder; mounts in it ended with their namespace."""
    shutil.rmtree(folder, ignore_errors=True)
