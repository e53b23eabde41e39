"""Each gate, in order, with its message, and the change that would help."""

from typing import Any

import msgspec
import pytest

from slipway.model.facts import AllocationFact, JobFact, NodeFact, PodFact, PoolFact, QueueFact, RoleFact
from slipway.model.reasons import NEVER, Gate, waiting_never_helps
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement.explain import of_this_mix
from slipway.scheduler.plan.state.plan_types import Explanation, Remedy, as_data
from tests.support.planner import a_node, a_role, a_snapshot, amounts, an_allocation, gates, nodes, planned, running


def why(allocation: AllocationFact, *, now: float = 0.0, **facts: Any) -> Explanation:
    """The explanation of `allocation`, which waits alone unless `others` are given."""
    node_facts = facts.pop("nodes", nodes(1))
    snapshot = a_snapshot(node_facts, [*facts.pop("others", ()), allocation], **facts)
    return planned(snapshot, now).explanations[allocation.key]


def test_invalid_comes_first_and_says_what_the_spec_lacks() -> None:
    found = why(an_allocation("a", invalid="/ranks/0: no image", hold=True))
    assert (found.gate, found.message, found.is_never) == (Gate.INVALID, "/ranks/0: no image", True)


def test_a_namespace_that_is_no_workspace() -> None:
    found = why(AllocationFact(namespace="elsewhere", name="a", uid="a", version=1, roles=(a_role(),)))
    assert found.gate is Gate.NOT_A_WORKSPACE
    assert "slipway.dev/workspace=true" in found.message


def test_a_pool_that_is_for_other_workspaces() -> None:
    """An object that was applied by hand waits too, with a reason. The message does not name the other workspaces."""
    pool = PoolFact(name="default", workspaces=("a-team", "b-team"))
    found = why(an_allocation("a"), pool=pool)
    assert (found.gate, found.is_never) == (Gate.POOL_NOT_FOR_WORKSPACE, True)
    assert "a-team" not in found.message
    assert "spec.workspaces" in found.message
    allowed = msgspec.structs.replace(pool, workspaces=(an_allocation("a").namespace,))
    assert planned(a_snapshot(nodes(1), [an_allocation("a")], pool=allowed), 0.0).admits


def test_held_and_what_releases_it() -> None:
    found = why(an_allocation("a", hold=True))
    assert (found.gate, found.change) == (Gate.HELD, (Remedy(kind="release"),))


@pytest.mark.parametrize(
    ("waits_for", "message"),
    [
        ((("prep-1", "succeeded"),), "waits for prep-1 to succeed"),
        ((("prep-1", "failed"), ("data-2", "ended")), "waits for prep-1 to fail and data-2 to end"),
        (tuple((name, "ended") for name in "abc"), "waits for a to end, b to end, and for 1 more allocation"),
        (tuple((name, "ended") for name in "abcd"), "waits for a to end, b to end, and for 2 more allocations"),
    ],
)
def test_what_waits_for_others_says_for_whom(waits_for: tuple[tuple[str, str], ...], message: str) -> None:
    """The message does not depend on the rest of the queue, and is short for many dependencies."""
    found = why(an_allocation("a", waits_for=waits_for))
    assert (found.gate, found.message, found.is_never) == (Gate.WAITING_FOR_DEPENDENCY, message, False)
    assert why(an_allocation("a", waits_for=waits_for, hold=True)).gate is Gate.HELD


def test_an_allocation_that_waits_for_dependencies_delays_no_other() -> None:
    """Work that waits for a dependency is first in its queue, and nothing is reserved for it: the work behind it
    starts."""
    first = an_allocation("a", a_role(count=2), priority=900, waits_for=(("prep-1", "succeeded"),))
    behind = an_allocation("b", a_role(count=2))
    for ordering in ("StrictFIFO", "BestEffortFIFO", "Backfill"):
        queues = [QueueFact(name="default", ordering=ordering)]
        done = planned(a_snapshot(nodes(1), [first, behind], queues=queues), 0.0)
        assert [admit.allocation for admit in done.admits] == [behind.key], ordering
        assert not done.kept, ordering


