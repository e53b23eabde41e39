"""The status of an allocation, written under the version that it was decided on.

Owns what goes and what comes back: the status alone goes, because the server takes nothing else from a PUT of
`/status` and a spec may be large; its metadata alone comes back, because all else is what was sent. Must not decide
anything.
"""

import msgspec

from slipway.crd.v1alpha1 import Allocation, AllocationStatus
from slipway.kube.ports import ReplacesStatus
from slipway.kube.resources import ALLOCATIONS, brief

_BRIEF = brief(ALLOCATIONS)


async def put_status(kube: ReplacesStatus, allocation: Allocation, status: AllocationStatus) -> Allocation:
    """The allocation as it is stored then.

    `allocation` is as it was read, the fence: a write to any part of it in between makes this one fail.

    Raises:
        StaleError: it has changed since it was read; NotFoundError: it is gone.
        InvalidError: the server's own rules refuse it.
    """
    answer = await kube.replace_status(_BRIEF, {"metadata": allocation.metadata.fence, "status": status})
    return msgspec.structs.replace(allocation, metadata=answer.metadata, status=status)
