"""Why work waits, which work is ahead of it, and the queues, pools, nodes and workspaces around it."""

from typing import Any

import msgspec
import pytest

from slipway.api.allocations.explain import explain
from slipway.api.cluster.simulation import past_work
from slipway.api.queues.queue_view import in_order, waiting_of
from slipway.api.schemas import ExplainView
from slipway.crd.meta import Condition
from slipway.crd.transitions import with_status
from slipway.crd.v1alpha1 import Allocation, Job
from slipway.kube.resources import ALLOCATIONS, JOBS, NODES, QUEUES, RESOURCE_POOLS
from slipway.model.lifecycle import Event
from slipway.model.reasons import NEVER, Gate, Reason, Result
from slipway.model.times import format_time, parse_time
from tests.support.api_world import ApiWorld


def pending(name: str, *, second: int = 0, namespace: str = "default", **spec: object) -> Allocation:
    """A waiting allocation, created at that second."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{name}-uid",
        "creationTimestamp": f"2026-01-02T03:04:{second:02d}Z",
    }
    return msgspec.convert({"metadata": metadata, "spec": {"kind": "command", **spec}}, Allocation)


def a_job(name: str, **spec: object) -> Job:
    return msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "spec": spec}, Job)


def names(allocations: list[Allocation]) -> list[str]:
    return [each.metadata.name for each in allocations]


def test_priority_goes_before_position_before_age() -> None:
    """The order is the scheduler's. A job's priority counts for its own work, its position for work without one."""
    jobs = {("default", "j"): a_job("j", priority=90), ("default", "k"): a_job("k", queuePosition="0")}
    waiting = [
        pending("old", second=1),
        pending("older", second=0),
        pending("moved", second=9, queuePosition="099999999999999"),
        pending("urgent", second=9, priority=60),
        pending("of-job", second=9, job="j"),
        pending("of-first-job", second=9, job="k"),
        pending("stopped", desired="Stopped"),
    ]
    assert names(in_order(waiting, jobs)) == ["of-job", "urgent", "of-first-job", "moved", "older", "old"]


def test_positions_count_within_a_queue() -> None:
    """The first in a queue has position 1; `ahead` is the number of those before."""
    found = waiting_of([pending("a"), pending("b", second=1), pending("c", second=2, queue="other")], {})
    assert [(each.name, each.queue, each.position, each.ahead) for each in found] == [
        ("a", "default", 1, 0),
        ("b", "default", 2, 1),
        ("c", "other", 1, 0),
    ]


GATES = [gate for gate in Gate if gate is not Gate.NOT_YET_CONSIDERED]
MAY_SAY_NEVER = (Gate.NO_FIT, Gate.TOPOLOGY_TOO_SMALL, Gate.WAITING_FOR_EXTENDER, Gate.RESOURCE_QUOTA)
"""Gates of both kinds: work that waits, and work that no wait helps."""


def explained(gate: Gate, message: str) -> ExplainView:
    """The explanation of an allocation with this gate and message of the scheduler."""
    allocation = pending("a")
    condition = {"type": "Admitted", "status": "False", "reason": gate.value, "message": message}
    status = msgspec.convert({"conditions": [condition]}, type(allocation.status))
    return explain(msgspec.structs.replace(allocation, status=status), [allocation], {})


@pytest.mark.parametrize("gate", GATES)
def test_every_gate_says_what_would_help(gate: Gate) -> None:
    """Every code has a next step."""
    view = explained(gate, "so")
    assert (view.code, view.message) == (gate.value, "so")
    assert len(view.change) == 1
    assert view.change[0].detail


@pytest.mark.parametrize("gate", MAY_SAY_NEVER)
def test_work_that_can_never_start_is_not_told_to_wait(gate: Gate) -> None:
    """`can never start` never stands beside `wait for other allocations to end`."""
    (help_,) = explained(gate, f"{NEVER} with the pool's current nodes: it is too large").change
    assert help_.kind != "wait"
    assert "wait" not in help_.detail.replace("waiting does not help", "")


def test_what_does_not_fit_now_may_wait() -> None:
    """The gate is the same, but here the end of other work helps."""
    (help_,) = explained(Gate.NO_FIT, "0 of 2 nodes fit: 2 lack 1 nvidia.com/gpu free").change
    assert help_.detail.startswith("wait for other allocations to end")


@pytest.mark.parametrize("message", ["pool p has no queue q", "nothing starts in queue q: its limit is below 0"])
def test_a_queue_that_takes_no_work_is_created_or_corrected(message: str) -> None:
    """A queue that exists and is set aside need not be created again."""
    (help_,) = explained(Gate.UNKNOWN_QUEUE, message).change
    assert help_.detail.startswith("create that Queue or correct it as the message says")


async def test_the_explanation_is_the_schedulers_own(world: ApiWorld) -> None:
    """The explanation has the code and the message of the condition, and the place in the queue."""
    first = await world.launch(priority=60)
    second = await world.launch()
    await world.explain(second["name"], "NoFit", "0 of 2 nodes fit: 2 nodes lack nvidia.com/gpu")
    view = (await world.get(f"/allocations/{second['id']}/explain")).json()
    assert (view["code"], view["message"]) == ("NoFit", "0 of 2 nodes fit: 2 nodes lack nvidia.com/gpu")
    assert (view["position"], view["ahead"], view["jobsAhead"]) == (2, 1, [first["id"]])
    assert view["phase"] == "Pending"
    new = (await world.get(f"/allocations/{first['id']}/explain")).json()
    assert (new["code"], new["position"]) == ("NotYetConsidered", 1)


async def test_what_does_not_wait_is_explained_too(world: ApiWorld) -> None:
    """Work that runs, stops or has ended gets one sentence, and no place in a queue."""
    answer = await world.launch(ranks=[{"count": 2}])
    await world.run(answer["name"])
    path = f"/allocations/{answer['id']}/explain"
    running = (await world.get(path)).json()
    assert (running["code"], running["message"], running["position"]) == ("", "running", 0)
    assert [rank["node"] for rank in running["ranks"]] == ["n1", "n1"]
    await world.step(
        answer["name"], Event.TERMINATED, reason=Reason.RANK_FAILED, result=Result.FAILED, message="exit 3"
    )
    ended = (await world.get(path)).json()
    assert ended["message"] == "ended: Failed (RankFailed): exit 3"
    assert (ended["result"], ended["reason"]) == ("Failed", "RankFailed")


async def test_a_queue_shows_what_it_owns_and_uses_of_each_flavor(world: ApiWorld) -> None:
    """Flavors have the order of the pool; one that the queue does not name has no nominal; a node is of the first that
    fits."""
    flavors = [{"name": "big", "nodeLabels": {"size": "big"}}, {"name": "any", "nodeLabels": {"kind": "gpu"}}]
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"flavors": flavors}})
    await world.kube.patch(NODES, "n1", {"metadata": {"labels": {"size": "big", "kind": "gpu"}}})
    own = [{"name": "any", "nominal": {"nvidia.com/gpu": 3}}]
    await world.kube.patch(QUEUES, "default", {"spec": {"flavors": own}})
    answer = await world.launch(ranks=[{"count": 2, "resources": {"nvidia.com/gpu": 1}}])
    await world.run(answer["name"])
    queue = (await world.get("/queues/default")).json()
    assert queue["flavors"] == [
        {"name": "big", "nominal": None, "gpusInUse": 2.0},
        {"name": "any", "nominal": 3.0, "gpusInUse": 0.0},
    ]
    (node,) = [each for each in (await world.get("/nodes")).json()["items"] if each["name"] == "n1"]
    assert node["gpuType"] == "big"


async def test_a_queue_shows_who_waits_in_order(world: ApiWorld) -> None:
    """The list of queues has counts; a single queue has the order."""
    await world.kube.create(JOBS, {"metadata": {"name": "j", "namespace": "default"}, "spec": {"priority": 99}})
    one = await world.launch(ranks=[{"count": 2, "resources": {"nvidia.com/gpu": 1}}])
    two = await world.launch(job="j")
    three = await world.launch()
    await world.run(three["name"])
    (listed,) = (await world.get("/queues")).json()["items"]
    assert (listed["name"], listed["pending"], listed["live"], listed["waiting"]) == ("default", 2, 1, [])
    queue = (await world.get("/queues/default")).json()
    assert [(each["id"], each["position"]) for each in queue["waiting"]] == [(two["id"], 1), (one["id"], 2)]
    assert queue["waiting"][1]["slots"] == 2
    assert (await world.get("/queues/none")).status_code == 404
    (job,) = (await world.get("/jobs")).json()["items"]
    assert (job["name"], job["pending"], job["live"]) == ("j", 1, 0)


async def test_pools_and_nodes(world: ApiWorld) -> None:
    """Pools and nodes show what they have, how much of it is requested, and by which ranks."""
    answer = await world.launch(ranks=[{"count": 2, "resources": {"cpu": 2}}])
    await world.run(answer["name"], node="n2")
    (pool,) = (await world.get("/pools")).json()["items"]
    assert (pool["nodes"], pool["allocatable"]["cpu"], pool["live"], pool["pending"]) == (2, "16", 1, 0)
    one, two = (await world.get("/nodes")).json()["items"]
    assert (one["ready"], one["schedulable"], one["ranks"], one["used"]) == (True, True, [], {})
    assert two["used"]["cpu"] == "4"
    assert [(rank["id"], rank["rank"]) for rank in two["ranks"]] == [(answer["id"], 0), (answer["id"], 1)]


async def test_me_and_workspaces(world: ApiWorld) -> None:
    """The answers name the caller, and the workspaces where it may launch."""
    me = (await world.get("/me", **{"x-slipway-user": "ada"})).json()
    assert me == {"user": "ada", "auth": "none", "workspaces": ["default"]}
    assert [item["name"] for item in (await world.get("/workspaces")).json()["items"]] == ["default"]


@pytest.mark.parametrize("query", ["", "?dryRun=true"])
async def test_a_queue_that_the_pool_does_not_have_is_refused(world: ApiWorld, query: str) -> None:
    """The error names the queues of the pool; a queue of another pool is not one of them."""
    await world.make_queue("q2", pool="other")
    for name in ("q1", "q2"):
        asked = await world.http.post(f"/api/v1/allocations{query}", json={"kind": "shell", "queue": name})
        assert asked.status_code == 422
        [error] = asked.json()["errors"]
        assert error["pointer"] == "/queue"
        assert error["detail"] == f"pool default has no queue {name}; there are: default"
    assert await world.names() == []


async def test_a_queue_that_ends_the_work_sooner_is_a_warning(world: ApiWorld) -> None:
    """The limit may be that of the queue or of one above it; work that asks for less gets no warning."""
    await world.kube.create(QUEUES, {"metadata": {"name": "lab"}, "spec": {"pool": "default", "maxRuntime": "1h"}})
    await world.kube.create(QUEUES, {"metadata": {"name": "team"}, "spec": {"pool": "default", "parent": "lab"}})
    asks: list[dict[str, Any]] = [{}, {"maxRuntime": "2h"}]
    said = [(await world.launch(queue="team", **asked))["warnings"] for asked in asks]
    assert said == [
        ["queue lab ends its allocations after 1h, although the launch sets no limit"],
        ["queue lab ends its allocations after 1h, not after the 2h that the launch sets"],
    ]
    assert (await world.launch(queue="team", maxRuntime="30m"))["warnings"] == []


@pytest.mark.parametrize(
    ("reason", "word", "said", "help_"),
    [
        (
            "QuotaExceeded",
            "Unknown",
            "fails and is retried: exceeded quota: q",
            "ResourceQuota that the message names",
        ),
        ("QuotaExceeded", "True", "is stuck: exceeded quota: q", "slipway dead replay"),
        ("Unavailable", "Unknown", "fails and is retried", "wait: Slipway tries again automatically"),
        ("Denied", "True", "is stuck", "given to Slipway's account"),
    ],
)
async def test_a_launch_that_fails_is_explained(world: ApiWorld, reason: str, word: str, said: str, help_: str) -> None:
    """The work has its nodes, but the API server refuses its pods: the explanation has the server's words, and a next
    step."""
    await world.launch(name="llm")
    await world.step("llm", Event.ASSIGNED)
    found = await world.stored("llm")
    condition = Condition(
        type="Stuck", status=word, reason=reason, message="exceeded quota: q", observed_generation=found.status.attempt
    )
    status = msgspec.structs.replace(found.status, conditions=[condition])
    await world.kube.replace_status(ALLOCATIONS, with_status(found, status))
    why = (await world.get("/allocations/llm/explain")).json()
    assert why["code"] == reason
    assert said in why["message"]
    assert help_ in why["change"][0]["detail"]


async def test_the_planner_is_asked_what_would_help_and_when_it_starts(world: ApiWorld) -> None:
    """With `foresee` the answer has the smallest change, and a start that follows from the run limits of the work
    ahead."""
    ranks = [{"count": 2, "resources": {"cpu": "8"}}]
    await world.launch(name="first", ranks=ranks, maxRuntime="1h")
    await world.run("first")
    waits = await world.launch(name="waits", ranks=ranks)
    plain = (await world.get(f"/allocations/{waits['id']}/explain")).json()
    assert plain["foreseen"] is None
    answer = (await world.get(f"/allocations/{waits['id']}/explain?foresee=true")).json()
    found = answer["foreseen"]
    assert (found["code"], bool(found["helps"]), len(found["helps"])) == ("NoFit", True, len(found["change"]))
    assert found["estimatedStart"]["latest"] > found["estimatedStart"]["earliest"]
    running = (await world.get("/allocations?phase=Running")).json()["items"][0]
    assert (await world.get(f"/allocations/{running['id']}/explain?foresee=true")).json()["foreseen"] is None


async def ended(world: ApiWorld, name: str, ran_s: float) -> None:
    """Launch work that ran for so many seconds and has just ended."""
    await world.launch(name=name, ranks=[{"count": 1, "resources": {"cpu": "1"}}])
    await world.run(name)
    now = world.clock.now()
    times = {"started_at": format_time(now - ran_s), "ended_at": format_time(now)}
    await world.step(name, Event.TERMINATED, result=Result.SUCCEEDED, **times)


async def test_the_likely_start_follows_from_how_long_work_ran(world: ApiWorld) -> None:
    """With too little ended work the start is stated to be unknown. With enough, work that waits behind work without a
    run limit has likely bounds, though nothing is certain; they are not before now."""
    ranks = [{"count": 2, "resources": {"cpu": "8"}}]
    await world.launch(name="first", ranks=ranks)
    await world.run("first")
    waits = await world.launch(name="waits", ranks=ranks)
    asked_at = world.clock.now()
    for number in range(9):
        await ended(world, f"old-{number}", 600.0 * (number + 1))
    start = (await world.get(f"/allocations/{waits['id']}/explain?foresee=true")).json()["foreseen"]["estimatedStart"]
    assert "fewer than 10 allocations" in start["likelyUnknown"]
    assert not start.get("likely")
    await ended(world, "old-9", 6_000.0)
    start = (await world.get(f"/allocations/{waits['id']}/explain?foresee=true")).json()["foreseen"]["estimatedStart"]
    assert not start.get("likelyUnknown")
    assert not start.get("latest")
    first, last = (parse_time(start["likely"][name]) for name in ("earliest", "latest"))
    assert asked_at - 1 <= first < last


async def test_the_past_of_a_pool_is_that_of_its_own_work(world: ApiWorld) -> None:
    """The past has each run with its queue, user and run limit. Work that ended before it started is an arrival, but no
    run."""
    await ended(world, "old", 60.0)
    await world.launch(name="never")
    await world.step("never", Event.TERMINATED, result=Result.CANCELED)
    past = await past_work(world.parts.seen, "default", world.clock.now())
    assert [(run["queue"], run["ran_s"], run["limit_s"]) for run in past.runs] == [("default", 60.0, None)]
    assert [each.metadata.name for each in past.ended] == ["old"]
    assert past.ended[0].spec.ranks, "whole"
    assert len(past.arrivals) == 2
    assert (await past_work(world.parts.seen, "other", world.clock.now())).arrivals == []
