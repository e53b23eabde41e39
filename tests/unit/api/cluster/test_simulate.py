"""`POST /api/v1/simulate`: what a change would alter. Each answer comes from a real process."""

import asyncio
from typing import Any

import msgspec
import pytest

from slipway.api.cluster.simulation import Simulator
from slipway.errors import PermanentError, ThrottledError
from slipway.kube.resources import (
    ALLOCATIONS,
    LIMIT_RANGES,
    NODES,
    PERSISTENT_VOLUMES,
    QUEUES,
    RESOURCE_QUOTAS,
    VOLUME_CLAIMS,
)
from tests.support.api_world import ApiWorld

Json = dict[str, Any]


async def asked(world: ApiWorld, **body: Any) -> Json:
    """The answer to a question that must be accepted."""
    answer = await world.post("/simulate", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def refused(world: ApiWorld, **body: Any) -> Json:
    """The first error of a question that must be refused."""
    answer = await world.post("/simulate", body)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    return problem["errors"][0] if problem.get("errors") else {"pointer": "", "detail": problem["detail"]}


def ranks(count: int = 1, **resources: Any) -> list[Json]:
    return [{"count": count, "resources": resources}]


async def test_a_simulation_of_the_current_cluster(world: ApiWorld) -> None:
    """Without changes nothing differs; the summary says what will happen."""
    await world.launch(name="small")
    await world.launch(name="large", ranks=ranks(cpu="64"))
    answer = await asked(world)
    assert (answer["differences"], answer["same"], answer["before"]) == ([], 2, answer["after"])
    assert (answer["before"]["startedAtOnce"], answer["before"]["pending"]) == (1, 1)


async def test_another_node(world: ApiWorld) -> None:
    """Work that waits for room starts on the added node; the answer has its explanation of before, too."""
    launched = await world.launch(name="large", ranks=ranks(cpu="64"))
    assert (await asked(world, allocations=[{"id": launched["id"], "hold": False}]))["differences"] == []
    answer = await asked(world, addNodes=[{"name": "big", "cpu": 96, "memory": "256Gi"}])
    [difference] = answer["differences"]
    assert difference["allocation"] == "default/large"
    before, after = difference["before"], difference["after"]
    assert (before["id"], before["phase"], before["explain"]["code"]) == (launched["id"], "Pending", "NoFit")
    assert (after["phase"], after["start"], after["placements"][0]["node"]) == ("Running", 0.0, "big")


async def test_pods_count_as_a_limit_range_makes_them(world: ApiWorld) -> None:
    """A LimitRange gives a container without cpu more than any node has: the container does not start."""
    container = {"name": "main", "image": "i:1", "command": ["run"], "resources": {"requests": {"memory": "64Mi"}}}
    await world.launch(name="small", template={"spec": {"containers": [container]}})
    assert (await asked(world))["before"]["startedAtOnce"] == 1
    limits = [{"type": "Container", "defaultRequest": {"cpu": "640"}}]
    await world.kube.create(
        LIMIT_RANGES, {"metadata": {"name": "bounds"}, "spec": {"limits": limits}}, namespace="default"
    )
    assert (await asked(world))["before"]["startedAtOnce"] == 0


async def test_removing_nodes(world: ApiWorld) -> None:
    """Work on a removed node waits again and starts elsewhere; a cordon moves nothing."""
    await world.launch(name="runs", ranks=ranks(cpu="6"))
    running = await world.run("runs")
    assert running.status.admission is not None
    node = running.status.admission.placements[0].node
    other = "n2" if node == "n1" else "n1"
    [moved] = (await asked(world, removeNodes=[node]))["differences"]
    assert moved["before"]["placements"][0]["node"] == node
    assert moved["after"]["placements"][0]["node"] == other
    assert (await asked(world, cordonNodes=[node]))["differences"] == []
    await world.launch(name="next", ranks=ranks(cpu="6"))
    [waits] = (await asked(world, cordonNodes=[other]))["differences"]
    assert (waits["before"]["phase"], waits["after"]["phase"]) == ("Running", "Pending")


async def test_a_volume_is_where_it_is(world: ApiWorld) -> None:
    """Work that mounts it starts on the node that reaches it; work waits for a claim that does not exist."""
    where = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchFields": [where]}]}}
    await world.kube.create(PERSISTENT_VOLUMES, {"metadata": {"name": "disk"}, "spec": {"nodeAffinity": affinity}})
    claim: Json = {"metadata": {"name": "data"}, "spec": {"volumeName": "disk"}}
    await world.kube.create(VOLUME_CLAIMS, claim, namespace="default")
    world.core.settle()
    for name in ("first", "second"):
        await world.launch(name=name, volumes={"/data": "data"}, ranks=ranks(cpu="8"))
    lost = await world.launch(name="lost", volumes={"/data": "gone"})
    [first] = (await asked(world, cordonNodes=["n2"]))["differences"]
    assert first["before"]["placements"][0]["node"] == "n2"
    assert "cannot reach the volume of claim data (only node n2 can)" in first["after"]["explain"]["message"]
    told = (await world.get(f"/allocations/{lost['id']}/explain?foresee=true")).json()
    assert told["foreseen"]["code"] == "WaitingForVolume"
    assert told["foreseen"]["message"].startswith("volume claim gone does not exist in namespace default")


async def test_another_priority_and_another_order(world: ApiWorld) -> None:
    """Two allocations that exclude each other change places; held work stays pending; removed work makes room."""
    for name, priority in (("first", 60), ("second", 40)):
        await world.launch(name=name, priority=priority, ranks=ranks(2, cpu="8"))
    answer = await asked(world, allocations=[{"allocation": "second", "priority": 70}])
    phases = {each["allocation"]: each["after"]["phase"] for each in answer["differences"]}
    assert phases == {"default/first": "Pending", "default/second": "Running"}
    for change in ({"hold": True}, {"remove": True}):
        answer = await asked(world, allocations=[{"allocation": "default/first", **change}])
        after = {each["allocation"]: each["after"] for each in answer["differences"]}
        assert after["default/second"]["phase"] == "Running"
        assert (after["default/first"] or {"phase": "gone"})["phase"] in ("Pending", "gone")


async def test_start_times_follow_from_run_limits(world: ApiWorld) -> None:
    """Work that waits for limited work starts when that must have ended; a shorter limit makes it start earlier."""
    await world.launch(name="limited", priority=60, ranks=ranks(2, cpu="8"), maxRuntime="1h")
    await world.launch(name="waits", priority=40, ranks=ranks(2, cpu="8"))
    answer = await asked(world, allocations=[{"allocation": "limited", "maxRuntime": "30m"}])
    [of_limited, of_waits] = answer["differences"]
    assert (of_limited["before"]["end"], of_limited["after"]["end"]) == (3600.0, 1800.0)
    assert (of_waits["before"]["start"], of_waits["after"]["start"]) == (3600.0, 1800.0)


async def test_a_resource_quota_is_kept(world: ApiWorld) -> None:
    """Work above the quota does not start; work that fits only after other work starts when that has ended."""
    hard = {"requests.cpu": "4"}
    await world.kube.create(
        RESOURCE_QUOTAS, {"metadata": {"name": "team"}, "spec": {"hard": hard}}, namespace="default"
    )
    await world.launch(name="first", priority=60, ranks=ranks(cpu="3"), maxRuntime="1h")
    await world.launch(name="second", priority=40, ranks=ranks(cpu="2"))
    await world.launch(name="never", ranks=ranks(cpu="5"))
    [second] = (await asked(world, allocations=[{"allocation": "first", "remove": True}]))["differences"][1:]
    assert (second["before"]["start"], second["after"]["start"]) == (3600.0, 0.0)
    assert (await asked(world))["before"]["pending"] == 1


async def test_another_quota(world: ApiWorld) -> None:
    """A limit of a queue keeps work out; null removes a limit; only fields that are named change."""
    await world.launch(name="a", ranks=ranks(cpu="4"))
    [kept_out] = (await asked(world, queues=[{"name": "default", "limit": {"cpu": 2}}]))["differences"]
    assert (kept_out["before"]["phase"], kept_out["after"]["phase"]) == ("Running", "Pending")
    stored = await world.kube.get(QUEUES, "default")
    limited = msgspec.structs.replace(stored.spec, limit={"cpu": 2})
    await world.kube.replace(QUEUES, msgspec.structs.replace(stored, spec=limited))
    [let_in] = (await asked(world, queues=[{"name": "default", "limit": None}]))["differences"]
    assert (let_in["before"]["phase"], let_in["after"]["phase"]) == ("Pending", "Running")
    assert (await asked(world, queues=[{"name": "default", "weight": 2}]))["differences"] == []


async def test_another_policy(world: ApiWorld) -> None:
    """The change is from spread to packed work."""
    for name in ("a", "b"):
        await world.launch(name=name, ranks=ranks(cpu="2"))
    [moved] = (await asked(world, policy={"scores": {"MostAllocated": 1}}))["differences"]
    nodes = [moved[side]["placements"][0]["node"] for side in ("before", "after")]
    assert nodes == ["n2", "n1"]


async def test_hypothetical_work(world: ApiWorld) -> None:
    """Supposed work is written as in a scenario file, and has no id; other work may have to wait for it."""
    await world.launch(name="later", ranks=ranks(2, cpu="8"))
    ask = {"name": "urgent", "priority": 90, "duration": 60, "ranks": [{"count": 2, "cpu": 8}]}
    answer = await asked(world, addAllocations=[ask])
    of = {each["allocation"]: each for each in answer["differences"]}
    assert of["default/urgent"]["before"] is None
    assert (of["default/urgent"]["after"]["id"], of["default/urgent"]["after"]["end"]) == ("supposed", 60.0)
    assert (of["default/later"]["before"]["start"], of["default/later"]["after"]["start"]) == (0.0, 60.0)


async def test_hypothetical_work_is_in_the_workspace_of_the_question(world: ApiWorld) -> None:
    """It starts there, beside work of the same name in another workspace, which stays in the answer."""
    await world.post("/workspaces", {"name": "vision"})
    await world.launch(name="same")
    answer = await asked(world, addAllocations=[{"name": "same", "ranks": [{"cpu": 1}]}], workspace="vision")
    of = {each["allocation"]: each for each in answer["differences"]}
    assert list(of) == ["vision/same"]
    assert of["vision/same"]["after"]["phase"] == "Running"
    assert (answer["same"], answer["after"]["started"]) == (1, 2)


BAD: list[tuple[Json, str]] = [
    ({"addNode": []}, "/addNode"),
    ({"pool": "nope"}, "/pool"),
    ({"addNodes": [{"name": "x", "cpus": 1}]}, "/addNodes/0/cpus"),
    ({"addNodes": [{"name": "x", "cpu": "much"}]}, "/addNodes/0/cpu"),
    ({"addNodes": [{"name": "n1", "cpu": 1}]}, "/addNodes"),
    ({"removeNodes": ["n1", "n9"]}, "/removeNodes/1"),
    ({"cordonNodes": ["n9"]}, "/cordonNodes/0"),
    ({"allocations": [{"allocation": "nobody"}]}, "/allocations/0/allocation"),
    ({"allocations": [{"priority": 1}]}, "/allocations/0/allocation"),
    ({"allocations": [{"allocation": "a", "prio": 1}]}, "/allocations/0/prio"),
    ({"allocations": [{"allocation": "a", "maxRuntime": "soon"}]}, "/allocations/0/maxRuntime"),
    ({"addAllocations": [{"name": "x", "ranks": []}]}, "/addAllocations/0/ranks"),
    ({"addAllocations": [{"name": "x", "job": "j", "ranks": [{"cpu": 1}]}]}, "/addAllocations/0/job"),
    ({"addAllocations": [{"name": "x", "ranks": [{"cpu": 1}]}], "workspace": "no"}, "/workspace"),
    ({"addAllocations": [{"name": "a", "ranks": [{"cpu": 1}]}]}, "/addAllocations/0/name"),
    ({"queues": [{"limit": {"cpu": 1}}]}, "/queues/0/name"),
    ({"queues": [{"name": "default", "limit": {"cpu": "x"}}]}, "/queues/0/limit/cpu"),
    ({"queues": [{"name": "q", "parent": "nope"}]}, "/queues/0/parent"),
    ({"policy": {"scores": {"Nope": 1}}}, "/policy/scores/Nope"),
    ({"policy": {"aging": "soon"}}, "/policy/aging"),
    ({"until": -1}, "/until"),
    ({"until": 1e12}, "/until"),
    ({"scenario": {"nodes": [{"name": "n", "cpus": 1}]}}, "/scenario/nodes/0/cpus"),
    ({"scenario": {"nodes": []}, "until": 5}, "/until"),
]


@pytest.mark.parametrize(("body", "where"), BAD)
async def test_bad_questions(world: ApiWorld, body: Json, where: str) -> None:
    """Each bad question is refused with the place of the error."""
    await world.launch(name="a")
    assert (await refused(world, **body))["pointer"] == where


async def test_a_scenario(world: ApiWorld) -> None:
    """The whole answer of `slipway simulate -o json`, whatever the cluster is."""
    scenario = {
        "nodes": [{"name": "n", "cpu": 4, "memory": "8Gi"}],
        "allocations": [{"name": name, "duration": 10, "ranks": [{"cpu": 3}]} for name in ("a", "b")],
    }
    answer = await asked(world, scenario=scenario)
    assert (answer["allocations"]["b"]["start"], answer["metrics"]["makespan"]) == (10.0, 20.0)


async def test_what_is_there_stays_as_it_is(world: ApiWorld) -> None:
    """A simulation writes nothing."""
    await world.launch(name="a")
    before = [each.metadata for each in (await world.kube.list(ALLOCATIONS)).items]
    await asked(world, addNodes=[{"name": "x", "cpu": 1}], allocations=[{"allocation": "a", "remove": True}])
    assert [each.metadata for each in (await world.kube.list(ALLOCATIONS)).items] == before
    assert {each.metadata.name for each in (await world.kube.list(NODES)).items} == {"n1", "n2"}


async def test_only_so_many_at_a_time(world: ApiWorld) -> None:
    """Further questions get 429 with Retry-After; when one is done, the next may run."""
    answers = await asyncio.gather(*(world.post("/simulate", {}) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)
    assert (await world.post("/simulate", {})).status_code == 200


async def test_one_user_leaves_a_place_for_others(world: ApiWorld) -> None:
    """A user who asks for all places gets all but one; the refusal names the user."""
    most = Simulator(world.kube, world.clock, world.parts.seen.live, most=2, timeout_s=60.0, memory_bytes=0)
    question: Json = {"scenario": {"nodes": []}}
    first = asyncio.ensure_future(most.ask(question, user="bob"))
    await asyncio.sleep(0)
    with pytest.raises(ThrottledError, match="bob has 1 of 2 simulations in progress"):
        await most.ask(question, user="bob")
    assert (await most.ask(question, user="alice"))["ticks"] == 0
    await first
    assert (await most.ask(question, user="bob"))["ticks"] == 0


async def test_what_needs_too_much_memory_is_refused(world: ApiWorld) -> None:
    """A simulation that needs too much memory ends its own process, and nothing else."""
    small = Simulator(world.kube, world.clock, world.parts.seen.live, most=1, timeout_s=60.0, memory_bytes=96 << 20)
    with pytest.raises(PermanentError, match="more memory"):
        await small.ask({"scenario": {"nodes": [{"name": "n", "count": 90_000, "cpu": 1, "labels": {"a": "b"}}]}})
    assert (await small.ask({"scenario": {"nodes": []}}))["ticks"] == 0


async def test_what_takes_too_long_is_ended(world: ApiWorld) -> None:
    """The error says so, and the process is gone."""
    hasty = Simulator(world.kube, world.clock, world.parts.seen.live, most=1, timeout_s=0.05, memory_bytes=0)
    with pytest.raises(PermanentError, match="not done within"):
        await hasty.ask({"scenario": {"nodes": []}})
    patient = Simulator(world.kube, world.clock, world.parts.seen.live, most=1, timeout_s=20.0, memory_bytes=0)
    assert (await patient.ask({"scenario": {"nodes": []}}))["ticks"] == 0
