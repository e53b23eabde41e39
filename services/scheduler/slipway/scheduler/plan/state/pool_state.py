"""The observed state of one pool as columns: facts go in, snapshots come out.

Owns who uses what. A rank (allocation uid, attempt, rank) is charged once: by its pod once that is bound, else by its
admission, else by an open decision. A rank that has ended uses nothing. Pods that are not ours are charged to their
node. A missing pod is not an ended pod. Deltas are level-triggered: `set_*` with the newest fact, in any order and any
number of times, leads to the same columns as `build` over the newest facts (a property test checks this).
"""

from collections.abc import Iterable, Mapping, Set

import msgspec

from slipway.model.decay import DecayedUsage
from slipway.model.eviction_rate import EvictionLevel
from slipway.model.facts import (
    AllocationFact,
    JobFact,
    NodeFact,
    PodFact,
    PoolFact,
    QueueFact,
    QuotaFact,
    RoleFact,
    VolumeFact,
)
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Phase
from slipway.model.mig import whole_gpus
from slipway.model.position import milliseconds
from slipway.model.times import parse_time
from slipway.scheduler.plan.state.flavors import labelled, where_it_stands
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.plan.state.past_use import PastUse, Spent, user_queues
from slipway.scheduler.plan.state.pending import PendingWork
from slipway.scheduler.plan.state.plan_cache import PlanCache
from slipway.scheduler.plan.state.pod_index import is_watching, pod_class_of_pod, pod_class_of_role
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.plan.state.run_ends import RunEnds
from slipway.scheduler.plan.state.snapshot import Holding, Nomination, OpenDecision, PoolSnapshot, QueueUse
from slipway.scheduler.plan.state.usage import Charge, NodeUsage

PodKey = tuple[str, str, str]


