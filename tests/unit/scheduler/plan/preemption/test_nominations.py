"""Nominations: places that are held until victims have left, which work gets them, and when they are dropped."""

import msgspec

from slipway.model.facts import PREEMPTION_MARGIN_S, AllocationFact, QueueFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Gate, Reason
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import PlacementPolicy
from slipway.scheduler.plan.planner import plan, queue_tree
from slipway.scheduler.plan.preemption.nominations import bundles, deferred
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Plan
from slipway.scheduler.plan.state.snapshot import OpenDecision, PoolSnapshot
from tests.support.planner import a_node, a_role, a_snapshot, amounts, an_allocation, nodes, running

NOW = 1000.0
AT = "1970-01-01T00:16:40Z"
"""NOW, as the ledger writes it"""


def nominated(
    fact: AllocationFact, *places: str, victims: tuple[str, ...] = (), attempt: int = 1, number: int = 0
) -> OpenDecision:
    """A nomination of `fact` for one rank on each of `places`."""
    table = tuple(dict.fromkeys(places))
    made = Decision(
        id=f"1-1-{number}",
        epoch=1,
        allocation=fact.key,
        uid=fact.uid,
        attempt=attempt,
        kind=DecisionKind.NOMINATE,
        placements=tuple(table.index(place) for place in places),
        victims=victims,
        at=AT,
    )
    return made, table


def leaving(fact: AllocationFact, *places: str, grace: float = 0.0) -> AllocationFact:
    """`fact` as a victim that runs on `places`; `grace` is the time of its preemption deadline, 0 for none."""
    return msgspec.structs.replace(
        running(fact, dict(enumerate(places))), stopping=True, deadlines={"preemption": grace} if grace else {}
    )


def decide(snapshot: PoolSnapshot, now: float = NOW) -> Plan:
    return plan(snapshot, PlacementPolicy(), now)


def test_a_place_is_held_while_its_victim_leaves() -> None:
    """No other work is admitted to a held place. The nominated work waits, and its explanation names the victim."""
    victim = leaving(an_allocation("low", a_role(cpu=4)), "n0")
    urgent = an_allocation("urgent", a_role(cpu=8), priority=90)
    other = an_allocation("other", a_role(cpu=4))
    found = decide(
        a_snapshot(nodes(1), [victim, urgent, other], decisions=[nominated(urgent, "n0", victims=(victim.uid,))])
    )
    assert found.is_empty
    assert found.dropped == ()
    assert found.explanations[urgent.key].gate is Gate.MAKING_ROOM
    assert "default/low" in found.explanations[urgent.key].message
    assert found.explanations[other.key].gate is Gate.NO_FIT


def test_a_nomination_blocks_no_other_work() -> None:
    """Other work of its queue uses the remaining room, also in a queue of strict order."""
    victim = leaving(an_allocation("low", a_role(cpu=8)), "n0")
    urgent = an_allocation("urgent", a_role(cpu=8, node_selector={"zone": "a"}), priority=90)
    other = an_allocation("other", a_role(cpu=8))
    found = decide(
        a_snapshot(
            [a_node("n0", labels={"zone": "a"}), a_node("n1")],
            [victim, urgent, other],
            queues=[QueueFact(name="default", ordering="StrictFIFO")],
            decisions=[nominated(urgent, "n0", victims=(victim.uid,))],
        )
    )
    assert [admit.allocation for admit in found.admits] == ["default/other"]


def test_it_is_admitted_once_its_place_is_free() -> None:
    """Once the victim is gone, the nominated allocation is admitted to its place, before the rest of its queue."""
    urgent = an_allocation("urgent", a_role(cpu=8), priority=10)
    first = an_allocation("first", a_role(cpu=8), priority=10, position="1")
    found = decide(a_snapshot(nodes(1), [urgent, first], decisions=[nominated(urgent, "n0")]))
    assert [(admit.allocation, admit.placements) for admit in found.admits] == [("default/urgent", {0: "n0"})]


def test_it_takes_another_place_that_is_free_before() -> None:
    """A nominated allocation does not wait for its victim while another place is free."""
    victim = leaving(an_allocation("low", a_role(cpu=8)), "n0")
    urgent = an_allocation("urgent", a_role(cpu=8), priority=90)
    found = decide(a_snapshot(nodes(2), [victim, urgent], decisions=[nominated(urgent, "n0", victims=(victim.uid,))]))
    assert [(admit.allocation, admit.placements) for admit in found.admits] == [("default/urgent", {0: "n1"})]


