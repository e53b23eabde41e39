"""Each filter: which nodes it refuses, and with which words."""

from typing import Any

import pytest

from slipway.model.facts import SCHEDULING_LABEL, NodeFact, PodFact, RoleFact, Taint, Toleration
from slipway.scheduler.plan.placement.feasibility import diagnose
from slipway.scheduler.plan.placement.filters import FILTERS
from slipway.scheduler.plan.placement.filters.taint_toleration import tolerates
from slipway.scheduler.plan.state.rank_request import compile_request
from tests.support.planner import a_node, a_role, a_snapshot, amounts


def refused(role: RoleFact, nodes: list[NodeFact], **more: Any) -> dict[str, int]:
    snapshot = a_snapshot(nodes, pods=more.pop("pods", ()))
    return diagnose(compile_request(role, snapshot.table, **more), snapshot.usage).reasons()


def fitting(role: RoleFact, nodes: list[NodeFact]) -> list[str]:
    """Names of the nodes that no filter refuses."""
    return [node.name for node in nodes if not refused(role, [node])]


def requires(*expressions: dict[str, Any], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": fields or []}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def test_names_are_unique_and_static_filters_come_first() -> None:
    """Filters that do not look at usage come first in the registry; their results can be kept for a whole tick."""
    assert len({entry.name for entry in FILTERS}) == len(FILTERS)
    kinds = [entry.is_static for entry in FILTERS]
    assert kinds == sorted(kinds, reverse=True)


def test_a_cordoned_node_takes_nothing_unless_the_cordon_is_tolerated() -> None:
    nodes = [a_node("n", unschedulable=True)]
    cordon = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")
    assert refused(a_role(), nodes) == {"NodeUnschedulable": 1}
    assert refused(a_role(tolerations=(cordon,)), nodes) == {}


def test_a_node_that_is_not_ready_takes_nothing() -> None:
    assert refused(a_role(), [a_node("n", ready=False), a_node("m")]) == {"NodeNotReady": 1}


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_hard_taints_keep_out(effect: str) -> None:
    assert refused(a_role(), [a_node("n", taints=(Taint("k", "v", effect),))]) == {"UntoleratedTaint": 1}


def test_a_soft_taint_does_not_keep_out() -> None:
    assert refused(a_role(), [a_node("n", taints=(Taint("k", "v", "PreferNoSchedule"),))]) == {}


def test_the_pool_may_tolerate_for_all() -> None:
    """Tolerations of the pool count as the rank's own."""
    nodes = [a_node("n", taints=(Taint("k", "v"),))]
    assert refused(a_role(), nodes, tolerations=(Toleration(key="k", operator="Exists"),)) == {}


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(key="k", value="v"), True),
        (Toleration(key="k", value="w"), False),
        (Toleration(key="k", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Equal"), False),
        (Toleration(key="k", value="v", effect="NoSchedule"), True),
        (Toleration(key="k", value="v", effect="NoExecute"), False),
        (Toleration(key="other", operator="Exists"), False),
    ],
)
def test_when_a_toleration_matches(toleration: Toleration, expected: bool) -> None:
    """Key, operator, value and effect are compared as Kubernetes compares them."""
    assert tolerates([toleration], Taint("k", "v", "NoSchedule")) is expected


def test_a_node_selector_must_match_whole() -> None:
    nodes = [a_node("n", labels={"a": "1", "b": "2"}), a_node("m", labels={"a": "1"})]
    assert refused(a_role(node_selector={"a": "1", "b": "2"}), nodes) == {"NodeSelectorMismatch": 1}


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["5", "7"], ["five"]),
        ("NotIn", ["5"], ["nine", "none", "word"]),
        ("Exists", [], ["five", "nine", "word"]),
        ("DoesNotExist", [], ["none"]),
        ("Gt", ["5"], ["nine"]),
        ("Lt", ["9"], ["five"]),
        ("Gt", ["x"], []),
        ("Gt", ["1", "2"], []),
        ("Near", ["5"], []),
    ],
)
def test_operators_of_an_expression(operator: str, values: list[str], expected: list[str]) -> None:
    """All operators of nodeSelectorTerms work; a node without the label matches only NotIn and DoesNotExist."""
    nodes = [
        a_node("five", labels={"k": "5"}),
        a_node("nine", labels={"k": "9"}),
        a_node("none"),
        a_node("word", labels={"k": "abc"}),
    ]
    role = a_role(affinity=requires({"key": "k", "operator": operator, "values": values}))
    snapshot = a_snapshot(nodes)
    verdict = diagnose(compile_request(role, snapshot.table), snapshot.usage)
    assert verdict.fitting == len(expected)
    assert [node.name for node in nodes if not refused(role, [node])] == expected


