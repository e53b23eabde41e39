"""Keeps the planner's columns of one pool current, by the changes of the leader's tables.

Owns which nodes, allocations and decisions belong to this pool. The cost of a tick depends on the changes since the
last one, not on the size of the cluster.
"""

from slipway.facts.custom_resources import is_settled
from slipway.model.facts import PoolFact
from slipway.model.ledger import Ledger
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.plan.state import past_use
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.snapshot import PoolSnapshot, nodes_of_pool


class PlannerView:
    """The planner's view of one pool."""

    def __init__(self, pool: str, cluster: Cluster) -> None:
        self._pool = pool
        self._cluster = cluster
        self._columns = PoolState(PoolFact(name=pool))
        self._windows: list[float] = []

    def snapshot(self, ledger: Ledger, now: float) -> PoolSnapshot:
        """Return a snapshot of the pool. Open decisions of the ledger replace what the tables do not show yet."""
        cluster, columns = self._cluster, self._columns
        if cluster.pools.take_changes():
            columns.set_pool(cluster.pools.get(self._pool) or PoolFact(name=self._pool))
            self._set_nodes()
        if cluster.nodes.take_changes():
            self._set_nodes()
        for before, after in cluster.pods.take_changes():
            if before is not None and (after is None or after.uid != before.uid):
                columns.drop_pod(before.namespace, before.name, before.uid)
            if after is not None:
                columns.set_pod(after)
        for before, after in cluster.allocations.take_changes():
            if before is not None and (after is None or after.uid != before.uid or is_settled(after)):
                columns.drop_allocation(before.uid)
            if after is not None and not is_settled(after):
                columns.set_allocation(after)
        if cluster.queues.take_changes():
            columns.set_queues(cluster.queues.values())
            own = (queue for queue in cluster.queues.values() if queue.pool == self._pool)
            self._windows = past_use.budget_windows({queue.name: queue for queue in own})
        if cluster.jobs.take_changes():
            columns.set_jobs(cluster.jobs.values())
        if cluster.workspaces.take_changes():
            spaces = cluster.workspaces.values()
            columns.set_workspaces(
                frozenset(item.name for item in spaces if item.is_workspace and not item.terminating)
            )
            columns.set_namespaces({item.name: item.labels for item in cluster.workspaces.values()})
        if cluster.quotas.take_changes():
            columns.set_quotas(cluster.quotas.values())
        if cluster.volumes.take_changes():
            columns.set_volumes(cluster.volumes.values())
        columns.set_spent(cluster.accounts.spent(self._windows, now))
        columns.set_decayed(cluster.decayed)
        open_decisions = [(decision, ledger.nodes) for decision in ledger.decisions]
        return columns.snapshot(open_decisions, now, evicted=ledger.evicted)

    def _set_nodes(self) -> None:
        pools = list(self._cluster.pools.values()) or [PoolFact(name=self._pool)]
        self._columns.set_nodes(nodes_of_pool(pools, self._cluster.nodes.values()).get(self._pool, []))
