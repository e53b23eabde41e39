"""The Service that the first ranks of several allocations share: its object, its owners, and its check if it exists.

Owns the contents of the object, and the check whether an existing Service of that name can be used. Pure: it makes no
call.

Invariants: the Service selects pods only by its own label, which only the pod worker sets. Each allocation that uses it
is an owner, and none is its controller, so that Kubernetes deletes the Service after the last of them.
"""

from slipway.crd import meta
from slipway.crd.meta import ObjectMeta, OwnerReference, RawObject
from slipway.crd.roleresources import objects_of
from slipway.crd.v1alpha1 import Allocation, SharedServiceSpec
from slipway.kube.objects import Service


def service_of(allocation: Allocation, wanted: SharedServiceSpec) -> RawObject:
    """Return the Service as it is created for the first allocation that uses it."""
    labels = {meta.LABEL_SERVICE: wanted.name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": wanted.name,
            "namespace": allocation.metadata.namespace,
            "labels": {**labels, meta.LABEL_MANAGED_BY: meta.MANAGED_BY},
            "ownerReferences": owners_json([owner_of(allocation)]),
        },
        "spec": {
            "type": "ClusterIP",
            "selector": labels,
            "ports": [{"name": "service", "port": wanted.port, "targetPort": wanted.port}],
        },
    }


def owner_of(allocation: Allocation) -> OwnerReference:
    """Return the owner reference of the allocation for the Service."""
    return OwnerReference(
        api_version=meta.GROUP_VERSION,
        kind="Allocation",
        name=allocation.metadata.name,
        uid=allocation.metadata.uid,
    )


def owners_json(owners: list[OwnerReference]) -> list[RawObject]:
    """Return the owners as JSON."""
    return [{"apiVersion": each.api_version, "kind": each.kind, "name": each.name, "uid": each.uid} for each in owners]


def is_shared(found: ObjectMeta) -> bool:
    """Whether Slipway created the Service for allocations that share it."""
    labels = found.labels
    return labels.get(meta.LABEL_SERVICE) == found.name and labels.get(meta.LABEL_MANAGED_BY) == meta.MANAGED_BY


def refusal_of(found: Service, wanted: SharedServiceSpec) -> str:
    """Return why the allocation cannot use the existing Service of that name, and what to do; empty when it can."""
    if not is_shared(found.metadata):
        return (
            f"/service/name: Service {wanted.name} exists and was not made by Slipway; choose another name, or delete "
            f"it with `kubectl delete service {wanted.name} --namespace {found.metadata.namespace}`"
        )
    ports = [port.get("port") for port in objects_of(found.spec.get("ports"))]
    if ports != [wanted.port]:
        has = ", ".join(map(str, ports)) or "none"
        return (
            f"/service/port: Service {wanted.name} is in use with port {has}, not {wanted.port}; write that port, or "
            "choose another name"
        )
    return ""
