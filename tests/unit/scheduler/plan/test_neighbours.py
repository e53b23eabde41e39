"""Affinity of ranks to other pods: namespaces, terms of running pods, pods that leave; also volumes and sampling."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from slipway.model.facts import NodeFact, PodFact, PoolFact, QueueFact, RoleFact, VolumeFact
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.scores.args import faults, sound_args
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.usage import SampleCursor, feasible_to_find
from tests.support.planner import NAMESPACE, a_node, a_role, a_snapshot, amounts, an_allocation, places, planned

HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB: dict[str, Any] = {"matchLabels": {"app": "web"}}


def hosts(count: int, **more: Any) -> list[NodeFact]:
    return [a_node(f"n{index}", labels={HOST: f"n{index}", "zone": f"z{index % 2}"}, **more) for index in range(count)]


def a_pod(name: str, node: str, *, namespace: str = NAMESPACE, **more: Any) -> PodFact:
    return PodFact(namespace=namespace, name=name, uid=name, node=node, requests=amounts(cpu="100m"), **more)


def fitting(role: RoleFact, columns: PoolState) -> list[str]:
    """The nodes that fit a role, which is in the default namespace unless it names another."""
    fact = an_allocation("asked", msgspec.structs.replace(role, namespace=role.namespace or NAMESPACE))
    columns.set_allocation(fact)
    snapshot = columns.snapshot()
    row = WhatIf(snapshot.usage, policy_of(snapshot.pool)).row(fact.roles[0])
    return [snapshot.table.names[index] for index in np.flatnonzero(row.fits)]


def columns_of(nodes: list[NodeFact], *pods: PodFact, pool: PoolFact | None = None) -> PoolState:
    columns = PoolState(pool or PoolFact(name="default"))
    columns.set_nodes(nodes)
    columns.set_queues([QueueFact(name="default")])
    columns.set_workspaces(frozenset({NAMESPACE}))
    for pod in pods:
        columns.set_pod(pod)
    return columns


def apart(**term: Any) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST, "labelSelector": WEB, **term}]}}


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ({}, ["n0", "n1"]),
        ({"namespaces": ["other"]}, ["n1"]),
        ({"namespaceSelector": {}}, ["n1"]),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, ["n1"]),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, ["n1"]),
        ({"namespaceSelector": {"matchLabels": {"team": "y"}}}, ["n0", "n1"]),
    ],
)
def test_a_term_means_pods_of_its_namespaces(term: dict[str, Any], expected: list[str]) -> None:
    """A term means its own namespace by default, else the namespaces that it names and those whose labels it
    selects."""
    columns = columns_of(hosts(2), a_pod("p", "n0", namespace="other", labels={"app": "web"}))
    columns.set_namespaces({"other": {"team": "x"}})
    assert fitting(a_role(affinity=apart(**term)), columns) == expected


def test_anti_affinity_of_a_running_pod_applies_only_to_matching_pods() -> None:
    """The new rank has no terms at all; its namespace and labels decide."""
    columns = columns_of(hosts(2), a_pod("p", "n0", affinity=apart()))
    assert fitting(a_role(labels={"app": "web"}), columns) == ["n1"]
    assert fitting(a_role(labels={"app": "db"}), columns) == ["n0", "n1"]
    assert fitting(a_role(labels={"app": "web"}, namespace="other"), columns) == ["n0", "n1"]


def test_anti_affinity_of_a_deleted_pod_has_no_effect() -> None:
    """The counts of terms follow the pods: a deleted pod keeps no rank away."""
    pod = a_pod("p", "n0", affinity=apart())
    columns = columns_of(hosts(2), pod)
    assert fitting(a_role(labels={"app": "web"}), columns) == ["n1"]
    columns.drop_pod(pod.namespace, pod.name, pod.uid)
    assert fitting(a_role(labels={"app": "web"}), columns) == ["n0", "n1"]


def test_pods_that_are_being_deleted_do_not_count_for_spreading() -> None:
    """A pod that is being deleted is not counted for spreading; it still uses its node, and its anti-affinity still
    applies."""
    spread = ({"topologyKey": "zone", "maxSkew": 1, "labelSelector": WEB, "whenUnsatisfiable": "DoNotSchedule"},)
    role = a_role(labels={"app": "web"}, spread=spread)
    stays = a_pod("p", "n0", labels={"app": "web"})
    assert fitting(role, columns_of(hosts(2), stays)) == ["n1"]
    goes = msgspec.structs.replace(stays, leaving=True)
    assert fitting(role, columns_of(hosts(2), goes)) == ["n0", "n1"]
    large = msgspec.structs.replace(goes, requests=amounts(cpu=8))
    assert fitting(role, columns_of(hosts(2), large)) == ["n1"]
    aloof = msgspec.structs.replace(goes, affinity=apart())
    assert fitting(role, columns_of(hosts(2), aloof)) == ["n1"]


def test_match_label_keys_compare_with_the_own_value() -> None:
    """Only pods with the same value of the label, here the same version, count for the constraint."""
    constraint = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": WEB, "matchLabelKeys": ["version"]}
    role = a_role(labels={"app": "web", "version": "2"}, spread=(constraint,))
    old = a_pod("p", "n0", labels={"app": "web", "version": "1"})
    assert fitting(role, columns_of(hosts(2), old)) == ["n0", "n1"]
    same = a_pod("q", "n0", labels={"app": "web", "version": "2"})
    assert fitting(role, columns_of(hosts(2), same)) == ["n1"]


def test_ranks_of_ours_count_before_and_after_their_pods_are_seen() -> None:
    """Our ranks match terms by the labels of their role, and by the labels that every rank gets."""
    placed = msgspec.structs.replace(
        an_allocation("first", a_role(labels={"app": "web"}, namespace=NAMESPACE)), placements={0: "n0"}
    )
    near = {"podAffinity": {REQUIRED: [{"topologyKey": HOST, "labelSelector": WEB}]}}
    own = {"matchLabels": {"slipway.dev/allocation-uid": "uid-first"}}
    by_uid = {"podAffinity": {REQUIRED: [{"topologyKey": HOST, "labelSelector": own}]}}
    pod = a_pod("first-uid-firs-1-0", "n0", labels={"app": "web"}, allocation_uid="uid-first", attempt=1, rank=0)
    for pods in ((), (pod,)):
        columns = columns_of(hosts(2), *pods)
        columns.set_allocation(placed)
        assert fitting(a_role(affinity=near), columns) == ["n0"]
        assert fitting(a_role(affinity=by_uid), columns) == ["n0"]


def test_a_term_of_what_was_placed_a_moment_before_holds_for_those_who_say_nothing() -> None:
    """In one tick the first has an anti-affinity to `web`, and the second is `web` and has no terms."""
    first = an_allocation("a", a_role(namespace=NAMESPACE, affinity=apart()), created=1.0)
    second = an_allocation("b", a_role(namespace=NAMESPACE, labels={"app": "web"}), created=2.0)
    found = places(planned(a_snapshot(hosts(2), [second, first], pool=PoolFact(name="default"))))
    assert found["a"] != found["b"]


@pytest.mark.parametrize(
    "affinity",
    [
        {"podAffinity": "x"},
        {"podAntiAffinity": {REQUIRED: {"a": 1}}},
        {"podAntiAffinity": {REQUIRED: [{"labelSelector": 3}]}},
        {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": "heavy"}]}},
    ],
)
def test_what_is_not_shaped_like_an_affinity_stops_no_tick(affinity: dict[str, Any]) -> None:
    """The API server refuses such a pod; until then the planner ignores the malformed parts."""
    spread: Any = ({"topologyKey": 3, "maxSkew": "x", "labelSelector": [], "whenUnsatisfiable": "ScheduleAnyway"},)
    role = a_role(affinity=affinity, spread=spread, namespace=NAMESPACE)
    assert planned(a_snapshot(hosts(1), [an_allocation("a", role)])).admits


def test_a_volume_is_reached_by_the_old_labels_too() -> None:
    """A volume whose zone has the deprecated label is reached from nodes with the new label too, and from nodes without
    any."""
    zone, beta = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
    nodes = [a_node("a", labels={zone: "a"}), a_node("b", labels={beta: "b"}), a_node("bare")]
    columns = columns_of(nodes)
    columns.set_volumes([VolumeFact(namespace=NAMESPACE, name="v", zones={beta: ("a",)})])
    assert fitting(a_role(claims=("v",)), columns) == ["a", "bare"]
    assert fitting(a_role(claims=("v",), namespace="other"), columns) == ["a", "b", "bare"]


def test_how_many_nodes_are_enough() -> None:
    """Source: kube-scheduler's own table of numFeasibleNodesToFind."""
    assert [feasible_to_find(n) for n in (10, 99, 100, 1000, 5000, 6000, 10000)] == [10, 99, 100, 420, 500, 300, 500]