def test_match_fields_know_the_name_only() -> None:
    nodes = [a_node("n"), a_node("m")]
    by_name = requires(fields=[{"key": "metadata.name", "operator": "In", "values": ["m"]}])
    by_other = requires(fields=[{"key": "metadata.uid", "operator": "In", "values": ["m"]}])
    assert fitting(a_role(affinity=by_name), nodes) == ["m"]
    assert fitting(a_role(affinity=by_other), nodes) == []


def test_terms_are_alternatives_and_an_empty_one_matches_nothing() -> None:
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    nodes = [a_node("n", labels={"a": ""}), a_node("m")]
    assert refused(a_role(affinity=affinity), nodes) == {"NodeAffinityMismatch": 1}


def test_host_ports_are_not_shared() -> None:
    pod = PodFact(namespace="d", name="p", uid="p", node="n", host_ports=(80,))
    assert refused(a_role(host_ports=(80, 81)), [a_node("n"), a_node("m")], pods=[pod]) == {"NodePorts": 1}


def test_every_resource_must_be_free_and_the_rarest_is_named() -> None:
    """A node that lacks both GPUs and cpu is counted for its GPUs."""
    pod = PodFact(namespace="d", name="p", uid="p", node="n", requests=amounts(8, 0, 4))
    assert refused(a_role(cpu=1, gpus=1), [a_node("n", gpus=4)], pods=[pod]) == {"Insufficient nvidia.com/gpu": 1}


def test_more_than_allocatable_is_another_reason_than_more_than_free() -> None:
    nodes = [a_node("small", cpu=1), a_node("none", cpu=8), a_node("big", cpu=8, gpus=2)]
    assert refused(a_role(cpu=2, gpus=1), nodes) == {"NodeTooSmall nvidia.com/gpu": 2}
    assert refused(a_role(cpu=2), nodes) == {"NodeTooSmall cpu": 1}


def test_a_resource_that_no_node_has() -> None:
    assert refused(a_role(resources={"example.com/fpga": 1}), [a_node("n")]) == {"NodeTooSmall example.com/fpga": 1}


def test_pods_are_a_resource() -> None:
    pod = PodFact(namespace="d", name="p", uid="p", node="n")
    assert refused(a_role(), [a_node("n", pods=1)], pods=[pod]) == {"Insufficient pods": 1}


def test_what_is_not_asked_for_is_not_looked_at() -> None:
    """A node over-committed in cpu still takes a rank that asks for none."""
    pod = PodFact(namespace="d", name="p", uid="p", node="n", requests=amounts(99))
    assert refused(a_role(cpu=0), [a_node("n")], pods=[pod]) == {}


def test_nodes_to_avoid_are_refused_when_asked_so() -> None:
    """A node to avoid is refused; unknown names are ignored."""
    assert refused(a_role(), [a_node("n"), a_node("m")], avoid=("n", "gone")) == {"AvoidNodes": 1}


@pytest.mark.parametrize(("word", "reason"), [("draining", "NodeDraining"), ("disabled", "NodeDisabled")])
def test_a_node_that_an_operator_takes_out_takes_nothing_new(word: str, reason: str) -> None:
    """No toleration admits work to such a node. The message names the nodes while they are few; other values of the
    label have no effect."""
    out = a_node("n2", labels={SCHEDULING_LABEL: word})
    assert refused(a_role(), [a_node("n1"), out]) == {reason: 1}
    everything = Toleration(operator="Exists")
    assert refused(a_role(tolerations=(everything,)), [out]) == {reason: 1}
    assert refused(a_role(), [a_node("n", labels={SCHEDULING_LABEL: "other"})]) == {}
    snapshot = a_snapshot([a_node("n1", cpu=0), out])
    said = diagnose(compile_request(a_role(), snapshot.table), snapshot.usage).phrases()
    assert f"1 is {word} (n2)" in said