def test_a_gang_waits_for_the_last_of_its_victims() -> None:
    """While one victim remains, the gang does not start, and no other work gets its free place."""
    victim = leaving(an_allocation("low", a_role(cpu=8)), "n0")
    gang = an_allocation("gang", a_role(2, cpu=8), priority=90)
    small = an_allocation("small", a_role(cpu=1), priority=80)
    found = decide(
        a_snapshot(nodes(2), [victim, gang, small], decisions=[nominated(gang, "n0", "n1", victims=(victim.uid,))])
    )
    assert found.is_empty
    assert found.dropped == ()


def test_work_that_ranks_higher_takes_the_nominated_place() -> None:
    """Work of higher priority takes a place that is already free; a nomination that no longer fits is dropped."""
    victim = leaving(an_allocation("low", a_role(cpu=8)), "n0")
    gang = an_allocation("gang", a_role(2, cpu=8), priority=60)
    top = an_allocation("top", a_role(cpu=8), priority=90)
    decision = nominated(gang, "n0", "n1", victims=(victim.uid,))
    found = decide(a_snapshot(nodes(2), [victim, gang, top], decisions=[decision]))
    assert [(admit.allocation, admit.placements) for admit in found.admits] == [("default/top", {0: "n1"})]
    assert found.dropped == (decision[0].id,)


def test_equal_work_does_not_take_a_nominated_place() -> None:
    """Work of the same priority, even if it is older, does not take the place."""
    victim = leaving(an_allocation("low", a_role(cpu=8)), "n0")
    gang = an_allocation("gang", a_role(2, cpu=8), priority=60, created=50.0)
    older = an_allocation("older", a_role(cpu=8), priority=60, created=1.0)
    found = decide(
        a_snapshot(nodes(2), [victim, gang, older], decisions=[nominated(gang, "n0", "n1", victims=(victim.uid,))])
    )
    assert found.is_empty
    assert found.dropped == ()


def test_what_nobody_waits_for_any_more_is_dropped() -> None:
    """A nomination is dropped at once when its allocation is held, stopped, deleted, stopping, of another attempt, or
    gone."""
    urgent = an_allocation("urgent", a_role(cpu=8), priority=90)
    victim = leaving(an_allocation("low", a_role(cpu=8)), "n0")
    for change in ({"hold": True}, {"desired": "Stopped"}, {"deleting": True}, {"attempt": 2}, {"stopping": True}):
        changed = msgspec.structs.replace(urgent, **change)
        decision = nominated(urgent, "n0", victims=(victim.uid,))
        found = decide(a_snapshot(nodes(1), [victim, changed], decisions=[decision]))
        assert found.dropped == (decision[0].id,), change
    assert decide(a_snapshot(nodes(1), [victim], decisions=[nominated(urgent, "n0")])).dropped == ("1-1-0",)


def test_it_is_dropped_when_nothing_leaves_its_place() -> None:
    """Other work uses the place and stays, so the nomination is dropped, and its allocation may look for other room."""
    stays = running(an_allocation("stays", a_role(cpu=8)), {0: "n0"})
    urgent = an_allocation("urgent", a_role(cpu=8), priority=90)
    found = decide(a_snapshot(nodes(1), [stays, urgent], decisions=[nominated(urgent, "n0")]))
    assert found.dropped == ("1-1-0",)


def test_a_nomination_expires_after_the_grace_of_its_victims() -> None:
    """A nomination is held for the grace period of its victims and a margin; `look_again` is the end of it."""
    victim = leaving(an_allocation("low", a_role(cpu=8)), "n0", grace=NOW + 500.0)
    urgent = an_allocation("urgent", a_role(cpu=8), priority=90)
    snapshot = a_snapshot(nodes(1), [victim, urgent], decisions=[nominated(urgent, "n0", victims=(victim.uid,))])
    end = NOW + 500.0 + PREEMPTION_MARGIN_S
    assert decide(snapshot).look_again == end
    assert decide(snapshot, end - 1.0).dropped == ()
    assert decide(snapshot, end).dropped == ("1-1-0",)


def test_a_moved_allocation_keeps_its_new_place_while_it_stops() -> None:
    """The place of the next attempt is held while the attempt before still runs elsewhere; no other work gets it."""
    moved = leaving(an_allocation("moved", a_role(cpu=4)), "n0")
    other = an_allocation("other", a_role(cpu=8))
    found = decide(a_snapshot(nodes(2), [moved, other], decisions=[nominated(moved, "n1", attempt=2)]))
    assert found.is_empty
    assert found.dropped == ()
    again = msgspec.structs.replace(moved, attempt=2, phase=Phase.PENDING, stopping=False, placements={}, deadlines={})
    after = decide(a_snapshot(nodes(2), [again, other], decisions=[nominated(moved, "n1", attempt=2)]))
    assert {admit.allocation: admit.placements for admit in after.admits}["default/moved"] == {0: "n1"}


