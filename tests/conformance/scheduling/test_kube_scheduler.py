"""Our planner against the real kube-scheduler, on the same random nodes and pods, one pod after the other.

It may choose any of our best nodes, it finds no node exactly where our planner finds none, and every score of every
plugin is the same number, under three profiles. `SLIPWAY_DIFFERENTIAL_ROUNDS` requests more rounds,
`SLIPWAY_DIFFERENTIAL_SEED` repeats one.
"""

import os
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from slipway.facts.core_objects import node_fact, pod_fact
from slipway.kube.objects import Node, Pod
from slipway.model.facts import AllocationFact, PoolFact, QueueFact, RoleFact, Toleration
from slipway.scheduler.plan.placement.policy import SPREAD, policy_of
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.pool_state import PoolState
from tests.conformance.scheduling.oracle import CURVE, DEFAULT, PACKING, SchedulerOracle, Verdict, an_oracle
from tests.conformance.scheduling.worlds import EXTENDED, NAMESPACES, Json, a_node, a_pod
from tests.conformance.wanted import require_own_cluster

ROUNDS = int(os.environ.get("SLIPWAY_DIFFERENTIAL_ROUNDS", "10"))
SEED = int(os.environ.get("SLIPWAY_DIFFERENTIAL_SEED", "1"))
PODS = 40
CPU_AND_MEMORY = {"resources": {"cpu": 1, "memory": 1}}
COUNTED = {"resources": {"cpu": 1, "memory": 2, EXTENDED: 3}}
BALANCED = {"resources": {"cpu": 1, EXTENDED: 1}}
SHAPE = [{"utilization": 10, "score": 3}, {"utilization": 45, "score": 10}, {"utilization": 100, "score": 0}]
REST = {name: weight for name, weight in SPREAD.items() if name != "LeastAllocated"}
POOLS: dict[str, PoolFact] = {
    # The resources that kube-scheduler's default profile scores by, even for pods that request others.
    DEFAULT: PoolFact(
        name=DEFAULT, scores=SPREAD, args={"LeastAllocated": CPU_AND_MEMORY, "BalancedAllocation": CPU_AND_MEMORY}
    ),
    PACKING: PoolFact(
        name=PACKING,
        scores={"MostAllocated": 1, **REST},
        args={
            "MostAllocated": COUNTED,
            "BalancedAllocation": BALANCED,
            "InterPodAffinity": {"hardPodAffinityWeight": 7},
        },
    ),
    CURVE: PoolFact(
        name=CURVE,
        scores={"RequestedToCapacityRatio": 1, **REST},
        args={"RequestedToCapacityRatio": {"shape": SHAPE, **COUNTED}, "BalancedAllocation": CPU_AND_MEMORY},
    ),
}
THEIR_NAMES = {
    "LeastAllocated": "NodeResourcesFit",
    "MostAllocated": "NodeResourcesFit",
    "RequestedToCapacityRatio": "NodeResourcesFit",
    "BalancedAllocation": "NodeResourcesBalancedAllocation",
}


class Tally(msgspec.Struct):
    """How many pods and scores were compared."""

    pods: int = 0
    unschedulable: int = 0
    scored: int = 0
    numbers: Counter[str] = msgspec.field(default_factory=Counter[str])


