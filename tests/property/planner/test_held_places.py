"""Slow evictions: plans, nominations and ends of victims in any order, on random full pools."""

import random
from collections.abc import Iterator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Plan
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.plan.state.snapshot import OpenDecision
from tests.property.planner.test_preemption import CrowdedPool, crowds
from tests.support.planner import a_snapshot, planned, running

SETTINGS = settings(max_examples=60, deadline=None)
STEPS = 16
QUIET_TICKS_MAX = 120


class RunningPool:
    """A pool whose victims end at random times."""

    def __init__(self, crowd: CrowdedPool, seed: int) -> None:
        self.crowd = crowd
        self.chance = random.Random(seed)
        self.facts = {fact.uid: fact for fact in (*crowd.running, *crowd.pending)}
        self.held: dict[str, OpenDecision] = {}
        """{uid: its nomination}"""
        self.now = 1000.0
        self.ticks = 0

    def tick(self) -> Plan:
        """One plan, checked and carried out."""
        self.ticks += 1
        self.now += 1.0
        snapshot = a_snapshot(
            self.crowd.nodes, self.facts.values(), queues=self.crowd.queues, decisions=self.held.values()
        )
        decided = planned(snapshot, self.now)
        assert lint(snapshot, decided) == ()
        again = {admit.uid for admit in decided.admits}
        self.held = {
            uid: entry for uid, entry in self.held.items() if uid not in again and entry[0].id not in decided.dropped
        }
        for evict in decided.evictions:
            assert evict.by not in {entry[0].allocation for entry in self.held.values()}, "more victims for the same"
            self._tell(evict)
        for number, admit in enumerate(decided.admits):
            if admit.uid in decided.deferred:
                self._hold(admit, number)
            else:
                fact = self.facts[admit.uid]
                assert (fact.phase, fact.attempt) == (Phase.PENDING, admit.attempt)
                self.facts[admit.uid] = running(fact, admit.placements)
        keys = {entry[0].allocation for entry in self.held.values()}
        assert {evict.by for evict in decided.evictions if evict.by} <= keys, "an eviction without a place"
        self._fits()
        return decided

    def leaving(self) -> list[AllocationFact]:
        return [fact for _, fact in sorted(self.facts.items()) if fact.stopping or fact.leaving_ranks]

    def leave(self, fact: AllocationFact) -> None:
        """Let an evicted allocation end."""
        if fact.stopping:
            fresh = msgspec.structs.replace(fact, attempt=fact.attempt + 1, placements={}, stopping=False)
            self.facts[fact.uid] = msgspec.structs.replace(fresh, phase=Phase.PENDING, leaving_ranks=())
            return
        left = {rank: node for rank, node in fact.placements.items() if rank not in fact.leaving_ranks}
        self.facts[fact.uid] = msgspec.structs.replace(fact, placements=left, leaving_ranks=())

    def step(self) -> None:
        """Let something happen that is no decision."""
        gone = self.leaving()
        there = [fact for _, fact in sorted(self.facts.items()) if fact.phase is Phase.RUNNING and not fact.stopping]
        what = self.chance.random()
        if gone and what < 0.5:
            self.leave(self.chance.choice(gone))
        elif there and what < 0.6:
            del self.facts[self.chance.choice(there).uid]
        elif what < 0.65:
            waiting = [fact for _, fact in sorted(self.facts.items()) if fact.phase is Phase.PENDING]
            if waiting:
                fact = self.chance.choice(waiting)
                self.facts[fact.uid] = msgspec.structs.replace(fact, hold=not fact.hold)

    def _tell(self, evict: Evict) -> None:
        fact = self.facts[evict.uid]
        assert not fact.stopping, "told twice"
        told = (*fact.evictions, (self.now, evict.by))
        if evict.ranks:
            assert not set(evict.ranks) & set(fact.leaving_ranks)
            self.facts[evict.uid] = msgspec.structs.replace(
                fact, leaving_ranks=(*fact.leaving_ranks, *evict.ranks), evictions=told
            )
        else:
            self.facts[evict.uid] = msgspec.structs.replace(fact, stopping=True, evictions=told)

    def _hold(self, admit: Admit, number: int) -> None:
        table = tuple(dict.fromkeys(admit.placements.values()))
        ranks = range(max(admit.placements) + 1)
        decision = Decision(
            id=f"1-{self.ticks}-{number}",
            epoch=1,
            allocation=admit.allocation,
            uid=admit.uid,
            attempt=admit.attempt,
            kind=DecisionKind.NOMINATE,
            placements=tuple(table.index(admit.placements[rank]) if rank in admit.placements else -1 for rank in ranks),
            victims=admit.victims,
            at=format_time(self.now),
        )
        self.held[admit.uid] = (decision, table)

    def _fits(self) -> None:
        """Check that running and ending ranks fit on their nodes."""
        used: dict[tuple[str, str], int] = {}
        for node, name, amount in self._amounts():
            used[node, name] = used.get((node, name), 0) + amount
        free = {
            (node.name, name): amount for node in self.crowd.nodes for name, amount in node.allocatable.amounts.items()
        }
        assert all(amount <= free.get(key, 0) for key, amount in used.items() if amount)

    def _amounts(self) -> Iterator[tuple[str, str, int]]:
        for fact in self.facts.values():
            for rank, node in fact.placements.items():
                role = fact.role_of(rank)
                assert role is not None
                for name, amount in requests_of(role).amounts.items():
                    yield node, name, amount


@given(crowds(waiting=4), st.integers(0, 2**32))
@SETTINGS
def test_departures_in_any_order(crowd: CrowdedPool, seed: int) -> None:
    """No node is overused, no allocation is evicted twice, every eviction has a reserved place, and an allocation
    that waits for victims gets no further ones."""
    live = RunningPool(crowd, seed)
    for _ in range(STEPS):
        live.tick()
        live.step()


@given(crowds(waiting=4), st.integers(0, 2**32))
@SETTINGS
def test_planning_converges(crowd: CrowdedPool, seed: int) -> None:
    """When all evicted allocations have ended, reserved places are used or released: none stays reserved for ever,
    and plans become empty."""
    live = RunningPool(crowd, seed)
    for _ in range(QUIET_TICKS_MAX):
        decided = live.tick()
        gone = live.leaving()
        if gone:
            live.leave(live.chance.choice(gone))
        elif decided.is_empty and not decided.dropped:
            assert live.held == {}
            return
    raise AssertionError(f"still deciding after {live.ticks} ticks")
