"""Claims of the local cluster are bound at once, so that launches do not wait for volumes."""

from tests.unit.local.apiserver.support import a_core

CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


def test_claim_is_bound_to_a_volume_of_its_own() -> None:
    """A claim is bound once, to its own volume with the requested size; nothing is written after that."""
    core = a_core()
    made = core.create("persistentvolumeclaims", "default", CLAIM)
    assert made["status"]["phase"] == "Pending"
    core.settle()
    bound = core.get("persistentvolumeclaims", "default", "data")
    assert bound["spec"]["volumeName"] == f"pvc-{made['metadata']['uid']}"
    assert bound["status"] == {"phase": "Bound", "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}}
    core.settle()
    assert core.get("persistentvolumeclaims", "default", "data") == bound


def test_a_claim_that_is_being_deleted_is_left_alone() -> None:
    """A claim that is being deleted is left alone; it only waits for its finalizer."""
    core = a_core()
    core.create("persistentvolumeclaims", "default", {**CLAIM, "metadata": {"name": "data", "finalizers": ["a/b"]}})
    core.delete("persistentvolumeclaims", "default", "data")
    core.settle()
    assert core.get("persistentvolumeclaims", "default", "data")["status"]["phase"] == "Pending"
