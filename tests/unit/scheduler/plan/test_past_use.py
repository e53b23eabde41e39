"""Past use in a plan: what queues deserve by it, and whose work goes first."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway.model.facts import FairShareFact, PoolFact, QueueFact
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.queueing.queue_cursor import NOT_YET, QueueCursor
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.past_use import STEP_MAX, STEP_MIN, STEPS, PastUse, UserTurns, step_of
from tests.support.planner import a_role, a_snapshot, an_allocation, nodes

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
TOTAL = Resources({"nvidia.com/gpu": 12})
GPU = "nvidia.com/gpu"


def a_tree(*queues: QueueFact, hours: dict[str, float], history: int = 1000) -> QueueTree:
    """A pool of 12 GPUs whose queues have used so many GPU-hours."""
    tree = QueueTree(queues, TOTAL)
    used = {name: {"ana": round(amount * HOUR_MS)} for name, amount in hours.items()}
    tree.set_past_use(PastUse(half_life_ms=WEEK_MS, history=history, used=used))
    return tree


def test_a_queue_that_used_its_share_has_its_full_weight() -> None:
    """A queue that used nothing counts double; one that used twice its due counts half. The bounds hold for any use and
    history."""
    assert [step_of(used, 1000, 1000) for used in (0, 500, 1000, 1500, 9000)] == [16, 12, 8, 4, 4]
    assert [step_of(used, 1000, 0) for used in (0, 1000, 9000)] == [STEPS, STEPS, STEPS]
    assert step_of(5, 0, 1000) == STEP_MIN


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 4000))
def test_more_use_never_counts_more(one: int, other: int, expected: int, history: int) -> None:
    """No queue is beyond the bounds."""
    less, more = sorted((one, other))
    assert STEP_MIN <= step_of(more, expected, history) <= step_of(less, expected, history) <= STEP_MAX


def test_equal_pasts_shift_nothing() -> None:
    """Queues that all used half, or all used twice as much, keep their shares; no share is computed twice."""
    tree = a_tree(QueueFact(name="a"), QueueFact(name="b"), hours={"a": 9000, "b": 9000})
    assert not tree.is_shifted
    assert tree.shifted_share("a", {GPU: 7}) == tree.share("a", {GPU: 7})


def test_what_nominals_leave_shifts_and_nominals_do_not() -> None:
    """`own` keeps its 4; of the other 8 the queue that has used much deserves a fifth."""
    queues = (QueueFact(name="own", nominal=Resources({GPU: 4})), QueueFact(name="a"), QueueFact(name="b"))
    tree = a_tree(*queues, hours={"own": 9000, "a": 9000})
    assert [tree.shifted(name)[GPU] for name in ("own", "a", "b")] == [GPU_UNITS * part // 10 for part in (40, 16, 64)]
    assert [tree.dues(name)[GPU] for name in ("own", "a", "b")] == [4 * GPU_UNITS] * 3


def test_history_of_no_weight_only_orders() -> None:
    """With a history of no weight shares stay; the queue that has used less by weight comes first."""
    tree = a_tree(QueueFact(name="a", weight=4), QueueFact(name="b"), hours={"a": 100, "b": 50}, history=0)
    assert not tree.is_shifted
    assert tree.used_before("a") < tree.used_before("b")


def test_a_department_has_used_what_its_teams_have() -> None:
    """The past use of a department is that of its teams, also for the order among its siblings."""
    queues = (QueueFact(name="p"), QueueFact(name="t", parent="p"), QueueFact(name="q"))
    tree = a_tree(*queues, hours={"t": 9000})
    assert tree.used_before("p") == tree.used_before("t") == 9000 * 60
    assert tree.weight_factor("p") == STEP_MIN / STEPS
    assert tree.weight_factor("t") == 1.0


QUEUES = st.lists(
    st.tuples(st.integers(1, 5), st.none() | st.integers(0, 6), st.integers(0, 20_000)), min_size=1, max_size=5
)


@given(QUEUES, st.integers(0, 4000))
def test_past_usage_does_not_affect_quota(drawn: list[tuple[int, int | None, int]], history: int) -> None:
    """A queue with a nominal deserves just that, whatever other queues have used; all queues deserve no more than there
    is."""
    queues = [
        QueueFact(name=f"q{at}", weight=weight, nominal=None if owned is None else Resources({GPU: owned}))
        for at, (weight, owned, _) in enumerate(drawn)
    ]
    tree = a_tree(*queues, hours={f"q{at}": hours for at, (*_, hours) in enumerate(drawn)}, history=history)
    for queue in queues:
        if queue.nominal is not None:
            assert tree.shifted(queue.name)[GPU] == tree.dues(queue.name)[GPU]
    owned_in_all = sum(owned or 0 for _, owned, _ in drawn)
    assert sum(tree.shifted(queue.name).get(GPU, 0) for queue in queues) <= max(12, owned_in_all) * GPU_UNITS


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.integers(1, 12), st.integers(0, 12), st.integers(0, 12))
def test_the_past_withholds_and_never_within_what_it_leaves(
    mine: int, theirs: int, asked: int, held: int, of_other: int
) -> None:
    """Nothing is withheld from a queue that stays within its shifted due; of two queues at most one is withheld a
    step."""
    tree = a_tree(QueueFact(name="a"), QueueFact(name="b"), hours={"a": mine, "b": theirs})
    tree.take("a", {GPU: held}, preemptible=True)
    tree.take("b", {GPU: of_other}, preemptible=True)
    is_withheld = tree.denies_reclaim("a", "b", {GPU: asked}, {GPU: 1})
    if (held + asked) * GPU_UNITS <= tree.shifted("a")[GPU]:
        assert not is_withheld
    if not tree.is_shifted:
        assert not is_withheld


def test_users_are_compared_by_what_they_used_and_hold() -> None:
    """An admission of the same plan counts at once."""
    past = PastUse(
        half_life_ms=WEEK_MS, used={"lab": {"ana": 20 * 60_000}}, held={"lab": {"ben": GPU_UNITS}, "x": {"ana": 9}}
    )
    turns = UserTurns(past, "lab")
    assert [turns[user] for user in ("ana", "ben", "cleo")] == [20, 10, 0]
    turns.charge("ben", 2 * GPU_UNITS)
    assert turns["ben"] == 30


def test_what_blocks_the_work_of_one_user_blocks_all_that_is_alike() -> None:
    """A hundred users cost a tick no more than one: for work that differs only in its user a place is searched once,
    and all of it waits for the same reason. Work of another shape is looked at by itself."""
    pool = PoolFact(name="default", fair_share=FairShareFact(half_life_s=WEEK_MS / 1000))
    queues = [QueueFact(name="default", user_order="LeastUsed")]
    large = [
        msgspec.structs.replace(an_allocation(f"large-{user}", a_role(2, gpus=8)), user=user)
        for user in ("ana", "ben", "cleo")
    ]
    small = msgspec.structs.replace(an_allocation("small", a_role(1, gpus=4)), user="dan")
    snapshot = a_snapshot(nodes(1, gpus=8), [*large, small], queues=queues, pool=pool)
    decided = plan(snapshot, policy_of(pool), snapshot.now)
    assert [admit.allocation for admit in decided.admits] == ["default/small"]
    assert len({decided.explanations[fact.key].message for fact in large}) == 1
    assert snapshot.past is not None
    line = QueueCursor(
        queues[0], snapshot.groups, turns=UserTurns(snapshot.past, "default", ("ana", "ben", "cleo", "dan"))
    )
    looked_at: list[str] = []
    while (found := line.next()) is not None:
        looked_at.append(found[0].name)
        line.block(NOT_YET, is_head=True)
    assert looked_at == ["large-ana", "small"]
    line.reopen()
    assert [fact.name for fact in line.upcoming(9)] == ["large-ana", "small"]
