"""Converts an allocation to the record of its archived log and back, with the fields for reading and authorisation.

Owns the choice of the fields that are stored: no command, no environment, no image.
"""

from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER, ObjectMeta
from slipway.crd.roleresources import containers_of, main_container, object_of, objects_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, AllocationStatus, RoleSpec
from slipway.logarchive.pieces import ArchiveRecord
from slipway.model.lifecycle import Phase


def record_of(allocation: Allocation) -> ArchiveRecord:
    """Return the record of the allocation."""
    meta, template = allocation.metadata, allocation.spec.template
    containers = [str(each.get("name")) for each in containers_of(template)]
    inits = objects_of(object_of(template.get("spec")).get("initContainers"))
    return ArchiveRecord(
        allocation=id_of(allocation),
        workspace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        kind=allocation.spec.kind,
        ranks=sum(role.count for role in allocation.spec.ranks) or 1,
        attempt=allocation.status.attempt,
        main=containers[main_container(template)] if containers else "",
        containers=tuple(containers),
        init_containers=tuple(str(each.get("name")) for each in inits),
        created_at=meta.creation_timestamp or "",
    )


def allocation_of(record: ArchiveRecord) -> Allocation:
    """Return an ended allocation to which the log of this record belongs."""
    spec = {
        "containers": [{"name": name} for name in record.containers],
        "initContainers": [{"name": name} for name in record.init_containers],
    }
    return Allocation(
        metadata=ObjectMeta(
            name=record.name,
            namespace=record.workspace,
            uid=record.uid,
            creation_timestamp=record.created_at or None,
        ),
        spec=AllocationSpec(
            kind=record.kind,
            ranks=[RoleSpec(name="ranks", count=record.ranks)],
            template={"metadata": {"annotations": {ANNOTATION_MAIN_CONTAINER: record.main}}, "spec": spec},
        ),
        status=AllocationStatus(
            phase=Phase.TERMINATED, attempt=record.attempt, ended_at=record.ended_at or record.created_at
        ),
    )
