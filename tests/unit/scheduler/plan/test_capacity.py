"""Requests for nodes: for which blocked work, when a try has failed, and when a request is given back."""

from typing import Any

import msgspec
import pytest

from slipway.model.facts import (
    AllocationFact,
    AutoscalingFact,
    FlavorFact,
    NodeFact,
    PoolFact,
    QueueFact,
    Toleration,
    TopologyFact,
    WindowFact,
)
from slipway.model.lifecycle import Phase
from slipway.model.resources import GPU
from slipway.scheduler.plan.capacity.requests import (
    SETTLE_S,
    CapacityPlan,
    CapacityRequest,
    RequestState,
    backoff_s,
    plan_capacity,
)
from slipway.scheduler.plan.placement.policy import PACK, SPREAD, policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_node, a_role, a_snapshot, amounts, an_allocation, nodes

AFTER_S = 30.0
DEFAULT = (QueueFact(name="default"),)


class Pool:
    """A pool with an autoscaler, over time: each look plans, decides, and stores the state that the next decision
    needs."""

    def __init__(self, *node_facts: NodeFact, queues: Any = DEFAULT, **spec: Any) -> None:
        self.nodes = list(node_facts)
        self.queues = queues
        self.pool = PoolFact(name="default", autoscaling=AutoscalingFact(**spec))
        self.work: list[AllocationFact] = []
        self.requests: list[CapacityRequest] = []
        self.seen: Any = {}
        self.now = 1_000_000.0

    def snapshot(self) -> PoolSnapshot:
        found = a_snapshot(self.nodes, self.work, queues=self.queues, pool=self.pool)
        return msgspec.structs.replace(found, now=self.now)

    def look(self, after_s: float = 0.0, trouble: str = "") -> CapacityPlan:
        """Decide `after_s` later, without acting on it."""
        self.now += after_s
        snapshot = self.snapshot()
        decided = plan(snapshot, policy_of(self.pool), self.now)
        made = plan_capacity(snapshot, decided, self.requests, self.seen, trouble=trouble)
        self.seen = made.seen
        return made

    def act(self, after_s: float = 0.0) -> CapacityPlan:
        """Decide, and apply the decision to `requests`."""
        made = self.look(after_s)
        settled = {each.name: msgspec.structs.replace(each, is_settled=True) for each in made.settled}
        kept = [settled.get(each.name, each) for each in self.requests if each.name not in made.given_back]
        self.requests = kept + [
            CapacityRequest(
                name=f"{ask.uid}-{ask.shape}-{ask.number}",
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
        return made

    def told(self, name: str, **change: Any) -> None:
        """The autoscaler changes the request of allocation `name`."""
        self.requests = [
            msgspec.structs.replace(each, since=self.now, is_settled=False, **change)
            if each.uid == f"uid-{name}"
            else each
            for each in self.requests
        ]


def a_gang(name: str, ranks: int = 4, gpus: int = 8, **more: Any) -> AllocationFact:
    """A gang of `ranks` with `gpus` each."""
    return an_allocation(name, a_role(ranks, gpus=gpus), **more)


def asked(pool: Pool) -> Pool:
    """The pool after it has waited and asked for nodes."""
    pool.act()
    pool.act(AFTER_S)
    return pool


def test_a_gang_without_room_is_asked_for_once_it_has_waited() -> None:
    """Nodes are asked for after a wait, because work that ends soon may leave room; then once, for all ranks of the
    minimum."""
    pool = Pool(*nodes(1, gpus=8))
    pool.work = [a_gang("big")]
    assert pool.act().asks == ()
    assert pool.look(AFTER_S / 2).look_again == pool.now + AFTER_S / 2
    (ask,) = pool.act(AFTER_S / 2).asks
    assert (ask.allocation, ask.number, ask.ranks) == ("default/big", 1, 4)
    assert ask.pod_sets[0].requests == {"cpu": "1", GPU: "8"}
    assert pool.act(5.0).is_empty


def test_a_pool_without_nodes_is_asked_for() -> None:
    """Work that can never start on the nodes of the pool may start on nodes that an autoscaler adds."""
    pool = Pool()
    pool.work = [a_gang("first")]
    pool.act()
    assert [ask.allocation for ask in pool.act(AFTER_S).asks] == ["default/first"]


def test_nothing_is_asked_for_what_fits_or_waits_for_another_reason() -> None:
    """Nodes cure neither quota, nor a hold, nor the lack of a queue."""
    queues = (QueueFact(name="default"), QueueFact(name="small", limit=amounts(cpu=1)))
    pool = Pool(*nodes(2, cpu=8), queues=queues)
    pool.work = [
        a_gang("fits", ranks=2, gpus=0),
        a_gang("quota", ranks=40, gpus=0, queue="small"),
        a_gang("held", hold=True),
        a_gang("lost", queue="nowhere"),
    ]
    pool.act()
    made = pool.act(AFTER_S)
    assert made.is_empty
    assert not made.notes


def test_no_nodes_are_asked_for_a_topology_that_they_need_not_cure() -> None:
    """The pool has enough room, but not in one rack: no nodes are asked for, and the note states why."""
    pool = Pool(*(a_node(f"n{number}", gpus=8, labels={"rack": str(number)}) for number in range(4)))
    role = a_role(2, gpus=8, topology=TopologyFact(key="rack"))
    pool.work = [an_allocation("close", role)]
    pool.act()
    made = pool.act(AFTER_S)
    assert made.is_empty
    assert "in different domains of the topology" in made.notes["default/close"].message


@pytest.mark.parametrize(
    ("which", "is_asked"),
    [({}, False), ({"node_names": ("node-0",)}, True), ({"node_selector": {"rack": "r1"}}, True), ({"nodes": 1}, True)],
)
def test_nodes_that_come_in_a_window_of_all_nodes_would_help_nobody(which: dict[str, Any], is_asked: bool) -> None:
    """Maintenance of the whole pool keeps work off new nodes too; that of some nodes does not."""
    pool = Pool(*nodes(1, gpus=8))
    window = WindowFact(name="patch", start=pool.now - 10, duration=3600.0, lead_s=60.0, **which)
    pool.pool = msgspec.structs.replace(pool.pool, windows=(window,))
    pool.work = [a_gang("big")]
    pool.act()
    made = pool.act(AFTER_S)
    assert bool(made.asks) == is_asked
    if not is_asked:
        assert "window patch closes all nodes of the pool to it" in made.notes["default/big"].message


def test_the_limits_hold_over_all_requests_and_are_told() -> None:
    """Two gangs are asked for at once: the first of each queue before the second of any. The notes name the limit."""
    queues = (QueueFact(name="a"), QueueFact(name="b"))
    pool = Pool(*nodes(1, gpus=1), queues=queues, max_gangs=2)
    pool.work = [a_gang(f"{queue}{number}", queue=queue) for queue in "ab" for number in range(3)]
    pool.act()
    made = pool.act(AFTER_S)
    assert [ask.allocation for ask in made.asks] == ["default/a0", "default/b0"]
    assert "spec.autoscaling.maxGangs" in made.notes["default/a1"].message
    assert pool.act(60.0).is_empty


def test_what_is_larger_than_the_limit_of_ranks_is_never_asked_for() -> None:
    """The note of a gang states its ranks and the limit; nodes are asked for smaller gangs, up to the limit."""
    pool = Pool(*nodes(1, gpus=1), max_ranks=6)
    pool.work = [a_gang("huge", ranks=7), a_gang("one"), a_gang("two")]
    pool.act()
    made = pool.act(AFTER_S)
    assert [ask.allocation for ask in made.asks] == ["default/one"]
    assert "it has 7 ranks" in made.notes["default/huge"].message
    assert "4 more would exceed 6" in made.notes["default/two"].message


@pytest.mark.parametrize(
    "change",
    [{"desired": "Stopped"}, {"attempt": 2}, {"hold": True}, {"roles": (a_role(5, gpus=8),)}],
    ids=["stopped", "another attempt", "held", "changed"],
)
def test_a_request_is_given_back_when_its_work_is_another(change: dict[str, Any]) -> None:
    """The request is given back at once, except for a hold, which is a wait for something else."""
    pool = asked(Pool(*nodes(1, gpus=1)))
    pool.work = [a_gang("big")]
    asked(pool)
    (request,) = pool.requests
    pool.work = [msgspec.structs.replace(pool.work[0], **change)]
    pool.act()
    assert request.name in pool.act(AFTER_S).given_back or request not in pool.requests


def test_a_request_is_given_back_when_its_work_is_gone_or_starts() -> None:
    """A request is given back in the tick that admits its gang, or in which the gang is gone."""
    pool = Pool(*nodes(1, gpus=8))
    pool.work = [a_gang("big", ranks=2), a_gang("gone", ranks=3)]
    asked(pool)
    assert len(pool.requests) == 2
    pool.nodes, pool.work = nodes(2, gpus=8), pool.work[:1]
    assert len(pool.act().given_back) == 2


def test_all_is_given_back_when_the_pool_has_no_autoscaler_any_more() -> None:
    """A pool without an autoscaler gives all requests back, also those of work that still waits."""
    pool = Pool(*nodes(1, gpus=1))
    pool.work = [a_gang("big")]
    asked(pool)
    pool.pool = msgspec.structs.replace(pool.pool, autoscaling=None)
    assert pool.act().given_back
    assert pool.requests == []


def test_a_refusal_backs_off_and_after_the_last_try_nothing_more_is_asked() -> None:
    """Each backoff is longer than the one before; the note quotes the message of the autoscaler."""
    pool = Pool(*nodes(1, gpus=1), backoff_s=100.0, tries=2)
    pool.work = [a_gang("big")]
    asked(pool)
    pool.told("big", state=RequestState.FAILED, words="no quota for GPUs in eu-1")
    made = pool.act()
    assert [each.state for each in made.settled] == [RequestState.FAILED]
    assert "no quota for GPUs in eu-1; they are requested again at" in made.notes["default/big"].message
    assert pool.act(99.0).is_empty
    (again,) = pool.act(1.0).asks
    assert again.number == 2
    assert len(pool.act().given_back) == 1, "the first try"
    pool.told("big", state=RequestState.FAILED, words="still none")
    pool.act()
    made = pool.act(10_000.0)
    assert made.is_empty
    assert "all 2 tries failed" in made.notes["default/big"].message


def test_a_try_that_takes_too_long_has_failed() -> None:
    """A try times out by our own clock; its error ends with the last message of the autoscaler."""
    pool = Pool(*nodes(1, gpus=1), timeout_s=600.0)
    pool.work = [a_gang("big")]
    asked(pool)
    assert pool.act(599.0).is_empty
    pool.told("big", words="0/1 nodes are available")
    pool.now += 600.0
    (failed,) = pool.act().settled
    assert (failed.state, failed.words) == (
        RequestState.FAILED,
        "no nodes were added within 600 s: 0/1 nodes are available",
    )


def test_nodes_that_came_and_do_not_help_are_a_failed_try() -> None:
    """The gang has `SETTLE_S` to start on the new nodes; then they were of the wrong kind, and the try has failed."""
    pool = Pool(*nodes(1, gpus=1))
    pool.work = [a_gang("big")]
    asked(pool)
    pool.told("big", state=RequestState.PROVISIONED)
    assert [each.state for each in pool.act().settled] == [RequestState.PROVISIONED]
    assert pool.act(SETTLE_S - 1).is_empty
    assert "still had no room" in pool.act(1.0).settled[0].words


def test_what_starts_soon_by_itself_is_not_asked_for() -> None:
    """Running work ends at its run limit before nodes could arrive, and its room is reserved for the queue's head."""
    pool = Pool(*nodes(1, gpus=8), queues=(QueueFact(name="default", ordering="Backfill"),))
    ending = msgspec.structs.replace(
        a_gang("runs", ranks=1, max_runtime=100.0),
        phase=Phase.RUNNING,
        placements={0: "n0"},
        started=pool.now,
        deadlines={"maxRuntime": pool.now + 100.0},
    )
    pool.work = [ending, a_gang("next", ranks=1)]
    pool.act()
    made = pool.act(AFTER_S)
    assert made.is_empty
    assert "running work leaves room for it at" in made.notes["default/next"].message


def test_trouble_is_told_and_nothing_is_asked() -> None:
    """While the scheduler cannot ask for nodes, the note states the trouble."""
    pool = Pool(*nodes(1, gpus=1))
    pool.work = [a_gang("big")]
    pool.look()
    made = pool.look(AFTER_S, trouble="may not")
    assert made.is_empty
    assert made.notes["default/big"].message.endswith("no nodes are requested: may not")


def test_pods_that_are_asked_for_are_confined_as_the_ranks_are() -> None:
    """The pods have the selector and the tolerations of the pool, the labels of the flavor, and the node affinity. Our
    own labels are renamed, because a pod with them would be taken for a rank; labels of namespaces stay. A part of a
    GPU asks for a whole one."""
    affinity: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"a": []}]}},
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "host",
                    "labelSelector": {"matchExpressions": [{"key": "slipway.dev/role", "operator": "Exists"}]},
                    "namespaceSelector": {"matchLabels": {"slipway.dev/workspace": "true"}},
                    "matchLabelKeys": ["slipway.dev/role", "team"],
                    "mismatchLabelKeys": ["slipway.dev/allocation-uid"],
                }
            ]
        },
    }
    pool = Pool(*nodes(1, cpu=1))
    pool.pool = msgspec.structs.replace(
        pool.pool,
        node_selector={"pool": "gpu"},
        tolerations=(Toleration(key="spot", operator="Exists"),),
        flavors=(FlavorFact("a100", {"gpu": "a100"}),),
    )
    role = a_role(
        1, resources={"slipway.dev/gpu-milli": 500}, affinity=affinity, labels={"slipway.dev/role": "w", "team": "x"}
    )
    pool.work = [an_allocation("one", role, flavors=("a100",))]
    pool.act()
    (ask,) = pool.act(AFTER_S).asks
    (pods,) = ask.pod_sets
    assert pods.node_selector == {"pool": "gpu", "gpu": "a100"}
    assert pods.tolerations == ({"key": "spot", "operator": "Exists"},)
    assert pods.requests == {"cpu": "1", GPU: "1"}
    assert pods.limits == {GPU: "1"}
    assert pods.labels == {"placeholder.slipway.dev/role": "w", "team": "x"}
    assert "podAffinity" not in pods.affinity
    (term,) = pods.affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchExpressions"][0]["key"] == "placeholder.slipway.dev/role"
    assert term["namespaceSelector"] == {"matchLabels": {"slipway.dev/workspace": "true"}}
    assert term["matchLabelKeys"] == ["placeholder.slipway.dev/role", "team"]
    assert term["mismatchLabelKeys"] == ["placeholder.slipway.dev/allocation-uid"]


def test_the_backoff_doubles_up_to_a_bound() -> None:
    """The backoff doubles with each try up to a bound, so that a pool that cannot grow is asked seldom."""
    spec = AutoscalingFact(backoff_s=300.0)
    assert [backoff_s(spec, number) for number in (1, 2, 3, 90)] == [300.0, 600.0, 1200.0, 21600.0]


def test_a_pool_with_an_autoscaler_packs_by_default() -> None:
    """Packed work leaves nodes empty, so that the autoscaler can remove them; scores that the pool names stay."""
    pool = PoolFact(name="default")
    grows = msgspec.structs.replace(pool, autoscaling=AutoscalingFact())
    assert (policy_of(pool).spread, policy_of(grows).spread) == (SPREAD, PACK)
    named = msgspec.structs.replace(grows, scores={"LeastAllocated": 1})
    assert policy_of(named).spread == {"LeastAllocated": 1}