class PoolState:
    """The observed state of `pool`."""

    def __init__(self, pool: PoolFact) -> None:
        self._pool = pool
        self._nodes: dict[str, NodeFact] = {}
        self._table: NodeTable | None = None
        self._usage: NodeUsage | None = None
        self._ends = RunEnds()
        self._pods: dict[PodKey, PodFact] = {}
        self._pods_of: dict[str, dict[PodKey, PodFact]] = {}
        self._allocations: dict[str, AllocationFact] = {}
        self._decisions: dict[str, OpenDecision] = {}
        self._leaving: frozenset[tuple[str, int]] = frozenset()
        """(uid, attempt) with an open decision to evict the whole attempt"""
        self._shrinking: dict[tuple[str, int], frozenset[int]] = {}
        """{(uid, attempt): ranks with an open decision to evict}"""
        self._growing: dict[str, OpenDecision] = {}
        """{uid: its open decision to add ranks}"""
        self._nominations: tuple[OpenDecision, ...] = ()
        self._charges: dict[str, list[Charge]] = {}
        self._holdings: dict[str, Holding] = {}
        self._backlog = PendingWork()
        self._cache = PlanCache()
        self._broken: dict[str, Holding] = {}
        self._below: dict[str, Holding] = {}
        self._use: dict[tuple[str, bool], dict[str, int]] = {}
        self._stranded: dict[tuple[str, bool], dict[str, int]] = {}
        self._slots: dict[tuple[str, str], int] = {}
        self._dirty: set[str] = set()
        self._queues: tuple[QueueFact, ...] = ()
        self._jobs: dict[tuple[str, str], JobFact] = {}
        self._is_jobs_new = False
        self._workspaces: frozenset[str] = frozenset()
        self._quotas: dict[str, tuple[QuotaFact, ...]] = {}
        self._spent: Spent = {}
        self._decayed = DecayedUsage()
        self._user_gpus: dict[tuple[str, str], int] = {}
        """{(queue, user): GPUs in use, in `GPU_UNITS`}"""
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._volumes: dict[tuple[str, str], VolumeFact] = {}
        self._watching: set[str] = set()
        """uids of the allocations whose roles depend on the labels of other pods"""

    def set_pool(self, pool: PoolFact) -> None:
        """Set the pool's changed policy."""
        before, self._pool = self._pool, pool
        self._cache = PlanCache()
        if before.flavors != pool.flavors:
            self._nodes = {name: labelled(node, pool.flavors) for name, node in self._nodes.items()}
            self._table = self._usage = None

    def set_nodes(self, nodes: Iterable[NodeFact]) -> None:
        """Set all nodes of the pool; cheap when no node has changed."""
        fresh = {node.name: self._with_flavor(node) for node in nodes}
        if fresh != self._nodes:
            self._nodes = fresh
            self._table = self._usage = None
            self._cache = PlanCache()

    def set_node(self, node: NodeFact) -> None:
        """Set one node, new or changed."""
        node = self._with_flavor(node)
        if self._nodes.get(node.name) != node:
            self._nodes[node.name] = node
            self._table = self._usage = None
            self._cache = PlanCache()

    def drop_node(self, name: str) -> None:
        """Remove a node that was deleted or now belongs to another pool."""
        if self._nodes.pop(name, None) is not None:
            self._table = self._usage = None
            self._cache = PlanCache()

    def set_pod(self, pod: PodFact) -> None:
        """Set one pod, new or changed."""
        key = (pod.namespace, pod.name, pod.uid)
        before = self._pods.get(key)
        if before == pod:
            return
        if before is not None:
            self._forget_pod(key, before)
        self._pods[key] = pod
        self._charge_pod(pod, 1)
        self._cache = PlanCache()
        if pod.allocation_uid:
            self._pods_of.setdefault(pod.allocation_uid, {})[key] = pod
            self._dirty.add(pod.allocation_uid)

    def drop_pod(self, namespace: str, name: str, uid: str) -> None:
        """Remove a pod that was deleted."""
        pod = self._pods.pop((namespace, name, uid), None)
        if pod is not None:
            self._forget_pod((namespace, name, uid), pod)

    def set_allocation(self, allocation: AllocationFact) -> None:
        """Set one allocation, new or changed; an allocation of another pool is removed."""
        if allocation.pool != self._pool.name:
            self.drop_allocation(allocation.uid)
        elif self._allocations.get(allocation.uid) != allocation:
            self._allocations[allocation.uid] = allocation
            self._dirty.add(allocation.uid)
            if is_watching(allocation.roles):
                self._watching.add(allocation.uid)
            else:
                self._watching.discard(allocation.uid)

    def drop_allocation(self, uid: str) -> None:
        """Remove an allocation that was deleted."""
        if self._allocations.pop(uid, None) is not None:
            self._dirty.add(uid)
            self._watching.discard(uid)

    def set_queues(self, queues: Iterable[QueueFact]) -> None:
        """Set all queues; queues of other pools are ignored."""
        own = [queue for queue in queues if queue.pool == self._pool.name]
        self._queues = tuple(sorted(own, key=lambda queue: queue.name))
        self._cache = PlanCache()

    def set_jobs(self, jobs: Iterable[JobFact]) -> None:
        """Set all jobs."""
        self._jobs = {(job.namespace, job.name): job for job in jobs}
        self._is_jobs_new = True
        self._cache = PlanCache()

    def set_spent(self, spent: Spent) -> None:
        """Set what the queues have used in the windows of their budgets."""
        self._spent = spent

    def set_decayed(self, usage: DecayedUsage) -> None:
        """Set the past use of queues and users; it has an effect only when the pool has `fairShare`."""
        self._decayed = usage

    def set_workspaces(self, workspaces: frozenset[str]) -> None:
        """Set the namespaces in which allocations may run."""
        self._workspaces = workspaces

    def set_quotas(self, quotas: Iterable[QuotaFact]) -> None:
        """Set all ResourceQuotas."""
        found: dict[str, list[QuotaFact]] = {}
        for quota in quotas:
            if quota.hard:
                found.setdefault(quota.namespace, []).append(quota)
        fresh = {space: tuple(sorted(own, key=lambda each: each.name)) for space, own in found.items()}
        if fresh != self._quotas:
            self._quotas = fresh
            self._cache = PlanCache()

    def set_namespaces(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        """Set {namespace: its labels} of all namespaces."""
        self._namespaces = dict(labels)
        self._cache = PlanCache()

    def set_volumes(self, volumes: Iterable[VolumeFact]) -> None:
        """Set all volume claims whose volumes have a known location."""
        self._volumes = {(volume.namespace, volume.name): volume for volume in volumes}
        self._cache = PlanCache()

    def snapshot(
        self,
        open_decisions: Iterable[OpenDecision] = (),
        now: float = 0.0,
        *,
        evicted: tuple[EvictionLevel, ...] = (),
    ) -> PoolSnapshot:
        """Return the state as it is known.

        `open_decisions` of the ledger replace admissions that are not observed yet. `evicted` is the use of the
        eviction limits by the ledger.
        """
        self._set_decisions(open_decisions)
        if self._is_jobs_new:
            self._backlog.set_jobs(self._jobs, now)
            self._is_jobs_new = False
        self._backlog.set_aging(self._pool.aging, now)
        self._backlog.set_user_queues(user_queues(self._pool, self._queues), now)
        table, usage = self._current(now)
        seen = usage.copy()
        seen.see(self._namespaces, self._volumes, is_watched=bool(self._watching))
        return PoolSnapshot(
            pool=self._pool,
            table=table,
            usage=seen,
            backlog=self._backlog,
            groups=self._backlog.groups(now),
            cache=self._cache,
            holdings=dict(self._holdings),
            ends=self._ends,
            broken=self._still_broken(),
            below=tuple(self._below.values()),
            use={queue: _use_of(queue, self._use) for queue, _ in self._use},
            stranded={queue: _use_of(queue, self._stranded) for queue, _ in self._stranded},
            slots={job: count for job, count in self._slots.items() if count},
            queues=self._queues,
            jobs=self._jobs,
            workspaces=self._workspaces,
            quotas=self._quotas,
            spent=self._spent,
            past=self._past(now),
            evicted=evicted,
            now=now,
            nominations=tuple(self._nomination(number, each) for number, each in enumerate(self._nominations)),
        )

    def _past(self, now: float) -> PastUse | None:
        rule = self._pool.fair_share
        if rule is None:
            return None
        half_life_ms = milliseconds(rule.half_life_s)
        is_known = self._decayed.half_life_ms == half_life_ms
        held: dict[str, dict[str, int]] = {}
        for (queue, user), units in self._user_gpus.items():
            if units:
                held.setdefault(queue, {})[user] = units
        return PastUse(
            half_life_ms=half_life_ms,
            history=rule.history,
            used=self._decayed.at(now) if is_known else {},
            held=held,
        )

    def _with_flavor(self, node: NodeFact) -> NodeFact:
        return labelled(node, self._pool.flavors) if self._pool.flavors else node

    def _current(self, now: float) -> tuple[NodeTable, NodeUsage]:
        """Return the table and the usage, after each dirty allocation was booked again."""
        if self._table is None or self._usage is None:
            self._table = NodeTable(self._nodes.values())
            self._usage = NodeUsage(self._table)
            for pod in self._pods.values():
                self._charge_pod(pod, 1)
            self._charges.clear()
            self._ends = RunEnds()
            self._dirty |= self._allocations.keys() | self._decisions.keys()
        for uid in sorted(self._dirty):
            self._book(uid, self._usage, now)
        self._dirty.clear()
        self._usage.touched.clear()
        return self._table, self._usage

    def _set_decisions(self, open_decisions: Iterable[OpenDecision]) -> None:
        entries = list(open_decisions)
        fresh = {entry[0].uid: entry for entry in entries if entry[0].kind is DecisionKind.ADMIT}
        self._nominations = tuple(entry for entry in entries if entry[0].kind is DecisionKind.NOMINATE)
        growing = {entry[0].uid: entry for entry in entries if entry[0].kind is DecisionKind.GROW}
        leaving = [decision for decision, _ in entries if decision.kind is DecisionKind.EVICT]
        whole = frozenset((decision.uid, decision.attempt) for decision in leaving if not decision.ranks)
        shrinking: dict[tuple[str, int], frozenset[int]] = {}
        for decision in leaving:
            key = (decision.uid, decision.attempt)
            shrinking[key] = shrinking.get(key, frozenset()) | frozenset(decision.ranks)
        self._dirty |= {uid for uid, _ in whole ^ self._leaving}
        self._dirty |= {key[0] for key in shrinking.keys() | self._shrinking.keys() if self._is_other(key, shrinking)}
        self._dirty |= {
            uid for uid in growing.keys() | self._growing.keys() if growing.get(uid) != self._growing.get(uid)
        }
        self._leaving, self._shrinking, self._growing = whole, shrinking, growing
        for uid in fresh.keys() | self._decisions.keys():
            if fresh.get(uid) != self._decisions.get(uid):
                self._dirty.add(uid)
        self._decisions = fresh

    def _is_other(self, key: tuple[str, int], shrinking: dict[tuple[str, int], frozenset[int]]) -> bool:
        return shrinking.get(key) != self._shrinking.get(key)

    def _nomination(self, number: int, entry: OpenDecision) -> Nomination:
        decision = entry[0]
        fact, placements = self._allocations.get(decision.uid), placements_of(*entry)
        if fact is not None and self._pool.flavors and self._table is not None:
            fact = where_it_stands(fact, placements, self._table)
        return Nomination(
            id=decision.id,
            number=number,
            uid=decision.uid,
            attempt=decision.attempt,
            allocation=fact,
            placements=placements,
            devices={int(rank): numbers for rank, numbers in decision.devices.items()},
            victims=frozenset(decision.victims),
            at=parse_time(decision.at) if decision.at else 0.0,
        )

    def _charge_pod(self, pod: PodFact, times: int) -> None:
        usage = self._usage
        if usage is None or not pod.live or not pod.node:
            return
        node = usage.table.index.get(pod.node)
        if node is not None:
            usage.charge(charge_of_pod(pod), node, times)

    def _forget_pod(self, key: PodKey, pod: PodFact) -> None:
        self._charge_pod(pod, -1)
        self._cache = PlanCache()
        if pod.allocation_uid:
            own = self._pods_of[pod.allocation_uid]
            own.pop(key, None)
            if not own:
                del self._pods_of[pod.allocation_uid]
            self._dirty.add(pod.allocation_uid)

    def _book(self, uid: str, usage: NodeUsage, now: float) -> None:
        """Remove what was booked for `uid` beyond its pods, and book its current usage."""
        self._apply(self._charges.pop(uid, []), usage, -1)
        self._broken.pop(uid, None)
        self._below.pop(uid, None)
        self._ends.drop(uid)
        before = self._holdings.pop(uid, None)
        if before is not None:
            self._tally(before, -1)
        allocation, decision = self._allocations.get(uid), self._decisions.get(uid)
        admitted = {} if allocation is None else _admitted(allocation, decision)
        if allocation is not None and allocation.phase is Phase.PENDING and not admitted:
            self._backlog.put(allocation, now)
            return
        self._backlog.drop(uid)
        if allocation is None or not admitted or allocation.phase is Phase.TERMINATED:
            return
        growing = _growing(allocation, self._growing.get(uid))
        coming = placements_of(*growing) if growing is not None else {}
        if self._pool.flavors:
            allocation = where_it_stands(allocation, {**admitted, **coming}, usage.table)
        bound, ended = self._seen(uid, allocation, coming.keys())
        # The object may report that a rank has left before its pod is gone. Its room is free only after that.
        gone = set(allocation.left_ranks) - bound.keys()
        admitted = {rank: node for rank, node in admitted.items() if rank not in gone} | coming
        devices = _devices(allocation, decision)
        if growing is not None:
            devices = devices | {int(rank): numbers for rank, numbers in growing[0].devices.items()}
        charges: dict[int, Charge] = {}
        for rank, node in sorted(admitted.items()):
            role = allocation.role_of(rank)
            if role is not None and rank not in ended:
                numbers = devices.get(rank, ())
                charges[rank] = (
                    charge_of_pod(bound[rank]) if rank in bound else charge_of_rank(role, node, numbers, allocation)
                )
        own = [charge for rank, charge in charges.items() if rank not in bound]
        self._apply(own, usage, 1)
        self._charges[uid] = own
        key = (uid, allocation.attempt)
        if key in self._leaving and not allocation.stopping:
            allocation = msgspec.structs.replace(allocation, stopping=True)
        holding = _holding(allocation, charges, admitted, self._shrinking.get(key, frozenset()), usage.table)
        holding = msgspec.structs.replace(holding, is_growing=growing is not None)
        self._holdings[uid] = holding
        self._ends.put(allocation, charges, usage.table)
        self._tally(holding, 1)
        if len(admitted) < allocation.rank_count:
            self._below[uid] = holding
        if not _is_enough(allocation, admitted):
            self._broken[uid] = holding

    def _tally(self, holding: Holding, times: int) -> None:
        """Add the holding to the sums per queue and job, or remove it with `times` = -1."""
        self._cache = PlanCache()
        fact = holding.allocation
        key = (fact.queue, fact.preemptible)
        _add_to(self._use.setdefault(key, {}), holding.used, times)
        if holding.stranded:
            _add_to(self._stranded.setdefault(key, {}), holding.stranded, times)
        if fact.job:
            job = (fact.namespace, fact.job)
            self._slots[job] = self._slots.get(job, 0) + holding.slots * times
        if holding.slots:
            owner = (fact.queue, fact.user)
            self._user_gpus[owner] = self._user_gpus.get(owner, 0) + holding.gpu_units * times

    def _still_broken(self) -> tuple[Holding, ...]:
        found = [
            holding for uid, holding in self._broken.items() if (uid, holding.allocation.attempt) not in self._leaving
        ]
        return tuple(sorted(found, key=lambda holding: (holding.allocation.key, holding.allocation.uid)))

    def _apply(self, charges: list[Charge], usage: NodeUsage, times: int) -> None:
        for charge in charges:
            node = usage.table.index.get(charge.node)
            if node is not None:
                usage.charge(charge, node, times)

    def _seen(self, uid: str, allocation: AllocationFact, coming: Set[int]) -> tuple[dict[int, PodFact], set[int]]:
        """Return ({rank: its bound live pod} of this attempt, ranks that have ended); `coming` are ranks to be added.

        A rank that was added or started again may still have its previous pod. A rank that has failed may start again
        in its place. So the end of such ranks is read from the object (`ended_ranks`, `told_ends`), not from their
        pods.
        """
        bound: dict[int, PodFact] = {}
        ended, told = set(allocation.ended_ranks) - coming, coming | set(allocation.told_ends)
        for pod in self._pods_of.get(uid, {}).values():
            if pod.attempt != allocation.attempt:
                continue
            if not pod.live:
                ended |= {pod.rank} - told
            elif pod.node:
                bound[pod.rank] = pod
        return bound, ended - bound.keys()


def charge_of_pod(pod: PodFact) -> Charge:
    """Return the charge of a bound pod on its node: its requests and one pod slot."""
    role = RoleFact(name="", count=1, minimum=1, requests=pod.requests)
    return Charge(
        node=pod.node,
        requests=requests_of(role),
        ports=pod.host_ports,
        devices=pod.devices,
        pod_class=pod_class_of_pod(pod),
        scored=pod.scored,
    )


def charge_of_rank(
    role: RoleFact, node: str, devices: tuple[int, ...] = (), owner: AllocationFact | None = None
) -> Charge:
    """Return the charge of a rank on its assigned node, before its pod is observed there."""
    return Charge(
        node=node,
        requests=requests_of(role),
        ports=role.host_ports,
        devices=devices,
        pod_class=pod_class_of_role(role, owner),
        scored=role.scored,
    )


def _admitted(allocation: AllocationFact, decision: OpenDecision | None) -> dict[int, str]:
    """Return {rank: node} of this attempt: from the admission, else from an open decision in its place."""
    if allocation.placements:
        return allocation.placements
    if decision is None or decision[0].attempt != allocation.attempt or allocation.phase is not Phase.PENDING:
        return {}
    return placements_of(*decision)


def _growing(allocation: AllocationFact, entry: OpenDecision | None) -> OpenDecision | None:
    """Return the open decision that adds ranks to this attempt; None when the object already shows those ranks."""
    if entry is None or allocation.phase is not Phase.RUNNING:
        return None
    is_of_it = entry[0].attempt == allocation.attempt and entry[0].id != allocation.growth_decision
    return entry if is_of_it else None


def _devices(allocation: AllocationFact, decision: OpenDecision | None) -> dict[int, tuple[int, ...]]:
    """Return {rank: its devices} for the ranks that `_admitted` returns, where devices were chosen."""
    if allocation.placements or decision is None:
        return allocation.devices
    return {int(rank): numbers for rank, numbers in decision[0].devices.items()}


def placements_of(decision: Decision, nodes: tuple[str, ...]) -> dict[int, str]:
    """Return {rank: node} of a decision, given the node table that it indexes."""
    return {rank: nodes[index] for rank, index in enumerate(decision.placements) if 0 <= index < len(nodes)}


def _use_of(queue: str, sums: Mapping[tuple[str, bool], dict[str, int]]) -> QueueUse:
    return QueueUse(preemptible=dict(sums.get((queue, True), {})), fixed=dict(sums.get((queue, False), {})))


def _add_to(sums: dict[str, int], amounts: Mapping[str, int], times: int) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount * times


def _holding(
    allocation: AllocationFact,
    charges: dict[int, Charge],
    admitted: dict[int, str],
    shrinking: frozenset[int],
    table: NodeTable,
) -> Holding:
    is_leaving = not allocation.is_wanted or allocation.phase is Phase.TERMINATING
    told = shrinking.union(allocation.leaving_ranks)
    leaving = tuple(rank for rank in charges if is_leaving or rank in told)
    bare = Holding(allocation=allocation, charges=charges, admitted=admitted, leaving=leaving)
    used = bare.used_by(charges)
    stranded = bare.used_by(table.stranded(bare.placements)).amounts
    units = used.gpu_units()
    return msgspec.structs.replace(bare, used=used.amounts, slots=whole_gpus(units), gpu_units=units, stranded=stranded)


def _is_enough(allocation: AllocationFact, admitted: dict[int, str]) -> bool:
    """Whether enough ranks have places for the minimum, per role and in total."""
    base, whole = 0, 0
    for role in allocation.roles:
        placed = sum(1 for rank in range(base, base + role.count) if rank in admitted)
        if placed < role.minimum:
            return False
        base, whole = base + role.count, whole + placed
    return whole >= min(allocation.minimum, allocation.rank_count)


def build(  # noqa: PLR0913 - one argument per kind of fact
    nodes: Iterable[NodeFact],
    pods: Iterable[PodFact],
    allocations: Iterable[AllocationFact],
    *,
    queues: Iterable[QueueFact] = (),
    jobs: Iterable[JobFact] = (),
    pool: PoolFact,
    open_decisions: Iterable[OpenDecision] = (),
    workspaces: frozenset[str] = frozenset(),
    quotas: Iterable[QuotaFact] = (),
    now: float = 0.0,
) -> PoolSnapshot:
    """Return the snapshot of `pool`: its `nodes`, all pods, and the pool's own `allocations` and `queues`."""
    columns = PoolState(pool)
    columns.set_nodes(nodes)
    for pod in pods:
        columns.set_pod(pod)
    for allocation in allocations:
        columns.set_allocation(allocation)
    columns.set_queues(queues)
    columns.set_jobs(jobs)
    columns.set_workspaces(workspaces)
    columns.set_quotas(quotas)
    return columns.snapshot(open_decisions, now)