def test_backoff_says_until_when() -> None:
    """The message states a time, not a countdown, so that it does not change by itself."""
    found = why(an_allocation("a", not_before=60.0, attempt=3), now=10.0)
    assert found.gate is Gate.BACKOFF
    assert found.message == "attempt 3 waits until 1970-01-01T00:01:00Z (restart backoff)"
    assert found.change == (Remedy(kind="wait", until=60.0),)
    assert planned(a_snapshot(nodes(1), [an_allocation("a", not_before=60.0)]), 60.0).admits


def test_an_unknown_queue_and_an_inner_one() -> None:
    queues = [QueueFact(name="p"), QueueFact(name="leaf", parent="p")]
    assert why(an_allocation("a", queue="gone"), queues=queues).message == "pool default has no queue gone"
    assert why(an_allocation("a", queue="p"), queues=queues).gate is Gate.UNKNOWN_QUEUE


def test_a_job_that_does_not_exist_is_waited_for() -> None:
    """Work waits for its job, because nothing would enforce the limits of a missing job. Work without a job starts."""
    work = an_allocation("a", job="sweep")
    found = why(work)
    assert (found.gate, found.message) == (Gate.UNKNOWN_JOB, f"workspace {work.namespace} has no job sweep")
    free = an_allocation("b")
    both = planned(a_snapshot(nodes(1), [work, free]), 0.0)
    assert [admit.allocation for admit in both.admits] == [free.key]
    made = [JobFact(namespace=work.namespace, name="sweep")]
    assert planned(a_snapshot(nodes(1), [work], jobs=made), 0.0).admits


@pytest.mark.parametrize("gate", [Gate.EXCEEDS_MAX_QUOTA, Gate.RESOURCE_QUOTA])
def test_a_mix_of_roles_that_may_never_start_is_not_the_whole_gang(gate: Gate) -> None:
    """Another mix may fit later, so the message does not state that the gang can never start."""
    never = Explanation(gate=gate, message=f"{NEVER}: its pods ask for 5 of cpu", is_never=True)
    found = of_this_mix(never)
    assert (found.is_never, waiting_never_helps(found.message), found.gate is Gate.EXCEEDS_MAX_QUOTA) == (
        False,
        False,
        False,
    )
    waits = Explanation(gate=Gate.WAITING_FOR_QUOTA, message="needs 1 more quota")
    assert of_this_mix(waits) is waits


def test_too_few_ranks_says_both_numbers() -> None:
    assert why(an_allocation("a", a_role(2), minimum=3)).message == "the gang has 2 ranks and needs 3"
    role = a_role(1, 2, name="ps")
    assert why(an_allocation("a", role, minimum=1)).message == "role ps has 1 ranks and needs 2"
    assert why(an_allocation("a", a_role(2), minimum=3)).gate is Gate.NOT_ENOUGH_PODS


def test_one_rank_that_does_not_fit_now() -> None:
    """The message counts the nodes by reason, and states how much more is needed."""
    pods = [
        PodFact(
            namespace="d", name=f"p{index}", uid=f"p{index}", node=f"n{index}", requests=amounts(0, 0, 8 - index % 2)
        )
        for index in range(3)
    ]
    node_facts = [*nodes(3, gpus=8), a_node("n3", gpus=8, unschedulable=True)]
    found = why(an_allocation("a", a_role(gpus=2)), nodes=node_facts, pods=pods)
    assert found.gate is Gate.NO_FIT
    assert found.message == (
        "0 of 4 nodes fit: 3 lack 2 nvidia.com/gpu free, 1 is cordoned; needs 1 more nvidia.com/gpu on one node"
    )
    assert found.reasons == {"Insufficient nvidia.com/gpu": 3, "NodeUnschedulable": 1}
    assert found.change == (Remedy(kind="free", node="n1", amounts={"nvidia.com/gpu": 1}),)


