"""What the verbs on an allocation do, whether they come for one or for many: kill, hold, resume, priority, move,
delete.

Owns when a verb is refused and what it writes. Does not know who calls or which request it was: the routes authorise
first. Each `check_` raises before anything is written, so that a dry run and the verb itself refuse the same.
"""

import math

from slipway.api.changes import STOPPED, has_ended
from slipway.api.cluster_view import is_node_ready
from slipway.api.deps import ApiDeps
from slipway.api.http_errors import ConflictError
from slipway.api.seen_nodes import nodes_now
from slipway.crd.transitions import id_of, ring_of, stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import FieldError, InvalidError
from slipway.model.duration import parse_duration
from slipway.model.lifecycle import RANK_ENDS, Kind, Phase
from slipway.model.times import SKEW_S, parse_time

PAUSABLE = (Kind.TRAINING, Kind.COMMAND)
GRACE_MIN_S, GRACE_MAX_S = 1, 86_400
SECOND_KILL_AFTER_S = 2.0
"""A kill that follows sooner may be the first one, sent again because its answer was lost."""


def grace_of(text: str) -> int | None:
    """Whole seconds, at least one: without any, nothing would confirm that the containers are gone."""
    if not text:
        return None
    try:
        return min(GRACE_MAX_S, max(GRACE_MIN_S, math.ceil(parse_duration(text))))
    except ValueError:
        detail = f"{text!r} is no duration; write such as 5s or 1m"
        raise InvalidError(f"grace: {detail}", fields=(FieldError("/grace", detail),)) from None


async def kill(parts: ApiDeps, found: Allocation, *, grace_s: int | None, force: bool) -> Allocation:
    """Commit the cancel; a second one, or `force`, ends the grace of its pods. Once ended, nothing happens."""
    if has_ended(found):
        return found
    if grace_s is None and (force or _is_second_kill(found, parts.clock.now())):
        grace_s = GRACE_MIN_S
    killed = await parts.changes.kill(found)
    if grace_s is not None:
        killed = await parts.changes.hurry(killed, grace_s)
    if force and (lost := await _on_silent_nodes(parts, killed)):
        killed = await parts.changes.forget(killed, lost)
    return killed


def check_change(found: Allocation) -> None:
    """Raises ConflictError for what nothing can change any more."""
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; nothing of it can change")


def check_hold(found: Allocation) -> None:
    """Raises ConflictError for what can neither be held nor paused."""
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; there is nothing to hold")
    is_live = found.status.phase is not Phase.PENDING
    if is_live and found.spec.kind not in PAUSABLE:
        raise ConflictError(f"a {found.spec.kind} that has started cannot be paused; kill it, or let it run")
    if is_live and stop_reason(found) is not None:
        raise ConflictError(f"allocation {id_of(found)} is being stopped; there is nothing to pause")


async def hold(parts: ApiDeps, found: Allocation) -> Allocation:
    """Do not start it; one that runs is preempted and held. It was checked."""
    return await parts.changes.pause(found, "paused")


def check_resume(found: Allocation) -> None:
    """Raises ConflictError for what cannot start again."""
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; launch it again")


async def resume(parts: ApiDeps, found: Allocation) -> Allocation:
    """Let it start again. It was checked."""
    return await parts.changes.write(found, {"hold": False})


def check_delete(found: Allocation, *, force: bool) -> None:
    """Raises ConflictError for what has not ended, unless `force` lets it be ended first."""
    if force or has_ended(found):
        return
    detail = f"allocation {id_of(found)} is {found.status.phase}, and only what has ended is deleted"
    raise ConflictError(f"{detail}; kill it, or send force to end it first")


def _is_second_kill(allocation: Allocation, now: float) -> bool:
    """Whether it is being ended for a kill before this one, and not for a request that was sent twice."""
    last = ring_of(allocation)[-1]
    is_ending = allocation.status.phase is Phase.TERMINATING and allocation.spec.desired == STOPPED
    since_s = now - parse_time(last.time)
    return is_ending and (since_s >= SECOND_KILL_AFTER_S or since_s < -SKEW_S)


async def _on_silent_nodes(parts: ApiDeps, allocation: Allocation) -> set[str]:
    """The nodes that it is on and that do not answer."""
    on = {rank.node for rank in allocation.status.ranks or () if rank.node and rank.phase not in RANK_ENDS}
    if has_ended(allocation):
        return set()
    return await nodes_now(parts.kube, on, lambda node: not is_node_ready(node))