def test_a_sample_begins_where_the_last_one_ended() -> None:
    """A sample has the first feasible nodes from its start on; the next sample starts behind the nodes that were looked
    at."""
    sample = SampleCursor(300, seed=290)
    totals = np.arange(300, dtype=np.int64)
    totals[:5] = -1
    seen = np.flatnonzero(sample.of(totals) >= 0)
    assert seen.size == feasible_to_find(300)
    assert {290, 299, 5, 6} <= set(seen.tolist())
    assert sample.start == (290 + 5 + feasible_to_find(300)) % 300


def test_sampling_depends_on_the_seed_alone() -> None:
    """Equal seeds give equal plans; another seed may look elsewhere."""
    pool = PoolFact(name="default", sampling=True)
    facts = [an_allocation(f"a{index}", a_role(namespace=NAMESPACE)) for index in range(3)]
    snapshot = a_snapshot(hosts(150), facts, pool=pool)
    policy = policy_of(pool)
    assert plan(snapshot, policy, 0.0, 7) == plan(snapshot, policy, 0.0, 7)
    assert places(plan(snapshot, policy, 0.0, 7)) != places(plan(snapshot, policy, 0.0, 90))


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"Nonsense": {}}, "Nonsense"),
        ({"LeastAllocated": {"shape": []}}, "LeastAllocated.shape"),
        ({"LeastAllocated": {"resources": {"cpu": 0}}}, "LeastAllocated.resources.cpu"),
        ({"RequestedToCapacityRatio": {"shape": []}}, "RequestedToCapacityRatio.shape"),
        (
            {"RequestedToCapacityRatio": {"shape": [{"utilization": 5, "score": 11}]}},
            "RequestedToCapacityRatio.shape[0].score",
        ),
        ({"InterPodAffinity": {"hardPodAffinityWeight": -1}}, "InterPodAffinity.hardPodAffinityWeight"),
        ({"PodTopologySpread": {"defaulting": "x"}}, "PodTopologySpread.defaulting"),
    ],
)
def test_wrong_args_are_named_and_left_out(args: Mapping[str, Any], path: str) -> None:
    """The fault names the path of the field; the pool ignores the wrong args."""
    assert [fault[0] for fault in faults(args)] == [path]
    assert sound_args(args) == {}
