"""Past use: without any, nothing changes; more of it never helps; there are no circles; and a replay gives the same
result."""

import asyncio
import json
import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.decay import DecayedUsage
from slipway.model.facts import LEAST_USED, AllocationFact, FairShareFact, PoolFact, QueueFact
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.queueing.queue_cursor import NOT_YET, LineKey, QueueCursor, build_cursors
from slipway.scheduler.plan.state.past_use import PastUse, UserTurns
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import decode
from tests.property.planner import test_decision_log as log
from tests.property.planner import test_evictions_over_time as evictions
from tests.property.planner.instances import Instance, instances
from tests.support.planner import a_role, a_snapshot, an_allocation, nodes, planned
from tests.support.recording_leader import POOL, replayed

USERS = ("ana", "ben", "cleo")
WEEK_MS = 7 * 86_400_000
RULES = st.builds(FairShareFact, half_life_s=st.just(WEEK_MS / 1000), history=st.integers(0, 4000))
USED = st.dictionaries(
    st.sampled_from(["default", "other"]),
    st.dictionaries(st.sampled_from(USERS), st.integers(0, 10**12), max_size=3),
    max_size=2,
)


def owned(instance: Instance) -> list[AllocationFact]:
    """The instance's allocations, each owned by one of three users."""
    return [
        msgspec.structs.replace(fact, user=USERS[number % len(USERS)])
        for number, fact in enumerate(instance.allocations)
    ]


def with_past(instance: Instance, rule: FairShareFact, used: dict[str, dict[str, int]], order: str) -> PoolSnapshot:
    """The instance in a pool that considers past use; the users of its queues are ordered by it."""
    queues: list[QueueFact] = [msgspec.structs.replace(queue, user_order=order) for queue in instance.queues]
    pool = msgspec.structs.replace(instance.pool, fair_share=rule)
    snapshot = instance.snapshot(pool=pool, queues=queues, allocations=owned(instance))
    return msgspec.structs.replace(snapshot, past=PastUse(half_life_ms=WEEK_MS, history=rule.history, used=used))


@given(instances(), RULES)
@settings(deadline=None, max_examples=60)
def test_without_any_past_plans_are_the_same(instance: Instance, rule: FairShareFact) -> None:
    """A pool that considers past use, and has none, decides as one that does not."""
    plain = planned(instance.snapshot(allocations=owned(instance)))
    counting = planned(with_past(instance, rule, {}, "Submission"))
    assert counting.admits == plain.admits
    assert counting.evictions == plain.evictions
    assert dict(counting.explanations) == dict(plain.explanations)


@given(instances(), RULES, USED)
@settings(deadline=None, max_examples=60)
def test_plans_with_a_past_keep_all_rules(
    instance: Instance, rule: FairShareFact, used: dict[str, dict[str, int]]
) -> None:
    """Quotas, places and gangs are respected whatever was used before; and the same input gives the same plan."""
    snapshot = with_past(instance, rule, used, LEAST_USED)
    decided = planned(snapshot)
    assert not lint(snapshot, decided)
    again = planned(with_past(instance, rule, used, LEAST_USED))
    assert (again.admits, again.evictions) == (decided.admits, decided.evictions)
    assert dict(again.explanations) == dict(decided.explanations)


@given(instances(), USED, st.sampled_from(USERS), st.integers(0, 10**12))
@settings(deadline=None, max_examples=80)
def test_more_use_never_gives_an_earlier_place(
    instance: Instance, used: dict[str, dict[str, int]], user: str, more: int
) -> None:
    """This is about a user's allocations in the order of their queue, whatever others have used; positions are one
    to n."""
    rule = FairShareFact(WEEK_MS / 1000)
    queue = instance.queues[-1].name
    grown = used | {queue: used.get(queue, {}) | {user: used.get(queue, {}).get(user, 0) + more}}
    before, after = (_ahead(with_past(instance, rule, each, LEAST_USED), queue) for each in (used, grown))
    assert before.keys() == after.keys()
    for line in (before, after):
        assert sorted(count for count, _ in line.values()) == list(range(len(line)))
    for uid, (count, owner) in before.items():
        if owner == user:
            assert after[uid][0] >= count


def _ahead(snapshot: PoolSnapshot, queue: str) -> dict[str, tuple[int, str]]:
    """{uid: (the number ahead of it, its user)}; counting and walking give the same."""
    lines, _ = build_cursors(snapshot, queue_tree(snapshot), 0.0)
    line = lines.get(queue)
    if line is None:
        return {}
    walked = [fact.uid for _, fact, _ in line.waiting()]
    found = {fact.uid: (_count(line, snapshot, fact), fact.user) for _, fact, _ in line.waiting()}
    assert [found[uid][0] for uid in walked] == list(range(len(walked)))
    return found


