"""Writes the status of an allocation, fenced by the version that the decision was based on.

Owns the contents of request and response. Only the status is sent, because the server ignores all else in a PUT of
`/status`, and a spec may be large. Only the metadata is returned, because all else equals what was sent. Must not
decide anything.
"""

import msgspec

from slipway.crd.v1alpha1 import Allocation, AllocationStatus
from slipway.kube.ports import ReplacesStatus
from slipway.kube.resources import ALLOCATIONS, brief

_BRIEF = brief(ALLOCATIONS)


async def put_status(kube: ReplacesStatus, allocation: Allocation, status: AllocationStatus) -> Allocation:
    """Write the status and return the allocation as stored.

    `allocation` is the object as read. Its resource version is the fence: the write fails if any part of the object was
    written since.

    Raises:
        StaleError: the object has changed since it was read; NotFoundError: it was deleted.
        InvalidError: the server's own rules refuse it.
    """
    answer = await kube.replace_status(_BRIEF, {"metadata": allocation.metadata.fence, "status": status})
    return msgspec.structs.replace(allocation, metadata=answer.metadata, status=status)
