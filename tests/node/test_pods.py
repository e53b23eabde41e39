"""Requests of a pod's own spec to a kubelet: probes, and volumes that end with the pod."""

from pathlib import Path
from typing import Any

import msgspec

from tests.node.conftest import Product
from tests.node.test_lives import lines_of
from tests.support.wait import wait_until

OPEN_LATER = """
import pathlib, signal, sys, time
signal.signal(15, lambda *_: sys.exit(0))
time.sleep(3)
pathlib.Path("/tmp/open").touch()
print("open", time.time(), flush=True)
time.sleep(600)
"""
SCRATCH_CLASS = "scratch"


def a_template(*volumes: dict[str, Any], **container: Any) -> dict[str, Any]:
    """A pod template whose main container has these fields, with these volumes."""
    main = {"name": "main", "image": "slipway.local/workload:1", **container}
    return {"spec": {"containers": [main], "volumes": list(volumes)}}


def test_a_service_is_ready_when_its_probe_says_so(product: Product, tmp_path: Path) -> None:
    """It runs before that, and is not ready; a shell is such a service."""
    probe = {"exec": {"command": ["test", "-e", "/tmp/open"]}, "periodSeconds": 1}
    template = a_template(readinessProbe=probe)
    id_ = product.apply(tmp_path, kind="shell", command=["python3", "-c", OPEN_LATER], template=template)
    product.wait_running(id_, 1)
    assert product.view(id_)["status"]["ready"] is False
    wait_until(lambda: product.view(id_)["status"]["ready"], "it is ready", timeout_s=30)
    assert any(line.startswith("open") for line in lines_of(product.slipway("logs", id_).out))
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated")


def test_a_rank_that_does_not_answer_its_probe_is_ended(product: Product, tmp_path: Path) -> None:
    """The run has failed, and the failure names the probe."""
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 2}
    template = a_template(livenessProbe=probe)
    template["spec"]["terminationGracePeriodSeconds"] = 1
    id_ = product.apply(tmp_path, command=["sleep", "600"], template=template)
    product.wait(id_, "terminated", 60)
    said = product.slipway("describe", id_).out
    told = product.slipway("logs", id_)
    assert product.view(id_)["attempt"] == 1
    assert "liveness" in (told.out + told.err).lower(), (said, told)


def test_a_folder_that_grows_beyond_its_limit_is_the_users_own_fault(product: Product, tmp_path: Path) -> None:
    """The kubelet evicts the pod. A retry would end the same way, so it is counted as the rank's failure."""
    folder = {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}
    template = a_template(folder, volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}])
    script = "dd if=/dev/zero of=/scratch/large bs=1M count=8; sleep 600"
    id_ = product.apply(tmp_path, command=["sh", "-c", script], template=template)
    product.wait(id_, "terminated", 90)
    view = product.view(id_)
    assert (view["attempt"], view["result"], view["reason"]) == (1, "Failed", "RankFailed"), view
    assert 'EmptyDir volume "scratch" exceeds the limit' in product.slipway("describe", id_).out


def test_a_volume_of_its_own_comes_and_goes_with_a_rank(product: Product, tmp_path: Path) -> None:
    """A claim is created from the pod, bound to a volume, written to, and deleted with the pod.

    The volume was created before, in a class without a provisioner, because this cluster has no storage driver.
    """
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "scratch"},
        "spec": {
            "capacity": {"storage": "16Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": SCRATCH_CLASS,
            "hostPath": {"path": str(folder)},
        },
    }
    product.cluster.kubectl("apply", "-f", "-", stdin=msgspec.json.encode(volume).decode())
    asked = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": SCRATCH_CLASS,
        "resources": {"requests": {"storage": "1Mi"}},
    }
    own = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": asked}}}
    template = a_template(own, volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}])
    id_ = product.apply(
        tmp_path, command=["sh", "-c", "echo kept > /scratch/file; cat /scratch/file"], template=template
    )
    try:
        product.wait(id_, "terminated", 90)
        assert product.view(id_)["result"] == "Succeeded", product.slipway("describe", id_).out
        assert lines_of(product.slipway("logs", id_).out) == ["kept"]
        wait_until(
            lambda: id_ not in product.cluster.kubectl("get", "persistentvolumeclaims", "--output", "name"),
            "its claim is gone",
        )
    finally:
        product.cluster.kubectl("delete", "persistentvolume", "scratch")
