"""Spreading and inter-pod affinity on random instances, compared with rules that are computed pod by pod."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import NodeFact, RoleFact
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.state.affinity_terms import affinity_terms_of, spreads_of
from slipway.scheduler.plan.state.pod_index import PodClass, PodIndex
from tests.support.planner import NAMESPACE, a_node, a_role, a_snapshot, admitted, an_allocation, planned, running

KEYS = ("kubernetes.io/hostname", "zone", "rack")
APPS = ("a", "b")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class PlacedRank(msgspec.Struct, frozen=True):
    """One rank and its node."""

    role: RoleFact
    node: NodeFact


@st.composite
def some_nodes(draw: st.DrawFn) -> list[NodeFact]:
    def labels(name: str) -> dict[str, str]:
        zone, rack = draw(st.sampled_from(["z0", "z1", ""])), draw(st.sampled_from(["r0", "r1", ""]))
        return {KEYS[0]: name} | ({"zone": zone} if zone else {}) | ({"rack": rack} if rack else {})

    count = draw(st.integers(1, 6))
    return [a_node(f"n{index}", cpu=draw(st.integers(1, 4)), labels=labels(f"n{index}")) for index in range(count)]


@st.composite
def some_role(draw: st.DrawFn) -> RoleFact:
    selector: dict[str, Any] = {"matchLabels": {"app": draw(st.sampled_from(APPS))}}
    term: dict[str, Any] = {"topologyKey": draw(st.sampled_from(KEYS)), "labelSelector": selector}
    affinity: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {},
                {"podAntiAffinity": {REQUIRED: [term]}},
                {"podAffinity": {REQUIRED: [term]}},
                {"podAffinity": {PREFERRED: [{"weight": 10, "podAffinityTerm": term}]}},
            ]
        )
    )
    constraint: dict[str, Any] = {
        "topologyKey": draw(st.sampled_from(KEYS)),
        "maxSkew": draw(st.integers(1, 2)),
        "labelSelector": selector,
        "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "ScheduleAnyway"])),
        "minDomains": draw(st.integers(1, 3)),
    }
    count = draw(st.integers(1, 4))
    return a_role(
        count,
        draw(st.integers(1, count)),
        namespace=NAMESPACE,
        labels={"app": draw(st.sampled_from(APPS))} if draw(st.booleans()) else {},
        affinity=affinity,
        spread=(constraint,) if draw(st.booleans()) else (),
    )


def is_near(key: str, one: NodeFact, other: NodeFact) -> bool:
    """Whether both nodes are in the same domain."""
    return key in one.labels and one.labels[key] == other.labels.get(key)


def is_allowed(role: RoleFact, node: NodeFact, standing: list[PlacedRank], nodes: list[NodeFact]) -> bool:
    """Kubernetes' rules for one more pod of `role` on `node`, computed pod by pod."""
    own = affinity_terms_of(role.affinity, role.namespace, role.labels)
    for other in standing:
        theirs = affinity_terms_of(other.role.affinity, other.role.namespace, other.role.labels)
        if any(t.selector.matches(role.labels) and is_near(t.key, node, other.node) for t in theirs.apart):
            return False
        if any(t.selector.matches(other.role.labels) and is_near(t.key, node, other.node) for t in own.apart):
            return False
    for term in own.near:
        meant = [
            other for other in standing if term.selector.matches(other.role.labels) and term.key in other.node.labels
        ]
        is_first = not meant and term.selector.matches(role.labels)
        if term.key not in node.labels or not (is_first or any(is_near(term.key, node, it.node) for it in meant)):
            return False
    return all(_is_even(role, node, standing, nodes, number) for number in range(len(role.spread)))


