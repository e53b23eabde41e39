"""The admission checks before any node is considered: may the allocation start at all, and is its request sound?

Each check returns an Explanation, or None when its gate is open. The order of the checks is that of `Gate`.
"""

from datetime import UTC, datetime

from slipway.model.duration import format_duration
from slipway.model.facts import AllocationFact
from slipway.model.reasons import NEVER, DependencyEnd, Gate
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.plan_types import Explanation, Remedy
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

AWAITED_SHOWN_MAX = 2
"""Number of awaited allocations that an explanation names."""
_VERBS = {DependencyEnd.SUCCEEDED: "succeed", DependencyEnd.FAILED: "fail", DependencyEnd.ENDED: "end"}


def closed_gate(allocation: AllocationFact, snapshot: PoolSnapshot, tree: QueueTree, now: float) -> Explanation | None:
    """Return the first closed gate, from Invalid to WaitingForVolume, then the budget; None when all are open."""
    if allocation.invalid:
        return Explanation(gate=Gate.INVALID, message=allocation.invalid, is_never=True)
    if allocation.namespace not in snapshot.workspaces:
        return Explanation(
            gate=Gate.NOT_A_WORKSPACE,
            message=f"namespace {allocation.namespace} is not a workspace; label it slipway.dev/workspace=true",
        )
    if snapshot.pool.workspaces and allocation.namespace not in snapshot.pool.workspaces:
        return Explanation(
            gate=Gate.POOL_NOT_FOR_WORKSPACE,
            message=f"pool {snapshot.pool.name} is not for workspace {allocation.namespace}; use another pool, or have "
            "an administrator add the workspace to its spec.workspaces",
            is_never=True,
        )
    if allocation.hold:
        change = (Remedy(kind="release"),)
        return Explanation(gate=Gate.HELD, message="held; release it to let it start", change=change)
    if allocation.waits_for:
        return Explanation(gate=Gate.WAITING_FOR_DEPENDENCY, message=_awaited(allocation.waits_for))
    if allocation.not_before > now:
        return Explanation(
            gate=Gate.BACKOFF,
            message=f"attempt {allocation.attempt} waits until {_clock(allocation.not_before)} (restart backoff)",
            change=(Remedy(kind="wait", until=allocation.not_before),),
        )
    return (
        _queue_gate(allocation, snapshot, tree)
        or (_flavor_gate(allocation, snapshot) if allocation.flavors else None)
        or _job_gate(allocation, snapshot)
        or _pods_gate(allocation)
        or _range_gate(allocation)
        or _volume_gate(allocation, snapshot)
        or _budget_gate(allocation, tree)
    )


def _queue_gate(allocation: AllocationFact, snapshot: PoolSnapshot, tree: QueueTree) -> Explanation | None:
    aside = tree.closed_reason(allocation.queue)
    if aside:
        return Explanation(
            gate=Gate.UNKNOWN_QUEUE, message=f"nothing starts in queue {allocation.queue}: {aside}", is_never=True
        )
    if tree.queue(allocation.queue) is None:
        return Explanation(
            gate=Gate.UNKNOWN_QUEUE,
            message=f"pool {snapshot.pool.name} has no queue {allocation.queue}",
            is_never=True,
        )
    if not tree.is_leaf(allocation.queue):
        return Explanation(
            gate=Gate.UNKNOWN_QUEUE,
            message=f"queue {allocation.queue} has queues below it; launch into one of them",
            is_never=True,
        )
    return None


def _flavor_gate(allocation: AllocationFact, snapshot: PoolSnapshot) -> Explanation | None:
    """Closed when the pool lacks an accepted flavor; the allocation waits for it, as it would for a missing queue."""
    known = [flavor.name for flavor in snapshot.pool.flavors]
    for flavor in allocation.flavors:
        if flavor not in known:
            has = f"it has {', '.join(known)}" if known else "it has no flavors"
            text = f"pool {snapshot.pool.name} has no flavor {flavor}; {has}"
            return Explanation(gate=Gate.UNKNOWN_FLAVOR, message=text, is_never=True)
    return None


def _job_gate(allocation: AllocationFact, snapshot: PoolSnapshot) -> Explanation | None:
    """Closed without the job, because the job's limits could not be enforced."""
    if not allocation.job or snapshot.job_of(allocation) is not None:
        return None
    return Explanation(
        gate=Gate.UNKNOWN_JOB,
        message=f"workspace {allocation.namespace} has no job {allocation.job}",
        is_never=True,
    )


def _pods_gate(allocation: AllocationFact) -> Explanation | None:
    """Closed unless a gang has at least its minimum of ranks, per role and in total."""
    for role in allocation.roles:
        if role.count < role.minimum:
            return _too_few(f"role {role.name} has {role.count} ranks and needs {role.minimum}")
    count = allocation.rank_count
    if count < allocation.minimum:
        return _too_few(f"the gang has {count} ranks and needs {allocation.minimum}")
    if count == 0:
        return _too_few("the gang has 0 ranks and needs 1")
    return None


def _range_gate(allocation: AllocationFact) -> Explanation | None:
    """Closed when a LimitRange refuses one of the pods, since it would refuse the pod at any time."""
    if not allocation.out_of_range:
        return None
    return Explanation(gate=Gate.LIMIT_RANGE, message=f"{NEVER}: {allocation.out_of_range}", is_never=True)


def _volume_gate(allocation: AllocationFact, snapshot: PoolSnapshot) -> Explanation | None:
    """Closed while a claim has no volume, because its pod could not start on any node."""
    volumes = snapshot.usage.volumes
    if not volumes:
        return None
    for claim in dict.fromkeys(claim for role in allocation.roles for claim in role.claims):
        volume = volumes.get((allocation.namespace, claim))
        if volume is not None and volume.waits:
            # A state that lasts only a moment is not written to an object.
            gate = Gate.NOT_YET_CONSIDERED if volume.is_unread else Gate.WAITING_FOR_VOLUME
            return Explanation(gate=gate, message=volume.waits)
    return None


def _budget_gate(allocation: AllocationFact, tree: QueueTree) -> Explanation | None:
    closed = tree.exhausted.get(allocation.queue)
    if closed is None or not any(role.requests.gpus() or role.gpu_milli for role in allocation.roles):
        return None
    hours, window = closed.budget.gpu_ms / 3_600_000, format_duration(closed.budget.window_s)
    return Explanation(
        gate=Gate.WAITING_FOR_QUOTA,
        message=f"queue {closed.queue} has used up its budget of {hours:g} GPU-hours per {window}; "
        f"the next window begins at {_clock(closed.until)}",
    )


def _awaited(waits_for: tuple[tuple[str, str], ...]) -> str:
    """Return the text that names the awaited allocations; only the first when there are many."""
    shown = [f"{name} to {_VERBS[DependencyEnd(when)]}" for name, when in waits_for[:AWAITED_SHOWN_MAX]]
    more = len(waits_for) - len(shown)
    if more > 0:
        return f"waits for {', '.join(shown)}, and for {more} more {'allocation' if more == 1 else 'allocations'}"
    return f"waits for {' and '.join(shown)}"


def _too_few(message: str) -> Explanation:
    return Explanation(gate=Gate.NOT_ENOUGH_PODS, message=message, is_never=True)


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
