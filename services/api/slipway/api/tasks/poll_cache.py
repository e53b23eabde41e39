"""Shared reads of an allocation that many requests poll; marks it as ready once, when its ranks have met."""

import msgspec

from slipway.api.allocations.changes import check_attempt
from slipway.api.deps import ApiDeps
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, Signals
from slipway.errors import PermanentError, StaleError, TransientError
from slipway.kube.resources import ALLOCATIONS
from slipway.runtime import log

_log = log.get_logger(__name__)


async def look_again(parts: ApiDeps, allocation: Allocation) -> Allocation:
    """Read the allocation again; all its pollers share the read.

    Return `allocation` unchanged when the API server does not answer right now, or another object has its name.
    """
    meta = allocation.metadata
    try:
        found = await parts.polled.get(
            (meta.namespace, meta.name), lambda: parts.kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        )
    except TransientError:
        return allocation
    return found if found.metadata.uid == meta.uid else allocation


async def still_on(parts: ApiDeps, allocation: Allocation) -> Allocation:
    """Read the allocation again. Raises ConflictError when the attempt or the allocation has ended."""
    found = await look_again(parts, allocation)
    check_attempt(found, allocation.status.attempt)
    return found


async def make_ready(parts: ApiDeps, allocation: Allocation) -> None:
    """Mark the allocation as ready, because its ranks have met; once per attempt, whichever rank calls.

    Best effort: a failed write is only logged.
    """
    if not parts.readied.may(f"{allocation.metadata.uid}/{allocation.status.attempt}"):
        return

    def is_ready(signals: Signals) -> Signals:
        return msgspec.structs.replace(signals, ready=True)

    try:
        current = await parts.lookup.reload(allocation)
        await parts.changes.signal(current, is_ready, attempt=allocation.status.attempt)
    except (TransientError, PermanentError, StaleError) as error:
        _log.warning("not marked as ready", allocation=id_of(allocation), error=str(error))