def _is_even(role: RoleFact, node: NodeFact, standing: list[PlacedRank], nodes: list[NodeFact], number: int) -> bool:
    spread = spreads_of(role.spread, role.labels)[number]
    if not spread.is_hard:
        return True
    if spread.key not in node.labels:
        return False
    domains = {it.labels[spread.key]: 0 for it in nodes if spread.key in it.labels}
    for other in standing:
        if spread.key in other.node.labels and spread.selector.matches(other.role.labels):
            domains[other.node.labels[spread.key]] += 1
    least = min(domains.values()) if len(domains) >= spread.min_domains else 0
    own = int(spread.selector.matches(role.labels))
    return domains[node.labels[spread.key]] + own - least <= spread.max_skew


@settings(max_examples=150)
@given(some_nodes(), st.lists(some_role(), min_size=1, max_size=5), st.data())
def test_every_rank_was_placed_on_a_feasible_node(
    nodes: list[NodeFact], roles: list[RoleFact], data: st.DataObject
) -> None:
    """In the order of placing, each placed rank of a gang is included for the next one; and no other rule is broken."""
    facts = [an_allocation(f"a{index}", role) for index, role in enumerate(roles)]
    first = data.draw(st.integers(0, len(facts)))
    by_name = {node.name: node for node in nodes}
    stand: list[PlacedRank] = []
    if first:
        node = nodes[0]
        facts[0] = running(an_allocation("a0", msgspec.structs.replace(roles[0], count=1, minimum=1)), {0: node.name})
        stand.append(PlacedRank(roles[0], node))
    snapshot = a_snapshot(nodes, facts)
    decided = planned(snapshot)
    assert lint(snapshot, decided) == ()
    by_uid = {fact.uid: fact for fact in facts}
    for admit in decided.admits:
        role = by_uid[admit.uid].roles[0]
        for name in list(admit.placements.values())[: role.minimum]:
            assert is_allowed(role, by_name[name], stand, nodes), (admit, stand)
            stand.append(PlacedRank(role, by_name[name]))
        if len(admit.placements) > role.minimum:
            return  # surplus is placed after all minima: the plan does not show what allowed it


@given(some_nodes(), st.lists(some_role(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_order_of_input_does_not_matter(nodes: list[NodeFact], roles: list[RoleFact], random: Any) -> None:
    """Labels and terms are counted independently of the input order."""
    facts = [an_allocation(f"a{index}", role) for index, role in enumerate(roles)]
    before = planned(a_snapshot(nodes, facts))
    random.shuffle(facts)
    random.shuffle(nodes)
    assert planned(a_snapshot(nodes, facts)) == before


MOVES = st.lists(
    st.tuples(st.sampled_from(["x", "y", "z"]), st.integers(0, 3), st.sampled_from([1, 1, 2, -1]), st.booleans()),
    max_size=30,
)


@given(MOVES)
def test_an_incremental_count_equals_a_fresh_count(moves: list[tuple[str, int, int, bool]]) -> None:
    """This is true whatever moved before and after the tally was read, and whatever was copied in between."""

    def weigh(peer: PodClass, labels: Any) -> int:
        return 2 if labels.get("app") == "x" else int(peer.namespace == "y")

    peers = PodIndex(4)
    kept: list[tuple[PodIndex, list[int]]] = []
    counts = [0, 0, 0, 0]
    for app, node, times, is_copied in moves:
        peer = PodClass(namespace=app, labels=(("app", app),))
        peers.move(peer, (node,), times)
        counts[node] += times * weigh(peer, peer.all_labels())
        if is_copied:
            kept.append((peers, list(counts)))
            peers = peers.copy()
        assert peers.tally("t", weigh).tolist() == counts
    for copied, then in kept:
        assert copied.tally("t", weigh).tolist() == then


@given(some_nodes(), st.lists(some_role(), min_size=1, max_size=5))
def test_planning_again_starts_nothing(nodes: list[NodeFact], roles: list[RoleFact]) -> None:
    """An allocation that waited for a neighbour started by this plan is started by the same plan."""
    facts = [an_allocation(f"a{index}", role) for index, role in enumerate(roles)]
    decided = planned(a_snapshot(nodes, facts))
    for gate in decided.explanations.values():
        assert gate.message
    assert planned(a_snapshot(nodes, admitted(facts, decided))).admits == ()
