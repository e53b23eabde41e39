"""A queue, a job or a pool that does not exist is refused wherever a request names one, with the names there are."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway.api.app import ENDPOINTS
from slipway.api.http.endpoint import Endpoint
from slipway.kube.resources import ALLOCATIONS, JOBS, QUEUES, RESOURCE_POOLS
from slipway.model.lifecycle import Event
from tests.support.access import teams_world
from tests.support.api_world import COMMAND, ApiWorld

Json = dict[str, Any]

NAMING = frozenset(
    {"pool", "queue", "job", "default_pool", "default_queue", "ahead_of", "behind", "allocations", "updates"}
)
"""Fields of bodies that name a queue, a job, a pool or work, or have parts that do."""

COLLECTIONS = ("allocations", "commands", "notebooks", "shells", "tensorboards", "trainings")
PROGRAM: Json = {"image": "python:3.11", "command": ["true"]}
WAYS: list[tuple[str, str, Json, str, str]] = [
    *(
        ("POST", f"/{collection}", {**(COMMAND if collection == "allocations" else PROGRAM), **named}, pointer, says)
        for collection in COLLECTIONS
        for named, pointer, says in (
            ({"pool": "gone"}, "/pool", "there is no pool gone; there are: default, other"),
            ({"queue": "gone"}, "/queue", "pool default has no queue gone; there are: default"),
            ({"queue": "theirs"}, "/queue", "pool default has no queue theirs"),
            ({"job": "gone"}, "/job", "workspace default has no job gone; there are: j"),
        )
    ),
    ("PATCH", "/allocations/{id}", {"queue": "gone"}, "/queue", "pool default has no queue gone"),
    ("PATCH", "/allocations/{id}", {"queue": "theirs"}, "/queue", "pool default has no queue theirs"),
    ("PATCH", "/jobs/j", {"queue": "gone"}, "/queue", "there is no queue gone; there are: default, theirs"),
    ("PATCH", "/jobs/j", {"queue": "theirs"}, "/queue", "pool default has no queue theirs; there are: default"),
    ("POST", "/workspaces", {"name": "w", "defaultPool": "gone"}, "/defaultPool", "there is no pool gone"),
    ("POST", "/workspaces", {"name": "w", "defaultQueue": "gone"}, "/defaultQueue", "there is no queue gone"),
    ("PATCH", "/workspaces/default", {"defaultPool": "gone"}, "/defaultPool", "there is no pool gone"),
    ("PATCH", "/workspaces/default", {"defaultQueue": "gone"}, "/defaultQueue", "there is no queue gone"),
    ("POST", "/simulate", {"pool": "gone"}, "/pool", "there is no pool gone"),
    (
        "POST",
        "/simulate",
        {"allocations": [{"allocation": "waits", "queue": "gone"}]},
        "/allocations/0/queue",
        "pool default has no queue gone",
    ),
    (
        "POST",
        "/simulate",
        {"addAllocations": [{"name": "new", "ranks": [{}], "queue": "gone"}]},
        "/addAllocations/0/queue",
        "pool default has no queue gone",
    ),
    (
        "POST",
        "/simulate",
        {"addAllocations": [{"name": "new", "ranks": [{}], "job": "elsewhere"}]},
        "/addAllocations/0/job",
        "there is no job elsewhere",
    ),
]
UPDATES: list[tuple[Json, str]] = [
    ({"allocation": "waits", "queue": "gone"}, "pool default has no queue gone"),
    ({"job": "j", "queue": "gone"}, "there is no queue gone"),
    ({"job": "j", "queue": "theirs"}, "pool default has no queue theirs"),
    ({"job": "gone", "priority": 60}, "there is no job 'gone'"),
    ({"job": "j", "aheadOf": "gone"}, "there is no job or allocation 'gone'"),
]
NOT_FOUND = (("POST", "/jobs/j/move", {"aheadOf": "gone"}), ("POST", "/allocations/{id}/move", {"behind": "gone"}))


async def furnished(world: ApiWorld) -> Json:
    """Another pool with a queue, a job here and one in another workspace, and one allocation of the job that waits."""
    await world.kube.create(RESOURCE_POOLS, {"metadata": {"name": "other"}, "spec": {"nodeSelector": {"a": "b"}}})
    await world.make_queue("theirs", "other")
    for name, workspace in (("j", "default"), ("elsewhere", "kube-system")):
        await world.kube.create(JOBS, {"metadata": {"name": name, "namespace": workspace}, "spec": {}})
    return await world.launch(name="waits", job="j")


@pytest.mark.parametrize(("method", "path", "body", "pointer", "says"), WAYS)
async def test_a_name_that_does_not_exist_is_refused(
    world: ApiWorld, method: str, path: str, body: Json, pointer: str, says: str
) -> None:
    """The request gets 422 at the field that names it, and nothing is changed."""
    waits = await furnished(world)
    before = await world.stored("waits")
    answer = await world.http.request(method, "/api/v1" + path.format(id=waits["id"]), json=body)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    [error] = problem.get("errors") or [{"pointer": pointer, "detail": problem["detail"]}]
    assert error["pointer"] == pointer
    assert says in error["detail"]
    assert await world.stored("waits") == before
    assert await world.names() == ["waits"]


@pytest.mark.parametrize(("update", "says"), UPDATES)
async def test_the_same_of_each_update_of_a_batch(world: ApiWorld, update: Json, says: str) -> None:
    """An update of a batch that names what does not exist is refused; the other updates are made."""
    await furnished(world)
    before = await world.stored("waits")
    answer = await world.post("/jobs/batch", {"updates": [update, {"job": "j", "weight": 2}]})
    refused, made = answer.json()["items"]
    assert (refused["ok"], made["ok"]) == (False, True)
    assert says in refused["error"]
    assert await world.stored("waits") == before


@pytest.mark.parametrize(("method", "path", "body"), NOT_FOUND)
async def test_there_is_no_place_beside_what_does_not_exist(
    world: ApiWorld, method: str, path: str, body: Json
) -> None:
    """The move gets 404 with the name."""
    waits = await furnished(world)
    answer = await world.http.request(method, "/api/v1" + path.format(id=waits["id"]), json=body)
    assert (answer.status_code, "'gone'" in answer.json()["detail"]) == (404, True)


@pytest.mark.parametrize("side", ["aheadOf", "behind"])
async def test_a_batch_moves_nothing_beside_what_does_not_exist(world: ApiWorld, side: str) -> None:
    """Each move is refused with the name, and the allocation stays where it is."""
    waits = await furnished(world)
    before = await world.stored("waits")
    answer = await world.post("/allocations/batch", {"verb": "move", "ids": [waits["id"]], side: "gone"})
    [item] = answer.json()["items"]
    assert (item["outcome"], "'gone'" in item["problem"]["detail"]) == ("refused", True)
    assert await world.stored("waits") == before


def test_every_body_that_names_one_is_tried() -> None:
    """A new route whose body names a queue, a job or a pool belongs into the tables above."""
    tried = {(method, path) for method, path, *_ in (*WAYS, *NOT_FOUND)} | {
        ("POST", "/jobs/batch"),
        ("POST", "/allocations/batch"),
    }
    naming = {
        (endpoint.method, endpoint.path)
        for endpoint in ENDPOINTS
        if endpoint.body is not None
        and not NAMING.isdisjoint(field.name for field in msgspec.structs.fields(endpoint.body))
    }
    assert {(method, _as_route(path)) for method, path in tried} == naming


def _as_route(path: str) -> str:
    """The path of the route that serves `path`."""
    return "/api/v1" + path.replace("/workspaces/default", "/workspaces/{name}").replace("/jobs/j", "/jobs/{name}")


async def test_a_template_is_checked_when_something_is_launched_with_it(world: ApiWorld) -> None:
    """A template may be made before its queue."""
    body = {"name": "later", "body": {**COMMAND, "queue": "gone"}}
    assert (await world.post("/templates", body)).status_code == 201
    answer = await world.post("/allocations", {"kind": "command", "template": "later"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/queue")


async def test_a_job_moves_what_is_of_the_pool_of_the_queue(world: ApiWorld) -> None:
    """Work in another pool stays where it is, and the answer says why."""
    await furnished(world)
    away = await world.launch(name="away", pool="other", queue="theirs", job="j")
    await world.make_queue("next")
    answer = await world.http.patch("/api/v1/jobs/j", json={"queue": "next"})
    assert answer.json()["unchanged"] == [f"{away['id']} is of pool other; queue next belongs to pool default"]
    assert (await world.stored("waits")).spec.queue == "next"
    assert (await world.stored("away")).spec.queue == "theirs"


async def test_what_was_applied_into_a_pool_that_does_not_exist_says_so(world: ApiWorld) -> None:
    """No scheduler looks at it: `explain` says why it waits and which pools there are."""
    spec = {"kind": "command", "pool": "gone", "template": {"spec": {"containers": [{"name": "main"}]}}}
    await world.kube.create(ALLOCATIONS, {"metadata": {"name": "applied", "namespace": "default"}, "spec": spec})
    view = (await world.get("/allocations/applied/explain")).json()
    assert (view["code"], view["message"]) == ("UnknownPool", "there is no pool gone; there are: default")
    assert view["change"][0]["kind"] == "create"


LISTS = (
    *(f"/{collection}" for collection in COLLECTIONS),
    *("/history", "/usage", "/usage/raw", "/gpu-use", "/gpu-use/days", "/jobs", "/queue-stats", "/templates"),
)
FILTERS = {
    "workspace": "there is no workspace gone; there are: default",
    "queue": "there is no queue gone; there are: default, theirs",
    "pool": "there is no pool gone; there are: default, other",
    "job": "there is no job gone; there are: elsewhere, j",
}


def _filters_of(path: str) -> frozenset[str]:
    [endpoint] = [each for each in ENDPOINTS if (each.method, each.path) == ("GET", "/api/v1" + path)]
    return _filters(endpoint)


def _filters(endpoint: Endpoint) -> frozenset[str]:
    """The parameters that filter a list; a parameter with a default states where one object is."""
    return frozenset(query.name for query in endpoint.query if "default" not in query.description) & FILTERS.keys()


@pytest.mark.parametrize(("path", "what"), [(path, what) for path in LISTS for what in sorted(_filters_of(path))])
async def test_a_filter_with_a_name_that_does_not_exist_is_refused(world: ApiWorld, path: str, what: str) -> None:
    """The list gets 422 at the parameter, in the words for a body: an empty list would read as if nothing ran there."""
    await furnished(world)
    answer = await world.get(f"{path}?{what}=gone")
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"] == [{"pointer": "", "detail": f"?{what}= {FILTERS[what]}"}]
    assert (await world.get(f"{path}?{what}={'j' if what == 'job' else 'default'}")).status_code == 200


def test_every_list_with_such_a_filter_is_tried() -> None:
    """A new route with a filter by workspace, queue, pool or job belongs into LISTS; a stream does not."""
    filtering = {endpoint.path for endpoint in ENDPOINTS if endpoint.method == "GET" and _filters(endpoint)}
    assert {"/api/v1" + path for path in LISTS} == filtering - {"/api/v1/events"}


@pytest.mark.parametrize("path", [path for path in LISTS if "workspace" in _filters_of(path)])
async def test_a_workspace_that_is_not_seen_is_refused_as_one_that_does_not_exist(path: str, tmp_path: Path) -> None:
    """The refusal names only what its reader may see; their own workspace is answered, also when nothing is in it."""
    async with teams_world("token", tmp_path) as teams:
        headers = await teams.token("ada", {"team-red": "viewer"})
        for name in ("team-blue", "gone"):
            answer = await teams.call("GET", f"{path}?workspace={name}", headers)
            assert answer.status_code == 422, answer.text
            detail = f"?workspace= there is no workspace {name}; there are: team-red"
            assert answer.json()["errors"] == [{"pointer": "", "detail": detail}]
        assert (await teams.call("GET", f"{path}?workspace=team-red", headers)).status_code == 200


async def test_a_job_is_looked_for_in_the_workspace_of_the_filter(world: ApiWorld) -> None:
    """A job of another workspace is none of this one."""
    await furnished(world)
    answer = await world.get("/allocations?job=elsewhere&workspace=default")
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "job: workspace default has no job elsewhere; there are: j",
    )


@pytest.mark.parametrize("path", ["/history", "/usage", "/usage/raw"])
async def test_a_queue_that_was_deleted_is_still_asked_for(world: ApiWorld, path: str) -> None:
    """Work of the deleted queue still exists: no other filter makes the name unknown. A user who launched nothing is no
    error."""
    await furnished(world)
    await world.launch(name="old", queue="closed")
    await world.step("old", Event.TERMINATED)
    await world.kube.delete(QUEUES, "closed")
    for query in ("queue=closed", "queue=closed&pool=other", "user=who-launched-nothing"):
        answer = await world.get(f"{path}?{query}")
        assert answer.status_code == 200, answer.text
