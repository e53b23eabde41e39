"""Reading, changing and killing one allocation."""

import asyncio
from typing import Any

import pytest

from slipway.errors import StaleError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, NAMESPACES, RESOURCE_POOLS
from slipway.model.lifecycle import Event
from tests.support.api_world import COMMAND, ApiWorld


async def test_names_and_unique_beginnings_are_accepted(world: ApiWorld) -> None:
    """People do not type whole ids."""
    answer = await world.launch(name="llm-7b")
    for given in (answer["id"], "llm-7b", answer["id"][:-3], "llm"):
        assert (await world.get(f"/allocations/{given}")).json()["id"] == answer["id"]


async def test_an_ambiguous_beginning_names_the_candidates(world: ApiWorld) -> None:
    """An ambiguous beginning gets 409 with the ids."""
    ids = [(await world.launch(name=name))["id"] for name in ("llm-a", "llm-b")]
    response = await world.get("/allocations/llm")
    assert (response.status_code, response.json()["code"]) == (409, "ambiguous-id")
    assert all(each in response.json()["detail"] for each in ids)


async def test_a_name_in_two_workspaces_is_ambiguous_and_an_id_is_not(world: ApiWorld) -> None:
    """An AllocationID names one object in all namespaces."""
    labels = {"slipway.dev/workspace": "true"}
    await world.kube.create(NAMESPACES, {"metadata": {"name": "other", "labels": labels}})
    one, two = await world.launch(name="llm"), await world.launch(name="llm", workspace="other")
    assert (await world.get("/allocations/llm")).status_code == 409
    assert (await world.get(f"/allocations/{one['id']}")).json()["workspace"] == "default"
    assert (await world.get(f"/allocations/{two['id']}")).json()["workspace"] == "other"


async def test_an_id_never_means_the_next_object_of_the_name(world: ApiWorld) -> None:
    """An id finds no later object of its name, also after the id was looked up before."""
    old = await world.launch(name="llm")
    assert (await world.get(f"/allocations/{old['id']}")).status_code == 200
    await world.kube.patch(ALLOCATIONS, "llm", {"metadata": {"finalizers": []}}, namespace="default")
    await world.kube.delete(ALLOCATIONS, "llm", namespace="default")
    assert (await world.get(f"/allocations/{old['id']}")).status_code == 404
    new = await world.launch(name="llm")
    assert (await world.get(f"/allocations/{old['id']}")).status_code == 404
    assert (await world.get("/allocations/llm")).json()["id"] == new["id"]


@pytest.mark.parametrize("given", ["nope", "llm-00000000", "LLM", "a%2Fb", "..", "x" * 80])
async def test_what_does_not_exist_is_404(world: ApiWorld, given: str) -> None:
    """An id with another uid, and a text that could never be an id, get 404 too."""
    await world.launch(name="llm")
    assert (await world.get(f"/allocations/{given}")).status_code == 404


async def test_a_kill_that_lost_a_race_is_made_again(world: ApiWorld) -> None:
    """The API server answers Conflict while others write the object; the caller of a kill does not notice."""
    answer, refused = await world.launch(), list[str]()

    async def racing(verb: Verb, plural: str) -> None:
        if verb is Verb.PATCH and len(refused) < 2:
            refused.append(plural)
            raise StaleError("the object has been modified")

    world.kube.before = racing
    response = await world.post(f"/allocations/{answer['id']}/kill")
    assert (response.status_code, response.json()["desired"], len(refused)) == (202, "Stopped", 2)


async def test_a_kill_commits_the_cancel(world: ApiWorld) -> None:
    """A kill sets desired=Stopped, once; repeating it changes nothing."""
    answer = await world.launch()
    first = await world.post(f"/allocations/{answer['id']}/kill")
    assert (first.status_code, first.json()["desired"]) == (202, "Stopped")
    again = await world.post(f"/allocations/{answer['id']}/kill")
    assert again.json()["resourceVersion"] == first.json()["resourceVersion"]


async def test_a_kill_does_not_lose_against_status_writes(world: ApiWorld) -> None:
    """The patch of a kill carries no resourceVersion: the uid is its fence."""
    answer = await world.launch()

    async def move_it(verb: Verb, _plural: str) -> None:
        if verb is Verb.PATCH:
            world.kube.before = _at_once
            await world.explain(answer["name"], "NoFit", "no node")

    world.kube.before = move_it
    assert (await world.post(f"/allocations/{answer['id']}/kill")).status_code == 202
    assert (await world.stored(answer["name"])).spec.desired == "Stopped"


