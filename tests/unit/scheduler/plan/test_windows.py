"""Windows in a plan: which nodes they take, which work they keep off or evict, and when the plan is made anew."""

from typing import Any

import msgspec

from slipway.model.facts import AllocationFact, FlavorFact, PoolFact, QueueFact, WindowFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import faults_of, policy_of
from slipway.scheduler.plan.planner import plan, windows_of
from slipway.scheduler.plan.reservation import timeline
from slipway.scheduler.plan.state.plan_types import Admit, Plan
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import (
    WORKSPACES,
    a_node,
    a_role,
    a_snapshot,
    an_allocation,
    gates,
    nodes,
    places,
    planned,
    running,
)

DAY = 86_400.0
QUEUES = (QueueFact(name="default"), QueueFact(name="class"), QueueFact(name="beginners", parent="class"))


def a_window(**more: Any) -> WindowFact:
    """Maintenance of all nodes from 1000 to 2000."""
    fields: dict[str, Any] = {"name": "patch", "start": 1000.0, "duration": 1000.0, "lead_s": DAY, **more}
    return WindowFact(**fields)


def a_pool(*windows: WindowFact, **more: Any) -> PoolFact:
    return PoolFact(name="default", windows=windows, **more)


def whole(name: str, **more: Any) -> AllocationFact:
    """Work that takes all of a node."""
    return an_allocation(name, a_role(cpu=8), **more)


def reserved(snapshot: PoolSnapshot, name: str = "patch", now: float = 0.0) -> list[str]:
    """The nodes that a window takes."""
    windows = windows_of(snapshot, now)
    assert windows is not None
    found = windows.nodes()[name].nodes
    return [node for node, is_taken in zip(snapshot.table.names, found, strict=True) if is_taken]


def decided(snapshot: PoolSnapshot, now: float) -> Plan:
    """The plan at `now`, which passes lint."""
    made = planned(msgspec.structs.replace(snapshot, now=now), now)
    assert lint(msgspec.structs.replace(snapshot, now=now), made) == ()
    return made


def test_a_queue_below_the_named_one_may_use_the_nodes() -> None:
    """A window for `class` is also for `beginners`, which is below it; other queues are kept off."""
    pool = a_pool(a_window(queues=("class",)))
    work = [an_allocation("own", queue="beginners"), an_allocation("other")]
    assert places(decided(a_snapshot(nodes(1), work, queues=QUEUES, pool=pool), 1500.0)) == {"own": ["n0"]}


def test_the_run_limit_of_the_queue_counts() -> None:
    """Work that asks for no limit ends by that of its queue."""
    queues = (QueueFact(name="default", max_runtime=1000.0),)
    snapshot = a_snapshot(nodes(1), [an_allocation("a")], queues=queues, pool=a_pool(a_window()))
    assert places(decided(snapshot, 0.0)) == {"a": ["n0"]}
    assert places(decided(snapshot, 1.0)) == {}


def test_work_without_a_limit_is_kept_off_from_the_lead_time_on() -> None:
    """Work without a run limit starts until that instant, since some window is always ahead."""
    snapshot = a_snapshot(nodes(1), [an_allocation("a")], pool=a_pool(a_window(lead_s=600.0)))
    assert places(decided(snapshot, 399.0)) == {"a": ["n0"]}
    assert places(decided(snapshot, 400.0)) == {}


def test_a_tick_without_news_sees_that_time_has_passed() -> None:
    """A plan does not take over what an earlier plan of the same state found about the window."""
    columns = PoolState(a_pool(a_window()))
    columns.set_nodes(nodes(1))
    columns.set_queues(QUEUES)
    columns.set_workspaces(WORKSPACES)
    columns.set_allocation(an_allocation("a", max_runtime=100.0))
    texts: list[str] = []
    for now in (950.0, 1500.0, 2000.0):
        snapshot = columns.snapshot((), now)
        made = planned(snapshot, now)
        texts += [why.message for why in made.explanations.values()]
    assert "may start there" in texts[0]
    assert "may start there" not in texts[1]
    assert places(made) == {"a": ["n0"]}


def test_nodes_that_are_free_at_the_start_are_chosen_first() -> None:
    """n0 is busy beyond the start, n1 until before it, n2 is free: of two nodes, n1 and n2 are chosen."""
    work = [
        running(whole("long", max_runtime=5000.0), {0: "n0"}),
        running(whole("short", max_runtime=500.0), {0: "n1"}),
    ]
    for count, expected in ((1, ["n1"]), (2, ["n1", "n2"]), (3, ["n0", "n1", "n2"])):
        assert reserved(a_snapshot(nodes(3), work, pool=a_pool(a_window(nodes=count)))) == expected