def test_a_gang_larger_than_the_pool_is_told_so() -> None:
    found = why(an_allocation("a", a_role(8, gpus=8)), nodes=nodes(2, gpus=8))
    assert found.is_never
    assert found.message.startswith(
        "can never start with the pool's current nodes: it asks for 64 nvidia.com/gpu and the whole pool has 16; "
        "when empty, the pool has room for 2 of 8 ranks; room for 2 of 8 ranks"
    )


def test_a_rank_larger_than_any_node_is_told_so() -> None:
    found = why(an_allocation("a", a_role(cpu=9)), nodes=nodes(2, cpu=8))
    assert found.is_never
    assert found.message == (
        "can never start with the pool's current nodes: even when empty, the pool has no place for a rank like this; "
        "the largest node that it may use has 8 cpu: ask for at most that per rank; "
        "0 of 2 nodes fit: 2 have less than 9 cpu in all"
    )
    assert found.change is None


@pytest.mark.parametrize(
    ("role", "node_facts", "said"),
    [
        pytest.param(
            a_role(gpus=8),
            [a_node("small", gpus=2), a_node("large", gpus=4)],
            "; the largest node that it may use has 4 nvidia.com/gpu: ask for at most that per rank;",
            id="the most of any node",
        ),
        pytest.param(
            a_role(gpus=8, node_selector={"zone": "a"}),
            [a_node("a", gpus=4, labels={"zone": "a"}), a_node("b", gpus=8)],
            "; the largest node that it may use has 4 nvidia.com/gpu: ask for at most that per rank;",
            id="only of the nodes that its filters admit",
        ),
        pytest.param(
            a_role(gpus=8, cpu=6),
            [a_node("few", gpus=2, cpu=8), a_node("thin", gpus=4, cpu=2)],
            "; the largest node that it may use has 2 nvidia.com/gpu: ask for at most that per rank;",
            id="of a node that holds the rest",
        ),
        pytest.param(
            a_role(gpus=8, cpu=9),
            [a_node("few", gpus=2, cpu=8), a_node("thin", gpus=4, cpu=2)],
            "; the largest node that it may use has 4 nvidia.com/gpu and 2 cpu: ask for at most that per rank;",
            id="two of them of one node",
        ),
        pytest.param(
            a_role(gpus=1), nodes(2), "; no node that it may use has nvidia.com/gpu;", id="a kind that no node has"
        ),
        pytest.param(
            a_role(gpus=1, node_selector={"zone": "a"}),
            [a_node("a", labels={"zone": "a"}), a_node("b", gpus=8)],
            "; no node that it may use has nvidia.com/gpu;",
            id="a kind that only others have",
        ),
        pytest.param(
            a_role(4, cpu=5),
            nodes(3, cpu=8),
            "even when empty, the pool has room for 3 of 4 ranks;",
            id="fewer ranks would fit",
        ),
    ],
)
def test_what_can_never_start_is_told_what_would_fit(role: RoleFact, node_facts: list[NodeFact], said: str) -> None:
    """The message states the largest request that fits: on one node, of those that the rank may use."""
    found = why(an_allocation("a", role), nodes=node_facts)
    assert found.is_never
    assert said in found.message


def test_what_is_said_to_fit_does_fit() -> None:
    """A rank that asks for the most that was named starts on the empty pool."""
    node_facts = [a_node("few", gpus=2, cpu=8), a_node("thin", gpus=4, cpu=2)]
    assert "4 nvidia.com/gpu and 2 cpu" in why(an_allocation("a", a_role(gpus=8, cpu=9)), nodes=node_facts).message
    assert planned(a_snapshot(node_facts, [an_allocation("a", a_role(gpus=4, cpu=2))]), 0.0).admits


