"""The ledger's moves: which decisions may leave it, which must stay, and how placements are written."""

from hypothesis import given
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact
from slipway.model.ledger import LEDGER_BYTES_MAX, Decision, DecisionKind, Ledger
from slipway.model.lifecycle import Phase
from slipway.scheduler import ledger


def a_placed(name: str = "a", *nodes: str, **changes: object) -> ledger.PlacedDecision:
    """An admission of one rank per node named."""
    values = {
        "kind": DecisionKind.ADMIT,
        "allocation": f"default/{name}",
        "uid": f"uid-{name}",
        "attempt": 1,
        "placements": dict(enumerate(nodes)),
    }
    return ledger.PlacedDecision(**{**values, **changes})  # pyright: ignore[reportArgumentType] - builder


def a_fact(name: str = "a", **changes: object) -> AllocationFact:
    """A pending allocation as the snapshot holds it."""
    values = {"namespace": "default", "name": name, "uid": f"uid-{name}", "version": 5}
    return AllocationFact(**{**values, **changes})  # pyright: ignore[reportArgumentType] - builder


def decide(*placed: ledger.PlacedDecision, before: Ledger | None = None) -> tuple[Ledger, tuple[Decision, ...]]:
    return ledger.commit(before or Ledger(epoch=3, tick=7), placed, at="2026-01-01T00:00:00Z")


def test_a_new_leader_is_above_the_ledger_and_above_every_allocation() -> None:
    """Even when the ledger was lost and made anew, an epoch that an allocation has seen is never used again."""
    assert ledger.promote(Ledger(epoch=4), 2).epoch == 5
    assert ledger.promote(Ledger(epoch=4), 9).epoch == 10


def test_node_names_are_written_once() -> None:
    committed, made = decide(a_placed("a", "n1", "n2", "n1"), a_placed("b", "n2"))

    assert committed.nodes == ("n1", "n2")
    assert [decision.placements for decision in made] == [(0, 1, 0), (1,)]
    assert [decision.id for decision in made] == ["3-8-0", "3-8-1"]


def test_a_rank_that_is_not_placed_keeps_its_number() -> None:
    committed, made = decide(a_placed("a", placements={0: "n1", 2: "n2"}))

    assert made[0].placements == (0, ledger.NOT_PLACED, 1)
    assert ledger.node_names(made[0], committed.nodes) == {0: "n1", 2: "n2"}


@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), min_size=1, max_size=6))
def test_open_decisions_name_the_same_nodes_after_any_commits(gangs: list[list[str]]) -> None:
    """The node table is rewritten at each commit; what a decision says does not change by it."""
    state = Ledger()
    expected: dict[str, dict[int, str]] = {}
    for number, nodes in enumerate(gangs):
        state, made = decide(a_placed(f"g{number}", *nodes), before=state)
        expected[made[0].id] = dict(enumerate(nodes))
        if number % 3 == 2:
            gone = next(iter(expected))
            state = ledger.settle(state, [gone])
            del expected[gone]

    assert {item.id: ledger.node_names(item, state.nodes) for item in state.decisions} == expected


def test_what_would_not_fit_is_left_to_the_next_tick() -> None:
    wide = {rank: f"node-with-a-rather-long-name-{rank}" for rank in range(4096)}
    _, made = decide(*(a_placed(f"g{index}", placements=wide, spec_hash="h" * 20_000) for index in range(12)))

    assert 0 < len(made) < 12
    assert sum(len(decision.spec_hash) for decision in made) < LEDGER_BYTES_MAX


def test_a_decision_is_applied_when_its_own_effect_is_seen() -> None:
    _, (admit,) = decide(a_placed("a", "n1"))

    assert not ledger.is_applied(admit, None), "an object that is not known shows nothing"
    assert not ledger.is_applied(admit, a_fact())
    assert not ledger.is_applied(admit, a_fact(decision="another"))
    assert ledger.is_applied(admit, a_fact(decision=admit.id))
    assert ledger.is_applied(admit, a_fact(attempt=2)), "a later attempt comes after it"
    assert not ledger.is_applied(admit, a_fact(decision=admit.id, uid="reborn")), "a name that was used again"


def test_a_decision_is_void_only_for_what_can_not_be_undone() -> None:
    """A hold, a backoff or a lost node can pass: such a decision is finished, not forgotten."""
    _, (admit,) = decide(a_placed("a", "n1"))

    lasting = (
        a_fact(desired="Stopped"),
        a_fact(deleting=True),
        a_fact(attempt=2),
        a_fact(phase=Phase.TERMINATED),
        a_fact(uid="reborn"),
    )
    passing = (a_fact(), a_fact(hold=True), a_fact(not_before=9e9), a_fact(invalid="bad"))
    assert all(ledger.is_impossible(admit, fact) for fact in lasting)
    assert not any(ledger.is_impossible(admit, fact) for fact in passing)
