"""Whether the pods of a gang may be created, or a ResourceQuota of its namespace refuses them.

Owns the use of each ResourceQuota in one tick: what Kubernetes has counted, what is admitted without pods yet, and what
the plan admits. Knows nothing of queues. A gang passes only when all its pods fit. Otherwise two gangs could each
create some of their pods and then wait for each other.

Kubernetes counts with a delay. So admissions that are not released, whose pods may not exist yet, are added to its
count, and the use is never less than what our admitted ranks request. A gang may therefore wait a moment longer than
necessary. Not known here: admissions of other pools whose pods do not exist yet, and quotas of objects other than pods.
The pod worker meets these at the launch, and then deletes the pods that it created.
"""

from collections.abc import Iterable, Mapping

from slipway.model.facts import AllocationFact, QuotaFact, RoleFact
from slipway.model.podquota import is_counted, usage_of
from slipway.model.resources import PODS, Resources
from slipway.scheduler.plan.state import gang_size
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot

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
            (mix for mix in (gang_size.targets(fact), [role.count for role in fact.roles]) if sum(mix) == ranks), None
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