@pytest.mark.parametrize(
    ("role", "node_facts", "is_never"),
    [
        pytest.param(a_role(gpus=9), nodes(2, gpus=8), True, id="a rank that no node holds"),
        pytest.param(a_role(8, gpus=8), nodes(2, gpus=8), True, id="more than the pool has"),
        pytest.param(a_role(gpus=8), [a_node("n", gpus=8, unschedulable=True)], False, id="a cordon passes"),
    ],
)
def test_the_message_says_never_just_when_no_wait_helps(
    role: RoleFact, node_facts: list[NodeFact], *, is_never: bool
) -> None:
    """A reader of the condition has the gate and the message, and tells the two kinds of NoFit by the message."""
    found = why(an_allocation("a", role), nodes=node_facts)
    assert (found.gate, found.is_never, waiting_never_helps(found.message)) == (Gate.NO_FIT, is_never, is_never)


def test_a_pool_without_nodes() -> None:
    assert why(an_allocation("a"), nodes=[]).message.endswith("the pool has no nodes")


def test_a_cordoned_pool_is_not_hopeless() -> None:
    """Cordons and unready nodes are temporary: a strict queue keeps waiting behind such work."""
    assert not why(an_allocation("a"), nodes=[a_node("n", unschedulable=True), a_node("m", ready=False)]).is_never


def test_job_slots() -> None:
    """A job whose slots are in use states how many it may have, and what helps; work above that can never start."""
    job = JobFact(namespace="default", name="j", max_slots=2)
    other = running(an_allocation("r", a_role(gpus=1), job="j"), {0: "n0"})
    found = why(an_allocation("a", a_role(gpus=2), job="j"), nodes=nodes(1, gpus=8), jobs=[job], others=[other])
    assert found.message == "job j may use 2 slots and 1 are in use; this needs 2"
    assert (found.gate, found.change) == (Gate.JOB_MAX_SLOTS, (Remedy(kind="maxSlots", name="j", slots=1),))
    never = why(an_allocation("a", a_role(gpus=3), job="j"), nodes=nodes(1, gpus=8), jobs=[job])
    assert (never.gate, never.is_never) == (Gate.EXCEEDS_MAX_QUOTA, True)
    free = an_allocation("a", a_role(gpus=0), job="j")
    assert planned(a_snapshot(nodes(1, gpus=8), [other, free], jobs=[job])).admits


def test_changes_of_two_gates_are_offered_together() -> None:
    """A change of quota and a change of room are offered together, because one alone would not start the work."""
    queue = QueueFact(name="default", limit=Resources({"cpu": 1000}))
    pod = PodFact(namespace="d", name="p", uid="p", node="n0", requests=amounts(7))
    found = why(an_allocation("a", a_role(cpu=2)), queues=[queue], pods=[pod])
    assert found.gate is Gate.EXCEEDS_MAX_QUOTA
    assert found.change == (
        Remedy(kind="limit", name="default", amounts={"cpu": 1000}),
        Remedy(kind="free", node="n0", amounts={"cpu": 1000}),
    )


def test_no_remedy_is_offered_that_other_work_would_use_up() -> None:
    """Of two equal requests only the first is offered a change: a freed place would go to the first."""
    pod = PodFact(namespace="d", name="p", uid="p", node="n0", requests=amounts(8))
    first, second = an_allocation("a", created=1.0), an_allocation("b", created=2.0)
    made = planned(a_snapshot(nodes(1), [first, second], pods=[pod])).explanations
    assert made[first.key].change is not None
    assert made[second.key].change is None
    assert (made[second.key].position, made[second.key].ahead) == (2, 1)


def test_no_change_is_offered_that_another_would_take_by_evicting() -> None:
    """The second lacks one cpu. With it, the first, of higher priority, would evict the running work and start."""
    queue = QueueFact(name="default", within_queue="LowerPriority")
    runs = running(an_allocation("runs", preemptible=True), {0: "n0"})
    first, second = an_allocation("a", a_role(cpu=3), priority=2), an_allocation("b", a_role(cpu=2))
    node = a_node("n0", cpu=2)
    alone = planned(a_snapshot([node], [runs, second], queues=[queue])).explanations
    made = planned(a_snapshot([node], [runs, first, second], queues=[queue])).explanations
    assert alone[second.key].change == (Remedy(kind="free", node="n0", amounts={"cpu": 1000}),)
    assert made[second.key].change is None