def test_what_an_open_eviction_takes_down_is_leaving() -> None:
    """The victim of an eviction in the ledger is leaving, although its object does not show the eviction yet."""
    low = running(an_allocation("low", a_role(cpu=8)), {0: "n0"})
    evict = Decision(id="1-1-1", epoch=1, allocation=low.key, uid=low.uid, attempt=1, kind=DecisionKind.EVICT)
    urgent = an_allocation("urgent", a_role(cpu=8), priority=90)
    snapshot = a_snapshot(nodes(1), [low, urgent], decisions=[nominated(urgent, "n0", victims=(low.uid,)), (evict, ())])
    assert snapshot.holdings[low.uid].leaving == (0,)
    assert snapshot.holdings[low.uid].allocation.stopping
    assert decide(snapshot).dropped == ()


def test_surplus_ranks_that_were_told_are_leaving() -> None:
    """Surplus ranks are leaving by the object, or by a decision that the object does not show yet; the other ranks are
    not."""
    gang = msgspec.structs.replace(
        running(an_allocation("gang", a_role(4, 1, cpu=2)), dict.fromkeys(range(4), "n0")), leaving_ranks=(3,)
    )
    evict = Decision(
        id="1-1-1", epoch=1, allocation=gang.key, uid=gang.uid, attempt=1, kind=DecisionKind.EVICT, ranks=(2,)
    )
    snapshot = a_snapshot(nodes(1), [gang], decisions=[(evict, ())])
    assert snapshot.holdings[gang.uid].leaving == (2, 3)
    assert not snapshot.holdings[gang.uid].allocation.stopping


def test_only_what_takes_the_room_of_an_eviction_is_deferred() -> None:
    """An admission that fits into room that is free now starts now, also in a plan that evicts."""
    low = running(an_allocation("low", a_role(cpu=8)), {0: "n0"})
    urgent, beside, small = (an_allocation(name, a_role(cpu=4)) for name in ("urgent", "beside", "small"))
    snapshot = a_snapshot(nodes(2), [low, urgent, beside, small])
    admits = [
        Admit(allocation=urgent.key, uid=urgent.uid, attempt=1, placements={0: "n0"}, victims=(low.uid,)),
        Admit(allocation=beside.key, uid=beside.uid, attempt=1, placements={0: "n0"}),
        Admit(allocation=small.key, uid=small.uid, attempt=1, placements={0: "n1"}),
    ]
    evict = Evict(allocation=low.key, uid=low.uid, attempt=1, reason=Reason.PREEMPTED, by=urgent.key)
    assert deferred(snapshot, queue_tree(snapshot), admits, [evict]) == {urgent.uid, beside.uid}


def test_an_eviction_and_what_it_is_for_belong_together() -> None:
    """A bundle contains an eviction, the admission that it is for, a victim that is moved, and admissions that share a
    victim."""
    evicts = [
        Evict(allocation=f"default/{name}", uid=name, attempt=1, reason=Reason.PREEMPTED, by="default/a")
        for name in ("v", "w")
    ]
    admits = [
        Admit(allocation="default/a", uid="a", attempt=1, placements={}, victims=("v", "w")),
        Admit(allocation="default/w", uid="w", attempt=2, placements={}),
        Admit(allocation="default/b", uid="b", attempt=1, placements={}),
    ]
    assert bundles(Plan(admits=tuple(admits), evictions=tuple(evicts))) == [frozenset({"a", "v", "w"})]


def test_what_has_more_right_takes_over_the_room_that_is_being_made() -> None:
    """No further work is evicted for the higher priority, although some could be; the earlier nomination is dropped."""
    victim = leaving(an_allocation("low", a_role(cpu=8), preemptible=True), "n0")
    other = running(an_allocation("other", a_role(cpu=8), preemptible=True), {0: "n1"})
    high = an_allocation("high", a_role(cpu=8), priority=60)
    top = an_allocation("top", a_role(cpu=8), priority=90)
    snapshot = a_snapshot(
        nodes(2),
        [victim, other, high, top],
        queues=[QueueFact(name="default", within_queue="LowerPriority")],
        decisions=[nominated(high, "n0", victims=(victim.uid,))],
    )
    found = decide(snapshot)
    assert [(admit.allocation, admit.placements) for admit in found.admits if admit.uid == top.uid] == [
        ("default/top", {0: "n0"})
    ]
    assert top.uid in found.deferred
    assert found.dropped == ("1-1-0",)
    assert all(evict.by != top.key for evict in found.evictions)
    assert lint(snapshot, found) == ()