async def test_a_kill_never_hits_the_next_object_of_the_name(world: ApiWorld) -> None:
    """The object was replaced between the look-up and the write."""
    answer = await world.launch(name="llm")

    async def replace_it(verb: Verb, plural: str) -> None:
        if verb is Verb.PATCH and plural == "allocations":
            world.kube.before = _at_once
            found = await world.stored("llm")
            await world.kube.patch(ALLOCATIONS, "llm", {"metadata": {"finalizers": []}}, namespace="default")
            await world.kube.delete(ALLOCATIONS, "llm", namespace="default", uid=found.metadata.uid)
            await world.launch(name="llm")

    world.kube.before = replace_it
    response = await world.post(f"/allocations/{answer['id']}/kill")
    assert response.status_code == 404
    assert (await world.stored("llm")).spec.desired == "Running"


async def test_changes(world: ApiWorld) -> None:
    """A change sets the priority, the queue before admission, the position or the hold."""
    answer = await world.launch()
    response = await world.http.patch(
        f"/api/v1/allocations/{answer['id']}", json={"priority": 70, "hold": True, "queuePosition": "5"}
    )
    changed = response.json()
    assert response.status_code == 200, response.text
    assert (changed["priority"], changed["hold"], changed["spec"]["queuePosition"]) == (70, True, "5")
    assert changed["spec"]["template"] == answer["spec"]["template"]
    other = await world.post(f"/commands/{answer['id']}/priority", {"priority": 5})
    assert other.json()["priority"] == 5


async def test_what_may_not_change_is_refused(world: ApiWorld) -> None:
    """Unknown fields, bad values, the queue of an admitted allocation, and any field of an ended one may not change."""
    answer = await world.launch()
    path = f"/api/v1/allocations/{answer['id']}"
    assert (await world.http.patch(path, json={"kind": "shell"})).status_code == 422
    assert (await world.http.patch(path, json={"priority": 5000})).json()["errors"][0]["pointer"] == "/priority"
    await world.run(answer["name"])
    moved = await world.http.patch(path, json={"queue": "other"})
    assert moved.status_code == 422
    assert "once the allocation was admitted" in moved.text
    await world.step(answer["name"], Event.TERMINATED)
    assert (await world.http.patch(path, json={"priority": 5})).status_code == 409


async def test_a_stop_cannot_be_undone(world: ApiWorld) -> None:
    """A cancel cannot be taken back."""
    answer = await world.launch()
    path = f"/api/v1/allocations/{answer['id']}"
    assert (await world.http.patch(path, json={"desired": "Stopped"})).status_code == 200
    assert (await world.http.patch(path, json={"desired": "Running"})).status_code == 422


