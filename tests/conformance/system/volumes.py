"""Storage objects of a cluster: classes, volumes and claims, and a pod template that uses a claim."""

from tests.conformance.system.neighbours import PoolUnderTest
from tests.conformance.system.operator import Json
from tests.conformance.system.system import play
from tests.support.wait import wait_until

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
ZONE = "topology.kubernetes.io/zone"


def a_class(name: str, mode: str = "WaitForFirstConsumer") -> Json:
    """A storage class without a provisioner."""
    return {"metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}


def a_volume(name: str, class_name: str, node: str = "", *, zone: str = "", mode: str = "ReadWriteOnce") -> Json:
    """A volume, limited to that node or zone if one is named."""
    where = {"key": ZONE if zone else "kubernetes.io/hostname", "operator": "In", "values": [zone or node]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [where]}]}
    affinity = {"nodeAffinity": {"required": required}} if node or zone else {}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": [mode],
        "storageClassName": class_name,
        "persistentVolumeReclaimPolicy": "Retain",
        "local" if node else "hostPath": {"path": "/data"},
        **affinity,
    }
    return {"metadata": {"name": name}, "spec": spec}


def a_claim(name: str, class_name: str, *, mode: str = "ReadWriteOnce") -> Json:
    """A claim of that class."""
    spec = {"accessModes": [mode], "storageClassName": class_name}
    return {"metadata": {"name": name}, "spec": {**spec, "resources": {"requests": {"storage": "1Gi"}}}}


def a_template(claim: str) -> Json:
    """A pod template whose pod runs for a moment with that claim."""
    container = {"name": "main", "image": "example.org/work:1", "command": ["work"]}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"annotations": play(runsS=0.2)}, "spec": spec}


def in_a_zone(own_pool: PoolUnderTest, home: str) -> str:
    """A claim bound to a volume in the zone of the node `home`; each node of the place has a zone of its own."""
    operator, name = own_pool.system.operator, f"zoned-{own_pool.name}"
    for number, node in enumerate(own_pool.nodes):
        operator.change(f"/api/v1/nodes/{node}", {"metadata": {"labels": {ZONE: f"zone-{number}"}}})
    zone = f"zone-{own_pool.nodes.index(home)}"
    own_pool.make(CLASSES, a_class(name, "Immediate"))
    own_pool.make(VOLUMES, a_volume(name, name, zone=zone, mode="ReadWriteMany"))
    own_pool.make(CLAIMS, a_claim(name, name, mode="ReadWriteMany"))
    wait_until(lambda: operator.get(f"{CLAIMS}/{name}")["status"]["phase"] == "Bound", "the claim is bound")
    return name
