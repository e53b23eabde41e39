"""The programs of a real node: built from Go modules once, or of Debian's packages.

Owns the list of programs. `tests.conformance.cluster.binaries` builds and caches Go modules.
"""

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from tests.conformance.cluster import binaries
from tests.conformance.cluster.binaries import Binaries, MissingProgramError

HERE = Path(__file__).parent
PLUGINS = Path("/usr/lib/cni")
_SPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


class NodePrograms(msgspec.Struct, frozen=True, kw_only=True):
    """The path of each program."""

    cluster: Binaries
    kubelet: str
    proxy: str
    containerd: Path
    """the folder of containerd, its shim and `ctr`"""
    runc: str
    coredns: str
    pause: str


def ensure_programs() -> NodePrograms:
    """Build and install missing programs (about eight minutes on two cores, once).

    Raises:
        MissingProgramError: this machine cannot have them; the message gives the reason.
        subprocess.CalledProcessError: a build failed; its output was printed.
    """
    refused = why_not()
    if refused:
        raise MissingProgramError(refused)
    cluster = binaries.ensure_binaries()
    module = binaries.MODULE
    node = binaries.build_tools(module, ("k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-proxy"))
    containerd = binaries.build_tools(HERE / "containerd", ("tool",))
    dns = binaries.build_tools(HERE / "coredns", ("tool",))
    for program in ("runc", "iptables"):
        binaries.ensure_debian(program)
    if not (PLUGINS / "ptp").exists():
        binaries.install_debian("containernetworking-plugins")
    return NodePrograms(
        cluster=cluster,
        kubelet=str(node / "kubelet"),
        proxy=str(node / "kube-proxy"),
        containerd=containerd,
        runc=str(shutil.which("runc")),
        coredns=str(dns / "coredns"),
        pause=binaries.build_program(HERE / "pause"),
    )


def why_not() -> str:
    """Why this machine cannot have a real node; empty when it can."""
    if os.geteuid():
        return "a real node needs root: containers have namespaces, mounts and control groups of their own"
    unshare = shutil.which("unshare")
    if not unshare:
        return "a real node needs unshare (Debian: apt-get install util-linux)"
    tried = subprocess.run([unshare, *_SPACES, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"a real node needs namespaces of its own, and this machine gives root none: {tried.stderr.strip()}"
    if not any(line.split()[-1] == "overlay" for line in Path("/proc/filesystems").read_text().splitlines()):
        return "a real node needs the overlay file system, and this kernel has none"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "a real node needs control groups that root may make, and /sys/fs/cgroup cannot be written"
    return ""


def spaces(argv: list[str]) -> list[str]:
    """The command line that runs `argv` in new namespaces: network, mounts and processes, which end with it."""
    return ["unshare", *_SPACES, *argv]