def test_what_the_plan_evicts_is_not_given_to_another_once_more() -> None:
    """The head evicts the running work, so the first cannot evict it too. The two cpu that the second lacks would not
    start the first, so they are offered to the second."""
    queue = QueueFact(name="default", within_queue="LowerPriority")
    runs = running(an_allocation("runs", a_role(cpu=4), preemptible=True), {0: "n0"})
    head = an_allocation("head", a_role(cpu=4), priority=9)
    first, second = (
        an_allocation("first", a_role(cpu=4), priority=5),
        an_allocation("second", a_role(cpu=2), priority=2),
    )
    decided = planned(a_snapshot([a_node("n0", cpu=4)], [runs, head, first, second], queues=[queue]))
    assert [evict.uid for evict in decided.evictions] == [runs.uid]
    change = decided.explanations[second.key].change
    assert change == (Remedy(kind="free", node="n0", amounts={"cpu": 2000}),)


def test_no_change_is_offered_that_another_would_take_from_what_has_just_started() -> None:
    """The elastic gang starts in this plan. With one more cpu, the next plan would move its ranks to one node, so that
    the pair, which needs two nodes, could start."""
    elastic = an_allocation("elastic", a_role(2, 1), created=1.0, preemptible=True)
    pair = an_allocation("pair", a_role(2, host_ports=(80,)), created=2.0)
    held = an_allocation("held", created=3.0, hold=True)
    room = [a_node("n0", cpu=1), a_node("n1", cpu=1)]
    alone = planned(a_snapshot(room, [elastic, held]), 10.0).explanations
    made = planned(a_snapshot(room, [elastic, pair, held]), 10.0).explanations
    freed = Remedy(kind="free", node="n0", amounts={"cpu": 1000})
    assert alone[held.key].change == (Remedy(kind="release"), freed)
    assert made[held.key].change is None


def test_no_change_is_offered_that_another_would_have_kept() -> None:
    """The gang has waited long, and starts as soon as n0 and n1 are free. So n0 is reserved for it, and not offered to
    the small one."""
    room = [a_node("n0", cpu=1, labels={"disk": "ssd"}), a_node("n1", cpu=2)]
    pod = PodFact(namespace="d", name="p", uid="p", node="n0", requests=amounts(1))
    runs = running(an_allocation("runs", a_role(cpu=2)), {0: "n1"})
    on_ssd = a_role(name="ssd", node_selector={"disk": "ssd"})
    gang, small = an_allocation("gang", on_ssd, a_role(cpu=2), created=1.0), an_allocation("small", on_ssd, created=2.0)
    for aging, change in ((0.0, (Remedy(kind="free", node="n0", amounts={"cpu": 1000}),)), (5.0, None)):
        pool = PoolFact(name="default", aging=aging)
        made = planned(a_snapshot(room, [runs, gang, small], pods=[pod], pool=pool), 10.0).explanations
        assert made[small.key].change == change