def _count(line: QueueCursor, snapshot: PoolSnapshot, fact: AllocationFact) -> int:
    return line.ahead(snapshot.order_of(fact), fact.user)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_the_next_allocation_is_that_of_the_user_who_has_used_least(data: st.DataObject) -> None:
    """The cursor returns the first waiting allocation by age limit, priority, level of use and submission, as a model
    that sorts all of them again after each admission. A reason blocks all work that is alike, whatever its user."""
    work = data.draw(
        st.lists(
            st.tuples(st.sampled_from(USERS), st.integers(1, 3), st.integers(0, 1), st.integers(0, 20)),
            min_size=1,
            max_size=14,
        )
    )
    facts = [
        an_allocation(f"a{number}", a_role(1, gpus=gpus), user=user, priority=priority, created=-float(created))
        for number, (user, gpus, priority, created) in enumerate(work)
    ]
    pool = PoolFact(name="default", fair_share=FairShareFact(WEEK_MS / 1000), aging=data.draw(st.sampled_from([0, 10])))
    queues = [QueueFact(name="default", user_order=LEAST_USED)]
    names: list[str] = list(USERS)
    used = {"default": data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 10**7), max_size=3))}
    snapshot = a_snapshot(nodes(1), facts, queues=queues, pool=pool)
    past = PastUse(half_life_ms=WEEK_MS, used=used)
    settled = frozenset(data.draw(st.sets(st.sampled_from([fact.uid for fact in facts]), max_size=3)))
    snapshot = msgspec.structs.replace(snapshot, past=past)
    line = build_cursors(snapshot, queue_tree(snapshot), 0.0, settled)[0]["default"]
    levels = UserTurns(past, "default")
    left: dict[str, AllocationFact] = {fact.uid: fact for fact in facts if fact.uid not in settled}
    waiting = dict(left)
    while left:
        expected = min(left.values(), key=lambda fact: _line_key(snapshot, levels, fact))
        found = line.next()
        assert found is not None
        assert found[0].uid == expected.uid
        if data.draw(st.booleans()):
            line.admit()
            levels.charge(expected.user, found[1].demand.gpu_units())
            del left[expected.uid], waiting[expected.uid]
        else:
            line.block(NOT_YET, is_head=False)
            left = {uid: fact for uid, fact in left.items() if uid not in {each.uid for _, each in found[1].members}}
    assert line.next() is None
    in_order = sorted(waiting.values(), key=lambda fact: _line_key(snapshot, levels, fact))
    assert [fact.uid for _, fact, _ in line.waiting()] == [fact.uid for fact in in_order]
    assert [line.ahead(snapshot.order_of(fact), fact.user) for fact in in_order] == list(range(len(in_order)))
    firsts = [fact.uid for walk in line.group_cursors for _, fact in walk.first(len(facts))]
    assert sorted(firsts) == sorted(fact.uid for walk in line.group_cursors for _, fact in walk.waiting())


def _line_key(snapshot: PoolSnapshot, levels: UserTurns, fact: AllocationFact) -> LineKey:
    order = snapshot.order_of(fact)
    return (order[0], order[1], levels[fact.user], order)


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_runs_with_past_usage_end_without_preemption_loops(seed: int) -> None:
    """The past shifts shares during the run, by short half-lives; evictions are as bounded as without it."""
    chance = random.Random(seed)
    document = evictions.a_document(seed)
    document["pool"]["fairShare"] = {
        "halfLife": chance.choice(["1m", "10m", "1d"]),
        "historyWeight": chance.choice([0, 0.5, 1, 4]),
    }
    for queue in document["queues"]:
        queue["userOrder"] = chance.choice(["Submission", "LeastUsed"])
    for each in document["allocations"]:
        each["user"] = chance.choice(USERS)
    names = [queue["name"] for queue in document["queues"]]
    document["history"] = [
        {"queue": chance.choice(names), "user": chance.choice(USERS), "gpuHours": chance.choice([0.1, 1, 10])}
        for _ in range(chance.randint(0, 4))
    ]
    evictions.check(simulate(decode(json.dumps(document))))


@given(instances(), log.STEPS, USED, st.data())
@settings(deadline=None, max_examples=25)
def test_the_log_keeps_the_past(
    instance: Instance, steps: list[str], used: dict[str, dict[str, int]], data: st.DataObject
) -> None:
    """A replay has the same values as the leader had, and decides the same."""
    pool: PoolFact = msgspec.structs.replace(instance.pool, fair_share=FairShareFact(WEEK_MS / 1000))
    queues = [msgspec.structs.replace(queue, user_order=LEAST_USED) for queue in instance.queues]
    counting = msgspec.structs.replace(instance, pool=pool, queues=queues, allocations=owned(instance))
    leadership = log.furnished(counting)
    leadership.cluster.set_decayed(
        DecayedUsage(half_life_ms=WEEK_MS, used=used, held={"default": {"ana": data.draw(st.integers(0, 9))}})
    )
    log.happen(leadership, counting, steps, data.draw)
    asyncio.run(leadership.recorder.flush())
    if leadership.log:
        assert leadership.cluster.pools.get(POOL) is not None
        assert leadership.snapshots[leadership.log[0][1]].past is not None
        report = replayed(leadership.log)
        assert (report.differences, report.skipped, report.ticks) == ([], [], len(leadership.log))
