"""The admission checks before any node is considered: may the allocation start at all, and is its request sound?

Each check returns an Explanation, or None when its gate is open. The order of the checks is that of `Gate`.

A ResourceQuota of its namespace may refuse the pods of a gang. `NamespaceQuotas` counts the use of each quota in one
tick: what Kubernetes has counted, what is admitted without pods yet, and what the plan admits. A gang passes only when
all its pods fit. Otherwise two gangs could each create some of their pods and then wait for each other.

Kubernetes counts with a delay. So admissions that are not released, whose pods may not exist yet, are added to its
count, and the use is never less than what our admitted ranks request. A gang may therefore wait a moment longer than
necessary. Not known here: admissions of other pools whose pods do not exist yet, and quotas of objects other than pods.
The pod worker meets these at the launch, and then deletes the pods that it created.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from slipway.model.facts import AllocationFact, QuotaFact, RoleFact
from slipway.model.namespace_limits import is_counted, usage_of
from slipway.model.reasons import NEVER, DependencyEnd, Gate
from slipway.model.resources import PODS, Resources
from slipway.model.times import format_duration
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.plan_types import Explanation, Remedy
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot

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


Amounts = dict[str, int]
Refusal = tuple[QuotaFact, str, int, int]
"""(the quota, its name for the resource, the requested amount, the amount in use); amounts in thousandths"""


class NamespaceQuotas:
    """The ResourceQuotas of a snapshot, with their use."""

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self._quotas = snapshot.quotas
        self._used: dict[tuple[str, str], Amounts] = {}
        self._asks: dict[tuple[int, str], Amounts] = {}
        """{(id of a role, quota): the amounts of one rank}; the snapshot keeps the roles alive"""
        held: dict[str, list[Holding]] = {}
        for holding in snapshot.holdings.values():
            if holding.allocation.namespace in snapshot.quotas:
                held.setdefault(holding.allocation.namespace, []).append(holding)
        for namespace, quotas in snapshot.quotas.items():
            for quota in quotas:
                self._used[namespace, quota.name] = self._in_use(quota, held.get(namespace, ()))

    def refusal(self, fact: AllocationFact, demand: Resources) -> Refusal | None:
        """Return the first quota that `demand` more of `fact` exceeds; None when all permit it.

        A quota that the demand alone exceeds is returned before others.
        """
        first: Refusal | None = None
        for quota in self._quotas.get(fact.namespace, ()):
            used = self._used[fact.namespace, quota.name]
            asked = self._asked(fact, demand, quota)
            for name in sorted(asked):
                hard = quota.hard[name]
                if asked[name] and used.get(name, 0) + asked[name] > hard:
                    refusal = quota, name, asked[name], used.get(name, 0)
                    if asked[name] > hard:
                        return refusal
                    first = first or refusal
        return first

    def take(self, fact: AllocationFact, demand: Resources, times: int = 1) -> None:
        """Add `demand` of `fact` to the use; `times` = -1 removes it."""
        for quota in self._quotas.get(fact.namespace, ()):
            used = self._used[fact.namespace, quota.name]
            for name, amount in self._asked(fact, demand, quota).items():
                used[name] = used.get(name, 0) + amount * times

    def _in_use(self, quota: QuotaFact, held: Iterable[Holding]) -> Amounts:
        ours, unseen = Amounts(), Amounts()
        for holding in held:
            fact = holding.allocation
            for rank in holding.charges:
                role = fact.role_of(rank)
                if role is not None:
                    _add(ours, self._of_rank(role, quota))
                    if not fact.released:
                        _add(unseen, self._of_rank(role, quota))
        return {
            name: max(quota.used.get(name, 0) + unseen.get(name, 0), ours.get(name, 0)) for name in sorted(quota.hard)
        }

    def _of_rank(self, role: RoleFact, quota: QuotaFact) -> Amounts:
        key = (id(role), f"{quota.namespace}/{quota.name}")
        found = self._asks.get(key)
        if found is None:
            used = usage_of(role.requests, role.limits) if is_counted(role, quota) else {}
            found = self._asks[key] = {name: amount for name, amount in used.items() if name in quota.hard}
        return found

    def _asked(self, fact: AllocationFact, demand: Resources, quota: QuotaFact) -> Amounts:
        """Return the amounts of the ranks that `demand` consists of."""
        ranks = demand.get(PODS)
        each = [self._of_rank(role, quota) for role in fact.roles]
        if len(each) == 1:
            return {name: amount * ranks for name, amount in each[0].items()}
        counts = next(
            (mix for mix in (rank_request.targets(fact), [role.count for role in fact.roles]) if sum(mix) == ranks),
            None,
        )
        if counts is None:
            return _most(each, [role.count for role in fact.roles], ranks)
        asked = Amounts()
        for amounts, count in zip(each, counts, strict=True):
            _add(asked, amounts, count)
        return asked


def _most(each: list[Amounts], counts: list[int], ranks: int) -> Amounts:
    """Return the largest possible amounts of `ranks` ranks when the number per role is unknown."""
    most = Amounts()
    for name in sorted({name for amounts in each for name in amounts}):
        left = ranks
        for amount, count in sorted(
            ((item.get(name, 0), count) for item, count in zip(each, counts, strict=True)), reverse=True
        ):
            taken = min(left, count)
            most[name] = most.get(name, 0) + amount * taken
            left -= taken
    return most


def _add(into: Amounts, amounts: Mapping[str, int], times: int = 1) -> None:
    for name, amount in amounts.items():
        into[name] = into.get(name, 0) + amount * times
