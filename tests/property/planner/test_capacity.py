"""Requests for nodes on random clusters: the limits, what fits, and the release of every request."""

from collections.abc import Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, AutoscalingFact
from slipway.scheduler.plan.capacity.requests import CapacityPlan, CapacityRequest, RequestState, plan_capacity
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.plan_types import Plan
from tests.property.planner.instances import Instance, instances

SETTINGS = settings(max_examples=60, deadline=None)
STEP_S = 40.0
SPECS = st.builds(
    AutoscalingFact,
    max_gangs=st.integers(1, 3),
    max_ranks=st.integers(1, 8),
    after_s=st.sampled_from([0.0, 30.0, 60.0]),
    timeout_s=st.sampled_from([60.0, 900.0]),
    backoff_s=st.sampled_from([0.0, 100.0]),
    tries=st.integers(1, 3),
)
STATES = st.lists(st.sampled_from(list(RequestState)), min_size=64, max_size=64)
Seen = Mapping[str, tuple[bool, float]]


class AutoscaledPool:
    """A cluster in which nothing starts, and an autoscaler with random answers."""

    def __init__(self, instance: Instance, spec: AutoscalingFact, states: list[RequestState]) -> None:
        pool = msgspec.structs.replace(instance.pool, autoscaling=spec)
        self.instance = msgspec.structs.replace(instance, pool=pool)
        self.spec, self.states = spec, states
        self.requests: list[CapacityRequest] = []
        self.seen: Seen = {}
        self.now = 1000.0
        self.made = 0

    def look(self, work: list[AllocationFact] | None = None) -> tuple[Plan, CapacityPlan]:
        """One plan, and its requests."""
        if work is not None:
            self.instance = msgspec.structs.replace(self.instance, allocations=work)
        snapshot = msgspec.structs.replace(self.instance.snapshot(), now=self.now)
        decided = plan(snapshot, policy_of(snapshot.pool), self.now)
        return decided, plan_capacity(snapshot, decided, self.requests, self.seen)

    def step(self) -> tuple[Plan, CapacityPlan]:
        """Plan, create the requests, and let the autoscaler answer."""
        decided, made = self.look()
        settled = {each.name: each for each in made.settled}
        kept = [settled.get(each.name, each) for each in self.requests if each.name not in made.given_back]
        kept += [
            CapacityRequest(
                name=f"{ask.uid}-{ask.attempt}-{ask.shape}-{ask.number}",
                uid=ask.uid,
                attempt=ask.attempt,
                shape=ask.shape,
                number=ask.number,
                ranks=ask.ranks,
                since=self.now,
                asked_at=self.now,
            )
            for ask in made.asks
        ]
        self.requests = [self._said(each) for each in kept]
        self.seen, self.now = made.seen, self.now + STEP_S
        return decided, made

    def _said(self, request: CapacityRequest) -> CapacityRequest:
        request = msgspec.structs.replace(request, is_settled=True)
        if request.state is not RequestState.ASKED:
            return request
        self.made += 1
        state = self.states[self.made % len(self.states)]
        return msgspec.structs.replace(request, state=state, since=self.now, is_settled=state is RequestState.ASKED)

    @property
    def open(self) -> list[CapacityRequest]:
        return [each for each in self.requests if each.state is not RequestState.FAILED]


@given(instances(), SPECS, STATES)
@SETTINGS
def test_requests_stay_within_their_limits(
    instance: Instance, spec: AutoscalingFact, states: list[RequestState]
) -> None:
    """There are never more gangs or ranks than the limits, no request for admitted ones, each try once, and at most
    `tries`."""
    world, names = AutoscaledPool(instance, spec, states), set[str]()
    for _ in range(6):
        decided, made = world.step()
        assert len(world.open) <= spec.max_gangs
        assert sum(each.ranks for each in world.open) <= spec.max_ranks
        assert not {ask.uid for ask in made.asks} & {admit.uid for admit in decided.admits}
        assert all(1 <= ask.number <= spec.tries for ask in made.asks)
        asked = {f"{ask.uid}-{ask.attempt}-{ask.shape}-{ask.number}" for ask in made.asks}
        assert len(asked) == len(made.asks)
        assert not asked & names
        names |= asked


@given(instances(), SPECS, STATES)
@SETTINGS
def test_everything_is_given_back_when_nothing_waits(
    instance: Instance, spec: AutoscalingFact, states: list[RequestState]
) -> None:
    """This is true whatever was requested before."""
    world = AutoscaledPool(instance, spec, states)
    for _ in range(3):
        world.step()
    _, made = world.look([])
    assert set(made.given_back) == {each.name for each in world.requests}
    assert made.asks == ()


@given(instances(), SPECS, STATES)
@SETTINGS
def test_the_same_facts_give_the_same_requests(
    instance: Instance, spec: AutoscalingFact, states: list[RequestState]
) -> None:
    """The order in which the facts become known does not matter."""
    world = AutoscaledPool(instance, spec, states)
    world.step()
    _, first = world.look()
    world.requests.reverse()
    work = list(reversed(world.instance.allocations))
    _, second = world.look(work)
    assert first == second