@pytest.mark.parametrize(
    ("node", "job", "change"),
    [
        (
            a_node("n0", cpu=1, gpus=1, labels={"disk": "ssd"}, unschedulable=True),
            JobFact(namespace="default", name="j"),
            Remedy(kind="uncordon", node="n0"),
        ),
        (
            a_node("n0", cpu=1, gpus=1, labels={"disk": "ssd"}),
            JobFact(namespace="default", name="j", max_slots=0),
            Remedy(kind="maxSlots", name="j", slots=1),
        ),
    ],
    ids=["uncordon", "maxSlots"],
)
def test_no_change_of_nodes_or_slots_is_offered_that_reserves_the_room_for_another(
    node: NodeFact, job: JobFact, change: Remedy
) -> None:
    """The gang has waited long and needs n1 too, which is in use. With the change n0 would be reserved for the gang, so
    the change does not help the small one. Without aging nothing is reserved, and the change is offered."""
    runs = running(an_allocation("runs", a_role(cpu=2)), {0: "n1"})
    on_ssd = a_role(name="ssd", gpus=1, node_selector={"disk": "ssd"})
    gang = an_allocation("gang", on_ssd, a_role(cpu=2), created=1.0, job="j")
    small = an_allocation("small", on_ssd, created=2.0, job="j")
    for aging, offered in ((0.0, (change,)), (5.0, None)):
        pool = PoolFact(name="default", aging=aging)
        snapshot = a_snapshot([node, a_node("n1", cpu=2)], [runs, gang, small], jobs=[job], pool=pool)
        assert planned(snapshot, 10.0).explanations[small.key].change == offered


def test_what_the_tick_did_not_get_to() -> None:
    made = planned(a_snapshot(nodes(1), [an_allocation(name, created=1.0) for name in "abc"]), decisions_max=1)
    assert gates(made) == {"b": "NotYetConsidered", "c": "NotYetConsidered"}
    assert [made.explanations[f"default/{name}"].ahead for name in "bc"] == [0, 1]


def test_no_gpus_are_ahead_that_nothing_will_ever_take() -> None:
    """Work that can never start keeps its place in the queue, but nobody waits for its GPUs."""
    huge, large, small = (
        an_allocation(name, a_role(gpus=count), created=float(number))
        for number, (name, count) in enumerate([("huge", 64), ("large", 8), ("small", 8)], 1)
    )
    busy = running(an_allocation("busy", a_role(gpus=1)), {0: "n0"})
    made = planned(a_snapshot([a_node("n0", gpus=8)], [busy, huge, large, small]), 10.0).explanations
    assert [made[each.key].is_never for each in (huge, large, small)] == [True, False, False]
    assert [(made[each.key].ahead, made[each.key].ahead_slots) for each in (huge, large, small)] == [
        (0, 0),
        (1, 0),
        (2, 8),
    ]


@pytest.mark.parametrize("field", ["stopping", "deleting"])
def test_a_cancelled_allocation_is_neither_started_nor_explained(field: str) -> None:
    made = planned(a_snapshot(nodes(1), [an_allocation("a", **{field: True}), an_allocation("b", desired="Stopped")]))
    assert made.is_empty
    assert made.explanations == {}


def test_as_data_is_what_the_answer_carries() -> None:
    held = why(an_allocation("a", hold=True))
    assert as_data(held) == {
        "code": "Held",
        "message": "held; release it to let it start",
        "reasons": {},
        "position": 0,
        "ahead": 0,
        "aheadSlots": 0,
        "change": [{"kind": "release"}],
    }


def test_a_full_pool_is_not_a_quota() -> None:
    """All 8 cpu are in use and nothing is reserved: the gate is that of the nodes. Reserved quota is the gate while
    there is room."""
    queues = [QueueFact(name="default"), QueueFact(name="own", nominal=amounts(cpu=4))]
    full = running(an_allocation("full", a_role(cpu=8), queue="own", preemptible=True), {0: "n0"})
    waits = an_allocation("waits", preemptible=True)
    found = why(waits, others=[full], queues=queues)
    assert (found.gate, found.reasons) == (Gate.NO_FIT, {"Insufficient cpu": 1})
    reserved = [
        QueueFact(name="default"),
        QueueFact(name="own", nominal=amounts(cpu=4), lending_limit=Resources({"cpu": 0})),
    ]
    some = running(an_allocation("some", a_role(cpu=2), preemptible=True), {0: "n0"})
    large = an_allocation("large", a_role(cpu=3), preemptible=True)
    assert why(large, others=[some], queues=reserved).gate is Gate.WAITING_FOR_QUOTA
