"""Machines that lack a program, and files that a cluster would leave on a machine."""

from pathlib import Path

import pytest

from tests.conformance.cluster.binaries import InstallError, install_debian
from tests.node.images import WORKLOAD
from tests.node.nodes import DEVICE_PLUGINS, LINKS, RECORDS, NodeCluster, machine_files
from tests.support.wait import wait_until


def test_a_failed_install_is_distinguished_from_an_unsupported_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With apt-get and as root, a failed install is an error in apt's own words, and no test is skipped."""
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho no such package >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InstallError, match="no such package"):
        install_debian("anything")


@pytest.mark.usefixtures("cluster")
def test_what_is_kept_on_the_machine_is_seen() -> None:
    """While a cluster runs its plugins keep records and its kubelets links; the search finds each."""
    found = machine_files()
    (RECORDS / "record").touch()
    (LINKS / "container.log").symlink_to("gone")
    assert machine_files() - found == {f"file {RECORDS / 'record'}", f"link {LINKS / 'container.log'}"}
    (LINKS / "container.log").unlink()


def test_what_is_kept_on_the_machine_goes_with_the_cluster(cluster: NodeCluster) -> None:
    """Each place outside of the cluster's folder has its own mount, so that the machine's is not written to."""
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()}
    assert {"/run", str(RECORDS), str(LINKS), str(DEVICE_PLUGINS)} <= mounts
    name = "links-its-log"
    cluster.kubectl("run", name, "--image", WORKLOAD, "--image-pull-policy=Never", "--restart=Never", "--", "true")
    wait_until(lambda: list(LINKS.glob(f"{name}_*")), "the kubelet has linked the log", timeout_s=60)
    cluster.kubectl("delete", "pod", name, "--wait=false")
