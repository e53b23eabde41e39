"""The trace of a plan: the order in which it looked at allocations, and the best nodes of each. A `planner.Watch`.

The trace only reads; the plan is the same with and without it. It is bounded, because it is stored for every recorded
tick. A plan does not place again what its cache knows of an unchanged state, so two trails of one plan may differ.
"""

import numpy as np

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement.feasibility import INFEASIBLE, FeasibilityRow
from slipway.scheduler.plan.placement.whatif import WhatIf

LOOKED_MAX = 256
"""The number of allocations whose order is recorded."""
SCORED_MAX = 16
"""The number of allocations of a tick whose best nodes are recorded."""
TOP = 3
"""The number of nodes that are recorded per allocation."""
TOTAL = "total"
"""The key, beside the plugins, of the weighted sum that decides."""

Scores = dict[str, dict[str, int]]


class PlanTrace:
    """`looked` are allocation keys, `scores` is {allocation key: node -> plugin -> value} of its first rank."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.scores: dict[str, Scores] = {}

    def __call__(self, fact: AllocationFact, whatif: WhatIf) -> None:
        if len(self.looked) < LOOKED_MAX:
            self.looked.append(fact.key)
        # A row that the plan itself would not request could add a question to an extender.
        is_plain = whatif.plan_extenders is None and bool(fact.roles) and not fact.avoid_nodes
        if is_plain and len(self.scores) < SCORED_MAX and fact.key not in self.scores:
            self.scores[fact.key] = best_of(whatif.row(fact.roles[0]))


def best_of(row: FeasibilityRow, count: int = TOP) -> Scores:
    """Return {node: plugin -> value 0..100, and the total}, the best first, the first by name among equals."""
    row.refresh()
    totals = row.total
    if totals.size > count:
        least = np.partition(totals, totals.size - count)[totals.size - count]
        above, equal = np.flatnonzero(totals > least), np.flatnonzero(totals == least)
        chosen = np.concatenate([above, equal[: count - above.size]])
    else:
        chosen = np.arange(totals.size)
    ordered = sorted(chosen.tolist(), key=lambda node: (-int(totals[node]), node))
    nodes = [node for node in ordered if totals[node] != INFEASIBLE]
    scores = row.scores_by_node(nodes)
    names = row.usage.table.names
    return {names[node]: {TOTAL: int(totals[node]), **scores[names[node]]} for node in nodes}