async def test_if_match_guards_a_change(world: ApiWorld) -> None:
    """A change gets 412 when the version has moved; the answer's ETag is the new one."""
    answer = await world.launch()
    path = f"/api/v1/allocations/{answer['id']}"
    etag = (await world.http.get(path)).headers["etag"]
    changed = await world.http.patch(path, json={"priority": 1}, headers={"if-match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag
    stale = await world.http.patch(path, json={"priority": 2}, headers={"if-match": etag})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition-failed")
    assert (await world.http.delete(path, headers={"if-match": etag})).status_code == 412
    not_modified = await world.http.get(path, headers={"if-none-match": changed.headers["etag"]})
    assert not_modified.status_code == 304


async def test_if_match_holds_to_the_write(world: ApiWorld) -> None:
    """The condition holds also when the version moves between our read and our write."""
    answer = await world.launch()
    path = f"/api/v1/allocations/{answer['id']}"
    etag = (await world.http.get(path)).headers["etag"]

    async def move_it(verb: Verb, _plural: str) -> None:
        if verb is Verb.PATCH:
            world.kube.before = _at_once
            await world.explain(answer["name"], "NoFit", "no node")

    world.kube.before = move_it
    response = await world.http.patch(path, json={"priority": 1}, headers={"if-match": etag})
    assert response.status_code == 412
    assert (await world.stored(answer["name"])).spec.priority == 50


async def test_delete_deletes_the_object(world: ApiWorld) -> None:
    """A delete gets 202; the finalizer keeps the object until its teardown."""
    answer = await world.launch()
    response = await world.http.delete(f"/api/v1/allocations/{answer['id']}")
    assert (response.status_code, response.json()["deleting"]) == (202, True)


async def test_hold_and_resume(world: ApiWorld) -> None:
    """Before the start a hold is a flag; for a running gang it is a preemption as well; a notebook cannot be paused."""
    waiting = await world.launch()
    assert (await world.post(f"/allocations/{waiting['id']}/hold")).json()["hold"] is True
    assert (await world.post(f"/allocations/{waiting['id']}/resume")).json()["hold"] is False
    gang = await world.launch(kind="training")
    await world.run(gang["name"])
    held = (await world.post(f"/allocations/{gang['id']}/hold")).json()
    assert (held["hold"], held["spec"]["signals"]["preempt"]["n"]) == (True, 1)
    notebook = (await world.post("/notebooks", {})).json()
    await world.run(notebook["name"])
    assert (await world.post(f"/allocations/{notebook['id']}/hold")).status_code == 409


async def test_a_preemption_stands_until_the_attempt_is_over(world: ApiWorld) -> None:
    """A second request in the same attempt changes nothing; the next attempt is not asked."""
    answer = await world.launch()
    await world.run(answer["name"])
    first = await world.post(f"/allocations/{answer['id']}/preempt", {"reason": "maintenance"})
    again = await world.post(f"/allocations/{answer['id']}/preempt")
    assert first.status_code == again.status_code == 202
    signals = (await world.stored(answer["name"])).spec.signals
    assert signals is not None
    assert signals.preempt is not None
    assert (signals.preempt.n, signals.preempt.reason, signals.preempt.attempt) == (1, "maintenance", 1)
    await world.step(answer["name"], Event.RESTARTED)
    preemption = (await world.get(f"/allocations/{answer['id']}/signals/preemption")).json()
    assert (preemption["preempt"], preemption["attempt"]) == (False, 2)


async def test_pods_are_listed_by_rank(world: ApiWorld) -> None:
    """The pods are those of the cluster, with the state of their rank."""
    answer = await world.launch(ranks=[{"count": 2}])
    await world.run(answer["name"])
    pods = (await world.get(f"/allocations/{answer['id']}/pods")).json()["items"]
    assert [(pod["rank"], pod["state"], pod["ip"], pod["phase"]) for pod in pods] == [
        (0, "Running", "127.0.0.1", "Running"),
        (1, "Running", "127.0.0.1", "Running"),
    ]


async def test_signals_retry_a_conflict(world: ApiWorld) -> None:
    """Ranks that send a signal at the same time are all recorded."""
    answer = await world.launch(ranks=[{"count": 3}])
    path = f"/allocations/{answer['id']}/ranks"
    answers = await asyncio.gather(*(world.post(f"{path}/{rank}/daemon") for rank in range(3)))
    assert [each.status_code for each in answers] == [200, 200, 200]
    signals = (await world.stored(answer["name"])).spec.signals
    assert signals is not None
    assert signals.daemons == [0, 1, 2]


async def test_a_write_that_stays_stale_is_409(world: ApiWorld) -> None:
    """The answer has Retry-After, so that the client may try again."""
    answer = await world.launch()

    async def always_stale(verb: Verb, _plural: str) -> None:
        if verb is Verb.PATCH:
            raise StaleError("moved")

    world.kube.before = always_stale
    response = await world.post(f"/allocations/{answer['id']}/ready")
    assert (response.status_code, response.json()["code"]) == (409, "stale")
    assert "retry-after" in response.headers


async def _at_once(_verb: Verb, _plural: str) -> None:
    return None


async def test_the_body_of_a_get_can_be_launched_again(world: ApiWorld) -> None:
    """`spec` of an answer is a launch body."""
    answer = await world.launch(ranks=[{"count": 2, "resources": {"cpu": 1}}], env={"A": "1"})
    again = await world.post("/allocations", answer["spec"])
    assert again.status_code == 201, again.text
    same = {name: value for name, value in again.json()["spec"].items() if name != "requestHash"}
    assert same == {name: value for name, value in answer["spec"].items() if name != "requestHash"}
    assert COMMAND["command"] == same["template"]["spec"]["containers"][0]["command"]


async def test_limits_change_after_the_launch_as_far_as_the_pool_lets_them(world: ApiWorld) -> None:
    """A limit may become longer or shorter; what is no duration, or beyond the pool's limit, is refused with its
    field."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"limitsMax": "4h"}})
    path = f"/api/v1/allocations/{(await world.launch(name='a', maxRuntime='1h'))['id']}"
    assert (await world.http.patch(path, json={"maxRuntime": "3h", "idleTimeout": "30m"})).status_code == 200
    spec = (await world.stored("a")).spec
    assert (spec.max_runtime, spec.idle_timeout) == ("3h", "30m")
    for field, value in (("maxRuntime", "5h"), ("pendingTimeout", "soon")):
        refused = await world.http.patch(path, json={field: value})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, f"/{field}")


async def test_a_limit_of_more_than_ten_years_is_refused_in_every_pool(world: ApiWorld) -> None:
    """The bound holds also where the pool has no `limitsMax`; the error names the field and the bound."""
    path = f"/api/v1/allocations/{(await world.launch(name='a'))['id']}"
    for field in ("maxRuntime", "idleTimeout", "pendingTimeout"):
        refused = await world.http.patch(path, json={field: "99999999h"})
        assert refused.status_code == 422, refused.text
        assert refused.json()["errors"] == [{"pointer": f"/{field}", "detail": "'99999999h' is longer than ten years"}]


async def held(world: ApiWorld, **body: Any) -> str:
    """The path of an allocation that is held."""
    return f"/api/v1/allocations/{(await world.launch(name='a', hold=True, **body))['id']}"


async def test_what_is_held_may_be_given_other_work(world: ApiWorld) -> None:
    """Image, program, variables and resources may change; fields that are not named stay; a new command removes the old
    args."""
    body: dict[str, Any] = {"args": ["--old"], "env": {"A": "1", "B": "2"}, "ranks": [{"resources": {"cpu": 1}}]}
    path = await held(world, **body)
    change = {"image": "b", "command": ["echo", "$(X)"], "env": {"A": None, "C": "3"}, "resources": {"memory": "2Gi"}}
    answer = await world.http.patch(path, json=change)
    assert answer.status_code == 200, answer.text
    spec = (await world.stored("a")).spec
    (main,) = spec.template["spec"]["containers"]
    assert (main["image"], main["command"], main.get("args") or []) == ("b", ["echo", "$$(X)"], [])
    assert spec.env == {"B": "2", "C": "3"}
    assert spec.ranks[0].resources["requests"]["memory"] == "2Gi"
    assert spec.ranks[0].resources["requests"]["cpu"] in (1, "1")
    assert (await world.http.patch(path, json={"image": "c", "hold": False})).status_code == 200
    assert not (await world.stored("a")).spec.hold


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"resources": {"cpu": "much"}}, "/resources/cpu"),
        ({"resources": {"memory": "8"}}, "/resources/memory"),
        ({"env": {"1 2": "x"}}, "/env/1 2"),
        ({"image": ""}, "/image"),
        ({"command": "true"}, "/command"),
    ],
)
async def test_other_work_that_is_not_sound_is_refused_by_its_field(
    world: ApiWorld, change: dict[str, Any], pointer: str
) -> None:
    """A bad field is refused as at a launch, and nothing is written."""
    path = await held(world)
    before = await world.stored("a")
    answer = await world.http.patch(path, json=change)
    assert answer.status_code == 422, answer.text
    assert pointer in [each["pointer"] for each in answer.json()["errors"]]
    assert await world.stored("a") == before


async def test_work_that_could_start_stays_as_it_is(world: ApiWorld) -> None:
    """The change gets 409 with the next step: hold waiting work first; admitted work is launched again, also once it is
    held."""
    path = f"/api/v1/allocations/{(await world.launch(name='a'))['id']}"
    waits = await world.http.patch(path, json={"image": "b"})
    assert (waits.status_code, "slipway hold" in waits.json()["detail"]) == (409, True)
    await world.run("a")
    await world.http.post(f"{path}/hold")
    runs = await world.http.patch(path, json={"image": "b"})
    assert (runs.status_code, "was admitted" in runs.json()["detail"]) == (409, True)


async def test_a_change_of_work_meets_an_admission_at_the_same_moment(world: ApiWorld) -> None:
    """The change is decided again on the object that was read anew."""
    path = await held(world)
    raced: list[str] = []

    async def let_go(verb: Verb, plural: str) -> None:
        if (verb, plural, raced) == (Verb.PATCH, "allocations", []):
            raced.append("")
            await world.kube.patch(ALLOCATIONS, "a", {"spec": {"hold": False}}, namespace="default")

    world.kube.before = let_go
    answer = await world.http.patch(path, json={"image": "b"})
    assert (answer.status_code, "is not held" in answer.json()["detail"]) == (409, True)
