"""An updated row equals a fresh one, however it was updated; a row over few nodes equals a row over all nodes."""

from typing import Any

import numpy as np
import pytest

from slipway.model.facts import NodeFact, PoolFact, RoleFact, TopologyFact
from slipway.scheduler.plan.placement.feasibility import SPARSE, FeasibilityRow
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.whatif import WhatIf
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation

HOST = "kubernetes.io/hostname"
CHOSEN = (3, 5, 40)
COUNT = SPARSE * len(CHOSEN) + 20
PREFERS = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 30, "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}
        ]
    }
}
APART: dict[str, Any] = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "web"}}}
        ]
    }
}


def some_nodes() -> list[NodeFact]:
    """`COUNT` nodes: those of `CHOSEN` have a label, and the last of them and the first node are fast."""
    return [
        a_node(
            f"n{index:03d}",
            cpu=4,
            labels={HOST: f"n{index:03d}"}
            | ({"chosen": "yes"} if index in CHOSEN else {})
            | ({"fast": "yes"} if index == CHOSEN[-1] or index == 0 else {}),
        )
        for index in range(COUNT)
    ]


def picky() -> RoleFact:
    return a_role(8, node_selector={"chosen": "yes"}, labels={"app": "web"}, affinity=PREFERS)


def a_whatif(*roles: RoleFact) -> WhatIf:
    snapshot = a_snapshot(some_nodes(), [an_allocation("asked", *roles)])
    return WhatIf(snapshot.usage, policy_of(snapshot.pool))


def afresh(whatif: WhatIf, row: FeasibilityRow) -> FeasibilityRow:
    return FeasibilityRow(row.request, whatif.usage, whatif.weights(row.request), whatif.scores)


def test_a_feasibility_row_of_few_nodes_scores_like_any_row() -> None:
    """Of the three nodes that a selector leaves, the preferred one has the highest score; no other node fits."""
    role = picky()
    row = a_whatif(role).row(role)
    assert np.flatnonzero(row.fits).tolist() == list(CHOSEN)
    assert int(np.argmax(row.total)) == CHOSEN[-1]
    assert row.total[CHOSEN[-1]] > row.total[CHOSEN[0]] == row.total[CHOSEN[1]]


def test_taking_keeps_a_row_of_few_nodes_as_it_would_be_afresh() -> None:
    """After each rank, until its nodes are full, the row equals a fresh one."""
    role = picky()
    whatif = a_whatif(role)
    row = whatif.row(role)
    for node in (CHOSEN[0], CHOSEN[-1]) * 4:
        whatif.take(row, [node])
        row.refresh()
        fresh = afresh(whatif, row)
        assert row.total.tolist() == fresh.total.tolist()
        assert row.fits.tolist() == fresh.fits.tolist()
    assert not row.fits[CHOSEN[0]]
    assert row.peek(CHOSEN[1], 1) != row.peek(CHOSEN[1], 4) == -1


def test_ranks_that_are_taken_change_a_whole_domain() -> None:
    """TopologyPacking prefers rack r1 until it is full, also on the node of it that no rank has touched."""
    racks = {"a": "r1", "b": "r1", "c": "r2"}
    nodes = [a_node(name, cpu=4, labels={"rack": rack}) for name, rack in racks.items()]
    nodes.append(a_node("d", cpu=8, labels={"rack": "r2"}))
    snapshot = a_snapshot(nodes, pool=PoolFact(name="default", scores={"TopologyPacking": 1}))
    whatif = WhatIf(snapshot.usage, policy_of(snapshot.pool))
    row = whatif.row(a_role(topology=TopologyFact("rack", "preferred")))
    before = row.total.tolist()
    whatif.take(row, [0, 0])
    row.refresh()
    fresh = FeasibilityRow(row.request, whatif.usage, whatif.weights(row.request))
    assert row.total.tolist() == fresh.total.tolist()
    assert row.total[1] > before[1]
    assert row.total[0] == row.total[1] > row.total[2] == row.total[3]


@pytest.mark.parametrize("node", [CHOSEN[0], 7])
def test_neighbours_that_come_later_count_for_a_row_of_few_nodes(node: int) -> None:
    """A rank with an anti-affinity to the row's role takes a place. The row is then judged over all nodes, and later
    ranks update it."""
    role, stranger = picky(), a_role(affinity=APART)
    whatif = a_whatif(role, stranger)
    whatif.usage.pod_index.is_watched = True
    row, other = whatif.row(role), whatif.row(stranger)
    whatif.take(other, [node])
    row.refresh()
    assert row.is_coupled
    assert not row.fits[node]
    assert row.total.tolist() == afresh(whatif, row).total.tolist()
    whatif.take(row, [CHOSEN[1]])
    row.refresh()
    assert row.total.tolist() == afresh(whatif, row).total.tolist()
