"""The verbs on allocations, for one allocation or a batch: kill, hold, resume, priority, move, delete.

Owns the conditions under which a verb is refused, and its writes. It knows neither the caller nor the request, because
the routes authorise first. Each `check_` raises before a write, so that a dry run and the verb refuse the same.
"""

import math

from slipway.api.allocations.changes import STOPPED, has_ended
from slipway.api.cluster.cluster_view import is_node_ready
from slipway.api.cluster.seen_nodes import nodes_now
from slipway.api.deps import ApiDeps
from slipway.api.http.errors import ConflictError
from slipway.crd.transitions import id_of, ring_of, stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import FieldError, InvalidError
from slipway.model.lifecycle import RANK_ENDS, Kind, Phase
from slipway.model.times import SKEW_S, parse_duration, parse_time

PAUSABLE = (Kind.TRAINING, Kind.COMMAND)
GRACE_MIN_S, GRACE_MAX_S = 1, 86_400
SECOND_KILL_AFTER_S = 2.0
"""An earlier second kill is ignored: it may be the first one, sent again because its answer was lost."""


def grace_of(text: str) -> int | None:
    """Return the grace period in whole seconds; None for an empty text. Raises InvalidError.

    It is at least one second: with zero, nothing would confirm that the containers are gone.
    """
    if not text:
        return None
    try:
        return min(GRACE_MAX_S, max(GRACE_MIN_S, math.ceil(parse_duration(text))))
    except ValueError:
        detail = f"{text!r} is not a duration; write one such as 5s or 1m"
        raise InvalidError(f"grace: {detail}", fields=(FieldError("/grace", detail),)) from None


async def kill(parts: ApiDeps, found: Allocation, *, grace_s: int | None, force: bool) -> Allocation:
    """Commit the cancel; a second kill, or `force`, shortens the grace period of its pods to the minimum.

    `force` also gives up its ranks on nodes that are not ready. An allocation that has ended is not changed.
    """
    if has_ended(found):
        return found
    if grace_s is None and (force or _is_second_kill(found, parts.clock.now())):
        grace_s = GRACE_MIN_S
    killed = await parts.changes.kill(found)
    if grace_s is not None:
        killed = await parts.changes.shorten_grace(killed, grace_s)
    if force and (lost := await _on_silent_nodes(parts, killed)):
        killed = await parts.changes.forget(killed, lost)
    return killed


def occupied_nodes(allocation: Allocation) -> set[str]:
    """Return the nodes of the ranks that have not ended."""
    return {rank.node for rank in allocation.status.ranks or () if rank.node and rank.phase not in RANK_ENDS}


def check_change(found: Allocation) -> None:
    """Raises ConflictError when the allocation has ended, so that it cannot be changed."""
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; nothing of it can change")


def check_hold(found: Allocation) -> None:
    """Raises ConflictError when the allocation can be neither held nor paused."""
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; there is nothing to hold")
    is_live = found.status.phase is not Phase.PENDING
    if is_live and found.spec.kind not in PAUSABLE:
        raise ConflictError(f"a {found.spec.kind} that has started cannot be paused; kill it, or let it run")
    if is_live and stop_reason(found) is not None:
        raise ConflictError(f"allocation {id_of(found)} is being stopped; there is nothing to pause")


async def hold(parts: ApiDeps, found: Allocation) -> Allocation:
    """Hold the allocation: a pending one does not start, a running one is preempted. The caller ran `check_hold`."""
    return await parts.changes.pause(found, "paused")


def check_resume(found: Allocation) -> None:
    """Raises ConflictError when the allocation has ended, so that it cannot start again."""
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; launch it again")


async def resume(parts: ApiDeps, found: Allocation) -> Allocation:
    """Let the allocation start again. The caller ran `check_resume`."""
    return await parts.changes.write(found, {"hold": False})


def check_delete(found: Allocation, *, force: bool) -> None:
    """Raises ConflictError when the allocation has not ended, unless `force` allows to end it first."""
    if force or has_ended(found):
        return
    detail = f"allocation {id_of(found)} is {found.status.phase}, and only an allocation that has ended can be deleted"
    raise ConflictError(f"{detail}; kill it first, or send force to end and delete it")


def _is_second_kill(allocation: Allocation, now: float) -> bool:
    """Whether an earlier kill is already ending the allocation, and this call is not a retry of the same request."""
    last = ring_of(allocation)[-1]
    is_ending = allocation.status.phase is Phase.TERMINATING and allocation.spec.desired == STOPPED
    since_s = now - parse_time(last.time)
    return is_ending and (since_s >= SECOND_KILL_AFTER_S or since_s < -SKEW_S)


async def _on_silent_nodes(parts: ApiDeps, allocation: Allocation) -> set[str]:
    """Return the nodes with ranks of the allocation that have not ended, if the node is not ready."""
    if has_ended(allocation):
        return set()
    return await nodes_now(parts.kube, occupied_nodes(allocation), lambda node: not is_node_ready(node))
