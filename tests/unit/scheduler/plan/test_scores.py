"""Scores, number for number against the formulas of kube-scheduler 1.37 written out per node."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.model.facts import NodeFact, PodFact, PoolFact, Taint, Toleration, TopologyFact
from slipway.model.resources import CPU, GPU, MEMORY, Resources
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.policy import PACK, SPREAD, policy_of, unknown_scores
from slipway.scheduler.plan.placement.scores import SCORES, Normalise, normalised, normalised_alike
from slipway.scheduler.plan.placement.whatif import WhatIf
from tests.support.planner import a_node, a_role, a_snapshot, amounts

MIB_200 = 200 * 1024 * 1024


def scores(role: Any, nodes: list[NodeFact], *names: str, pods: tuple[PodFact, ...] = ()) -> dict[str, dict[str, int]]:
    snapshot = a_snapshot(nodes, pods=pods, pool=PoolFact(name="default", scores=dict.fromkeys(names, 1)))
    return WhatIf(snapshot.usage, policy_of(snapshot.pool)).row(role).scores_by_node()


def a_pod(node: str, requests: Resources, name: str = "p") -> PodFact:
    return PodFact(namespace="d", name=name, uid=name, node=node, requests=requests)


quantities = st.tuples(st.integers(0, 4000), st.integers(0, 16 * 2**30), st.integers(0, 4))


@given(st.integers(1, 8), st.integers(1, 16), st.integers(0, 8), quantities, quantities)
def test_resource_scores_follow_the_formulas(
    cpus: int, gibs: int, gpus: int, used: tuple[int, int, int], asked: tuple[int, int, int]
) -> None:
    """Least, Most and Balanced on one node, against the formulas written out in plain integers and floats."""
    node = a_node("n", cpu=cpus, memory=f"{gibs}Gi", gpus=gpus)
    pod_asks = Resources.of({CPU: used[0], MEMORY: used[1], GPU: used[2]})
    rank = Resources.of({CPU: asked[0], MEMORY: asked[1], GPU: asked[2]})
    role = a_role(cpu=f"{asked[0]}m", memory=asked[1], gpus=asked[2])
    found = scores(role, [node], "LeastAllocated", "MostAllocated", "BalancedAllocation", pods=(a_pod("n", pod_asks),))
    if "n" not in found:
        return
    names = [CPU, MEMORY, *([GPU] if asked[2] else [])]
    present = [name for name in names if node.allocatable.get(name)]
    defaults = {CPU: 100, MEMORY: MIB_200}
    requested = {
        name: (pod_asks.get(name) or defaults.get(name, 0)) + (rank.get(name) or defaults.get(name, 0))
        for name in present
    }
    capacity = {name: node.allocatable.get(name) for name in present}
    least = [max(0, capacity[name] - requested[name]) * 100 // capacity[name] for name in present]
    most = [min(requested[name], capacity[name]) * 100 // capacity[name] for name in present]
    assert found["n"]["LeastAllocated"] == sum(least) // len(present)
    assert found["n"]["MostAllocated"] == sum(most) // len(present)
    assert found["n"]["BalancedAllocation"] == balanced(present, capacity, pod_asks, rank)


def balanced(present: list[str], capacity: dict[str, int], used: Resources, rank: Resources) -> int:
    if not any(rank.amounts.values()):
        return 0

    def evenness(amounts_of: Resources) -> int:
        fractions = [min(amounts_of.get(name) / capacity[name], 1.0) for name in present]
        if len(fractions) == 2:
            deviation = abs((fractions[0] - fractions[1]) / 2)
        else:
            mean = sum(fractions) / len(fractions)
            total = 0.0
            for part in fractions:
                total += (part - mean) * (part - mean)
            deviation = math.sqrt(total / len(fractions))
        return int((1 - deviation) * 100)

    return 50 + (50 + evenness(used + rank) - evenness(used)) // 2


def test_a_worked_example() -> None:
    """4 cpu and 16Gi, empty, 1 cpu and 1Gi asked: 75 and 93 left, so 84; S goes from 100 to 90, so 50 + 40 / 2 = 70."""
    found = scores(
        a_role(cpu=1, memory="1Gi"), [a_node("n", cpu=4, memory="16Gi")], "LeastAllocated", "BalancedAllocation"
    )
    assert found == {"n": {"BalancedAllocation": 70, "LeastAllocated": 84}}


def test_preferred_terms_are_weighed_against_the_best_feasible_node() -> None:
    preferred = [
        {"weight": 30, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
        {"weight": 20, "preference": {"matchExpressions": [{"key": "b", "operator": "Exists"}]}},
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    nodes = [
        a_node("a", labels={"a": ""}),
        a_node("b", labels={"b": ""}),
        a_node("none"),
        a_node("shut", labels={"a": "", "b": ""}, ready=False),
    ]
    found = scores(a_role(affinity=affinity), nodes, "NodeAffinity")
    assert {name: values["NodeAffinity"] for name, values in found.items()} == {"a": 100, "b": 66, "none": 0}


def test_soft_taints_are_counted_and_reversed() -> None:
    soft = tuple(Taint(key, "", "PreferNoSchedule") for key in ("x", "y"))
    nodes = [a_node("clean"), a_node("one", taints=soft[:1]), a_node("two", taints=soft)]
    found = scores(a_role(), nodes, "TaintToleration")
    assert {name: values["TaintToleration"] for name, values in found.items()} == {"clean": 100, "one": 50, "two": 0}
    tolerated = a_role(tolerations=(Toleration(operator="Exists"),))
    assert {values["TaintToleration"] for values in scores(tolerated, nodes, "TaintToleration").values()} == {100}


def test_topology_packing_prefers_the_domain_with_the_least_room() -> None:
    nodes = [a_node(name, cpu=cpu, labels={"rack": rack}) for name, cpu, rack in (("a", 2, "r1"), ("b", 8, "r2"))]
    found = scores(a_role(topology=TopologyFact("rack", "preferred")), [*nodes, a_node("c")], "TopologyPacking")
    values = {name: plugins["TopologyPacking"] for name, plugins in found.items()}
    assert values["a"] > values["b"] > values["c"] == 0


@pytest.mark.parametrize("name", sorted(SCORES))
def test_scores_stay_within_0_and_100(name: str) -> None:
    nodes = [a_node("a", labels={"rack": "r"}), a_node("b", cpu=1, gpus=8), a_node("c", memory=0)]
    role = a_role(cpu="100m", topology=TopologyFact("rack", "preferred"))
    assert all(0 <= values[name] <= 100 for values in scores(role, nodes, name).values())


def test_what_a_pool_names_replaces_the_defaults_and_unknown_names_are_told() -> None:
    named = PoolFact(name="p", scores={"MostAllocated": 3, "Nonsense": 1, "LeastAllocated": 0})
    assert policy_of(named).spread == policy_of(named).pack == {"MostAllocated": 3}
    assert unknown_scores(named) == ("Nonsense",)
    assert (policy_of(PoolFact(name="p")).spread, policy_of(PoolFact(name="p")).pack) == (SPREAD, PACK)


@given(st.integers(0, 1_000), st.sampled_from(Normalise))
def test_what_all_nodes_have_alike_is_normalised_as_one(raw: int, how: Normalise) -> None:
    """One number for all nodes is normalised to what each node alone would get."""
    every = np.full(3, raw, dtype=np.int64)
    assert normalised(every, np.ones(3, dtype=np.bool_), how).tolist() == [normalised_alike(raw, how)] * 3


def test_gpu_asks_are_packed_and_others_spread() -> None:
    """The defaults: a second GPU rank joins the first, a second cpu rank does not."""
    nodes = [a_node("a", gpus=4), a_node("b", gpus=4)]
    used = a_pod("b", amounts(1, "1Gi", 1))
    snapshot = a_snapshot(nodes, pods=[used])
    whatif = WhatIf(snapshot.usage, policy_of(snapshot.pool))
    assert fill(whatif.row(a_role(gpus=1)), 1) == [1]
    assert fill(whatif.row(a_role()), 1) == [0]