class Mirror:
    """Our view of the oracle's cluster."""

    def __init__(self, nodes: list[Json]) -> None:
        self.columns = PoolState(PoolFact(name="default"))
        self.columns.set_nodes(node_fact(msgspec.convert(node, Node)) for node in nodes)
        self.columns.set_namespaces(NAMESPACES)
        self.columns.set_workspaces(frozenset(NAMESPACES))
        self.columns.set_queues([QueueFact(name="default")])

    def add(self, pod: Json) -> None:
        """Add a bound pod."""
        self.columns.set_pod(pod_fact(msgspec.convert(pod, Pod)))

    def compare(self, pod: Json, verdict: Verdict, tally: Tally) -> None:
        """Compare our plan for the pod, and our verdict on every node, with those of kube-scheduler."""
        role = role_of(pod)
        fact = AllocationFact(
            namespace=role.namespace, name="asked", uid="asked", version=1, roles=(role,), finalized=True
        )
        self.columns.set_allocation(fact)
        self.columns.set_pool(msgspec.structs.replace(POOLS[pod["spec"]["schedulerName"]], name="default"))
        snapshot = self.columns.snapshot()
        policy = policy_of(snapshot.pool)
        decided = plan(snapshot, policy, 0.0)
        row = WhatIf(snapshot.usage, policy).row(role)
        self.columns.drop_allocation("asked")
        names, fits = snapshot.table.names, row.fits
        about = f"{verdict.node or 'nowhere'}: {msgspec.json.encode(pod).decode()}"
        tally.pods += 1
        if not verdict.node:
            tally.unschedulable += 1
            assert not fits.any(), (
                f"we would place it on {[names[i] for i in np.flatnonzero(fits)]}, they do not: {about}"
            )
            assert not decided.admits, about
            return
        assert fits[snapshot.table.index[verdict.node]], f"we refuse their node {about}"
        assert decided.admits, about
        if verdict.scores:
            weights = snapshot.pool.scores
            self._compare_scores(row.scores_by_node(), weights, verdict, tally, about)
        best = int(row.total.max())
        assert int(row.total[snapshot.table.index[verdict.node]]) == best, f"not our best {about}"

    def _compare_scores(
        self, ours: dict[str, dict[str, int]], weights: dict[str, int], verdict: Verdict, tally: Tally, about: str
    ) -> None:
        theirs = verdict.scores
        assert {node for scores in theirs.values() for node in scores} == set(ours), f"other feasible nodes {about}"
        tally.scored += 1
        for name, weight in weights.items():
            given = theirs.get(THEIR_NAMES.get(name, name), {})
            for node, values in ours.items():
                assert weight * values[name] == given.get(node, 0), f"{name} of {node}: {values[name]} {given} {about}"
                tally.numbers[name] += node in given


def role_of(pod: Json) -> RoleFact:
    """A role of ours with the same requests as the pod."""
    fact = pod_fact(msgspec.convert(pod, Pod))
    spec = pod["spec"]
    tolerations = msgspec.convert(spec.get("tolerations") or [], tuple[Toleration, ...])
    return RoleFact(
        name="worker",
        count=1,
        minimum=1,
        requests=fact.requests,
        scored=fact.scored,
        node_selector=spec.get("nodeSelector") or {},
        affinity=spec.get("affinity") or {},
        tolerations=tolerations,
        host_ports=fact.host_ports,
        images=tuple(str(item["image"]) for item in spec["containers"]),
        namespace=fact.namespace,
        labels=fact.labels,
        spread=tuple(spec.get("topologySpreadConstraints") or []),
    )


def _round(oracle: SchedulerOracle, seed: int, tally: Tally) -> None:
    random = Random(seed)
    nodes = oracle.begin([a_node(random, f"n{index:02d}") for index in range(random.randint(6, 20))])
    mirror = Mirror(nodes)
    for number in range(PODS):
        pod = a_pod(random, f"p{seed}-{number}")
        pod["spec"]["schedulerName"] = random.choice([DEFAULT, DEFAULT, PACKING, CURVE])
        created = oracle.create(pod)
        verdict = oracle.judge(created)
        mirror.compare(created, verdict, tally)
        if verdict.node:
            mirror.add(verdict.pod)


def test_kube_scheduler_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Our planner and kube-scheduler agree on the choice, on the fitting nodes and on every single score."""
    require_own_cluster()
    tally = Tally()
    with an_oracle(tmp_path) as oracle:
        for seed in range(SEED, SEED + ROUNDS):
            _round(oracle, seed, tally)
    with capsys.disabled():
        print(  # noqa: T201 - what was compared is the result
            f"\n{tally.pods} pods compared with kube-scheduler, {tally.unschedulable} of them unschedulable, "
            f"{tally.scored} score by score: {dict(sorted(tally.numbers.items()))}"
        )
    assert tally.unschedulable > 0
    assert set(tally.numbers) == {name for pool in POOLS.values() for name in pool.scores}
