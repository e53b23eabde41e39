"""Storage as a cluster has it: classes, volumes and claims, and a pod template that uses one."""

from tests.conformance.system.operator import Json
from tests.conformance.system.system import play

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"


def a_class(name: str, mode: str = "WaitForFirstConsumer") -> Json:
    """A storage class without a provisioner."""
    return {"metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}


def a_volume(name: str, class_name: str, node: str = "") -> Json:
    """A volume, on that node only when one is named."""
    where = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}}} if node else {}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class_name,
        "persistentVolumeReclaimPolicy": "Retain",
        "local" if node else "hostPath": {"path": "/data"},
        **affinity,
    }
    return {"metadata": {"name": name}, "spec": spec}


def a_claim(name: str, class_name: str) -> Json:
    """A claim of that class."""
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_name}
    return {"metadata": {"name": name}, "spec": {**spec, "resources": {"requests": {"storage": "1Gi"}}}}


def a_template(claim: str) -> Json:
    """A pod template whose pod runs for a moment with that claim."""
    container = {"name": "main", "image": "example.org/work:1", "command": ["work"]}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"annotations": play(runsS=0.2)}, "spec": spec}