def test_nodes_with_work_of_its_own_are_chosen_before_free_ones() -> None:
    """A window whose queue already runs work takes those nodes first, so it holds no more nodes back than it states."""
    work = [running(whole("own", queue="class"), {0: "n2"})]
    snapshot = a_snapshot(nodes(3), work, queues=QUEUES, pool=a_pool(a_window(queues=("class",), nodes=1)))
    assert reserved(snapshot, now=1500.0) == ["n2"]


def test_a_window_of_gpus_takes_whole_nodes_until_it_has_as_many() -> None:
    """Nodes without GPUs and nodes that take no work do not belong to such a window."""
    some = [a_node("a", gpus=4, unschedulable=True), a_node("b"), a_node("c", gpus=4), a_node("d", gpus=4)]
    assert reserved(a_snapshot(some, pool=a_pool(a_window(gpus=4)))) == ["c"]
    assert reserved(a_snapshot(some, pool=a_pool(a_window(gpus=5)))) == ["c", "d"]


def test_windows_at_the_same_time_take_different_nodes() -> None:
    """A window that names its node comes first, then the earlier one; nodes of a window that is over by then are
    free."""
    maintenance = a_window(name="a", node_names=("n0",))
    first = a_window(name="b", start=900.0, nodes=1, queues=("class",))
    later = a_window(name="c", start=2000.0, nodes=1, queues=("class",))
    snapshot = a_snapshot(nodes(3), pool=a_pool(later, first, maintenance), queues=QUEUES)
    assert [reserved(snapshot, name) for name in "abc"] == [["n0"], ["n1"], ["n0"]]


def test_preemptible_work_goes_when_a_window_that_evicts_begins() -> None:
    """Work is not evicted before the start. Work that may not be preempted, and work that the window is for, stays."""
    work = [
        running(whole("goes", preemptible=True), {0: "n0"}),
        running(whole("stays"), {0: "n1"}),
        running(whole("own", preemptible=True, queue="class"), {0: "n2"}),
    ]
    pool = a_pool(a_window(evicts=True, queues=("class",)))
    snapshot = a_snapshot(nodes(3), work, pool=pool, queues=QUEUES)
    assert decided(snapshot, 999.0).evictions == ()
    (evict,) = decided(snapshot, 1000.0).evictions
    assert (evict.allocation, evict.reason.value) == ("default/goes", "NodeReserved")


def test_the_plan_is_made_anew_when_a_window_begins_and_when_it_ends() -> None:
    """The plan is also made anew when no work waits, because the window may evict work."""
    snapshot = a_snapshot(nodes(1), pool=a_pool(a_window()))
    assert planned(snapshot, 0.0).look_again == 1000.0
    assert planned(snapshot, 1000.0).look_again == 2000.0
    assert planned(snapshot, 2000.0).look_again == 0.0


def test_a_growing_gang_is_held_to_the_end_of_its_attempt() -> None:
    """The new rank of the gang would end with the others: at 900 that is in time, at 1100 it is not."""
    for ends, nodes_added in ((900.0, ["n1"]), (1100.0, [])):
        gang = an_allocation("g", a_role(count=2, minimum=1, cpu=8), max_runtime=ends, started=0.0)
        fact = msgspec.structs.replace(running(gang, {0: "n0"}), phase=Phase.RUNNING)
        snapshot = a_snapshot(nodes(2), [fact], pool=a_pool(a_window()))
        made = plan(snapshot, policy_of(snapshot.pool), 100.0, grows=True)
        assert [node for grow in made.grows for node in grow.placements.values()] == nodes_added


def test_what_is_preempted_for_has_to_end_in_time_once_its_victims_have_left() -> None:
    """Victims take time to leave: 600 s before the window, work of 400 s evicts no victim that may take 300 s."""
    queues = (QueueFact(name="default", within_queue="LowerPriority"),)
    victim = running(whole("victim", preemptible=True, max_runtime=500.0), {0: "n0"})
    for limit, evicted in ((200.0, ["default/victim"]), (400.0, [])):
        urgent = whole("urgent", priority=1, max_runtime=limit)
        snapshot = a_snapshot(nodes(1), [victim, urgent], queues=queues, pool=a_pool(a_window()))
        assert [each.allocation for each in decided(snapshot, 400.0).evictions] == evicted


def test_the_smallest_change_is_the_longest_run_limit_that_is_in_time() -> None:
    """With two windows, the change is for the node of the later one, which allows the longer limit."""
    first, later = a_window(node_names=("n0",)), a_window(name="later", start=5000.0, node_names=("n1",))
    waiting = whole("a", max_runtime=20_000.0)
    why = decided(a_snapshot(nodes(2), [waiting], pool=a_pool(first, later)), 0.0).explanations["default/a"]
    assert why.change is not None
    assert [(part.kind, part.seconds, part.until) for part in why.change] == [("maxRuntime", 5000.0, 5000.0)]
    assert why.reasons == {"Reserved": 2}
    assert "a maxRuntime that ends it by 1970-01-01T01:23:20Z would let it start now" in why.message