def test_quota_and_slots_that_leave_are_waited_for_too() -> None:
    """There are free nodes, but the limit of the queue is used up until the victim has left."""
    low = running(an_allocation("low", a_role(cpu=4), preemptible=True), {0: "n0"})
    urgent, small = an_allocation("urgent", a_role(cpu=2), priority=90), an_allocation("small", a_role(cpu=2))
    snapshot = a_snapshot(
        nodes(2),
        [low, urgent, small],
        queues=[QueueFact(name="default", within_queue="LowerPriority", limit=amounts(cpu=4))],
    )
    found = decide(snapshot)
    assert {evict.allocation for evict in found.evictions} == {"default/low"}
    assert found.deferred == {admit.uid for admit in found.admits} == {urgent.uid, small.uid}
    assert lint(snapshot, found) == ()


TORN = an_allocation("torn", a_role(2, cpu=8), created=1.0)
"""A gang that has lost a rank: one of two still runs."""
NEWCOMER = an_allocation("newcomer", a_role(cpu=8), created=2.0)


def taken_down(fact: AllocationFact) -> list[OpenDecision]:
    """The ledger after `fact`, with a rank on n0, was evicted: the eviction, and the nomination of its next attempt."""
    made = Decision(id="1-1-9", epoch=1, allocation=fact.key, uid=fact.uid, attempt=1, kind=DecisionKind.EVICT)
    return [(made, ()), nominated(fact, "n0", "n1", attempt=2)]


def test_a_gang_that_is_taken_down_keeps_its_place_against_what_comes_later() -> None:
    """An evicted gang is nominated to its places in the same tick; later work gets none of them."""
    found = decide(a_snapshot(nodes(2), [running(TORN, {0: "n0"}), NEWCOMER]))
    assert [(evict.uid, evict.reason) for evict in found.evictions] == [(TORN.uid, Reason.BELOW_MINIMUM)]
    assert [(admit.uid, admit.attempt, len(admit.placements)) for admit in found.admits] == [(TORN.uid, 2, 2)]
    assert found.deferred == {TORN.uid}
    assert list(found.explanations) == [NEWCOMER.key], "what is taken down does not wait yet"


def test_it_has_no_claim_against_what_goes_before_it() -> None:
    """Work of higher priority takes the free place; then the gang does not fit."""
    urgent = an_allocation("urgent", a_role(cpu=8), priority=90)
    found = decide(a_snapshot(nodes(2), [running(TORN, {0: "n0"}), urgent]))
    assert [admit.uid for admit in found.admits] == [urgent.uid]
    assert [evict.uid for evict in found.evictions] == [TORN.uid]


def test_its_claim_holds_until_its_pods_are_gone() -> None:
    """No other work gets its places while its pods leave; then its next attempt is admitted there."""
    going = msgspec.structs.replace(running(TORN, {0: "n0"}), stopping=True, phase=Phase.TERMINATING)
    found = decide(a_snapshot(nodes(2), [going, NEWCOMER], decisions=taken_down(TORN)))
    assert (found.admits, found.dropped) == ((), ())
    again = msgspec.structs.replace(TORN, attempt=2)
    found = decide(a_snapshot(nodes(2), [again, NEWCOMER], decisions=taken_down(TORN)[1:]))
    assert [(admit.uid, sorted(admit.placements.values())) for admit in found.admits] == [(TORN.uid, ["n0", "n1"])]


def test_its_claim_ends_when_it_is_cancelled_or_cannot_stand_there_any_more() -> None:
    """The nomination is dropped when the gang is stopped while its pods leave, when a node is gone, or when a node is
    cordoned."""
    going = msgspec.structs.replace(running(TORN, {0: "n0"}), stopping=True, phase=Phase.TERMINATING)
    stopped = msgspec.structs.replace(going, desired="Stopped")
    again = msgspec.structs.replace(TORN, attempt=2)
    cordoned = [nodes(2)[0], msgspec.structs.replace(nodes(2)[1], unschedulable=True)]
    for facts, where in (([stopped], nodes(2)), ([going], nodes(2)[1:]), ([again], cordoned)):
        found = decide(a_snapshot(where, [*facts, NEWCOMER], decisions=taken_down(TORN)))
        assert found.dropped == ("1-1-0",), facts
        assert [admit.uid for admit in found.admits] == [NEWCOMER.uid], facts


def test_of_several_that_are_taken_down_the_first_takes_the_places_of_all() -> None:
    """The other gang runs on one of the three nodes, and leaves. No other work gets the free node."""
    first, second = (
        an_allocation("first", a_role(3, cpu=8), created=1.0),
        an_allocation("second", a_role(3, cpu=8), created=1.5),
    )
    facts = [running(first, {0: "n0"}), running(second, {0: "n1"}), NEWCOMER]
    snapshot = a_snapshot(nodes(3), facts)
    found = decide(snapshot)
    assert [(admit.uid, len(admit.placements)) for admit in found.admits] == [(first.uid, 3)]
    assert found.deferred == {first.uid}
    assert lint(snapshot, found) == ()