def test_a_full_node_is_no_matter_of_run_limits() -> None:
    """Where a shorter limit does not help, the change is the room, on a node that is not reserved."""
    pool = a_pool(a_window(node_names=("n0",)))
    work = [running(whole("a"), {0: "n0"}), running(whole("b"), {0: "n1"}), whole("c", max_runtime=DAY)]
    why = decided(a_snapshot(nodes(2), work, pool=pool), 0.0).explanations["default/c"]
    assert why.change is not None
    assert [(part.kind, part.node) for part in why.change] == [("free", "n1")]


def test_flavors_are_tried_outside_of_the_window() -> None:
    """The first flavor is reserved, so work goes into the second."""
    some = [a_node("h", gpus=8, labels={"gpu": "h"}), a_node("l", gpus=8, labels={"gpu": "l"})]
    flavors = (FlavorFact("h", {"gpu": "h"}), FlavorFact("l", {"gpu": "l"}))
    pool = a_pool(a_window(node_selector={"gpu": "h"}), flavors=flavors)
    snapshot = a_snapshot(some, [an_allocation("a", a_role(gpus=1))], pool=pool)
    assert places(decided(snapshot, 1500.0)) == {"a": ["l"]}


def test_members_that_ask_for_different_limits_are_told_apart() -> None:
    """The shape is the same; only the shorter one has a place."""
    work = [an_allocation("long", max_runtime=2000.0), an_allocation("short", max_runtime=500.0, created=1.0)]
    made = decided(a_snapshot(nodes(1), work, pool=a_pool(a_window())), 0.0)
    assert (places(made), gates(made)) == ({"short": ["n0"]}, {"long": "NoFit"})


def test_the_recount_finds_work_that_would_run_into_a_window() -> None:
    """Lint refuses a plan that places such work there."""
    work = whole("a", max_runtime=2000.0)
    snapshot = a_snapshot(nodes(1), [work], pool=a_pool(a_window()))
    wrong = Plan(admits=(Admit(allocation=work.key, uid=work.uid, attempt=1, placements={0: "n0"}),))
    (violation,) = lint(snapshot, wrong)
    assert (violation.rule.value, violation.message) == (
        "RunsIntoWindow",
        "placed on n0, which is reserved for maintenance patch",
    )


def test_of_many_instants_neighbours_are_looked_at_as_one(monkeypatch: Any) -> None:
    """The start that is found is one at which the head fits, perhaps later than the first."""
    monkeypatch.setattr(timeline, "WINDOWS_SCAN_MAX", 3)
    queues = (QueueFact(name="default", ordering="Backfill"),)
    some = [running(an_allocation(f"r{n}", max_runtime=10.0 * (n + 1), started=0.0), {0: "n0"}) for n in range(8)]
    snapshot = a_snapshot(
        nodes(1), [*some, whole("head", max_runtime=50.0, created=-1.0)], queues=queues, pool=a_pool(a_window())
    )
    (kept,) = decided(snapshot, 0.0).kept
    assert kept.start is not None
    assert 80.0 <= kept.start <= 2000.0


def test_a_window_that_cannot_be_understood_is_told_and_left_out() -> None:
    """The message names the field; the rest of the pool works."""
    pool = a_pool(WindowFact(name="odd", invalid="timeZone: there is no time zone 'X'"))
    assert faults_of(pool) == ("spec.windows[odd].timeZone: there is no time zone 'X'",)
    assert places(decided(a_snapshot(nodes(1), [an_allocation("a")], pool=pool), 1500.0)) == {"a": ["n0"]}


def test_an_aged_head_keeps_no_node_that_it_may_not_use_now() -> None:
    """An aged head reserves its places at once. A node that a window closes to it is reserved only from the window's
    end. A young head reserves nothing."""
    pool = a_pool(a_window(start=0.0, node_names=("n0",)), aging=10.0)
    fillers = [running(whole(f"endless{number}"), {0: f"n{number}"}) for number in (0, 1)]

    def kept(created: float, *busy: AllocationFact) -> list[tuple[float | None, dict[int, str]]]:
        work = [*busy, whole("head", created=created, max_runtime=10.0)]
        made = decided(a_snapshot(nodes(2), work, pool=pool), 0.0)
        return [(each.start, each.placements) for each in made.kept]

    assert kept(-100.0, *fillers) == [(None, {0: "n1"})]
    assert kept(-100.0, fillers[1]) == [(1000.0, {0: "n0"})]
    assert kept(-5.0, *fillers) == kept(-5.0, fillers[1]) == []
