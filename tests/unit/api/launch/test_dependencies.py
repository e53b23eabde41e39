"""A launch that waits for other allocations: what is stored of them, and what is refused."""

from typing import Any

import pytest

from slipway.crd.meta import LABEL_WORKSPACE
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import AFTER_MAX, Dependency
from slipway.kube.resources import ALLOCATIONS, NAMESPACES
from slipway.model.lifecycle import Event
from slipway.model.reasons import DependencyEnd, Gate, Result
from tests.support.api_world import COMMAND, ApiWorld

Json = dict[str, Any]


async def first(world: ApiWorld, name: str = "prep", result: Result | None = None, **body: Any) -> str:
    """The id of a new allocation; with a result it has ended."""
    answer = await world.launch(name=name, **body)
    if result is not None:
        await world.step(name, Event.TERMINATED, result=result)
    return str(answer["id"])


async def refusal(world: ApiWorld, *after: Json) -> list[Json]:
    """The errors with which a launch with this `after` is refused."""
    answer = await world.post("/allocations", {**COMMAND, "after": list(after)})
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"]


async def test_what_is_named_is_kept_by_its_id(world: ApiWorld) -> None:
    """A name may mean another allocation tomorrow; an id never does."""
    id_ = await first(world)
    for named in ("prep", id_):
        answer = await world.launch(after=[{"allocation": named}])
        stored = (await world.stored(answer["name"])).spec.after
        assert stored == [Dependency(allocation=id_, when=DependencyEnd.SUCCEEDED)]
        assert answer["spec"]["after"] == [{"allocation": id_, "when": "succeeded"}]


async def test_a_job_stands_for_the_allocations_that_it_has(world: ApiWorld) -> None:
    """A job stands for its allocations at the time of the launch: later ones are not waited for."""
    await world.post("/jobs", {"name": "sweep"})
    ids = [await first(world, name, job="sweep") for name in ("a", "b")]
    await first(world, "other")
    answer = await world.launch(name="last", job="sweep", after=[{"job": "sweep", "when": "ended"}])
    assert sorted(each["allocation"] for each in answer["spec"]["after"]) == sorted(ids)


@pytest.mark.parametrize(
    ("result", "when"),
    [(Result.SUCCEEDED, "succeeded"), (Result.FAILED, "failed"), (Result.CANCELED, "ended")],
)
async def test_how_it_had_ended_already_is_kept(world: ApiWorld, result: Result, when: str) -> None:
    """The dependency may be deleted the next moment, and the launch starts all the same."""
    id_ = await first(world, result=result)
    answer = await world.launch(after=[{"allocation": "prep", "when": when}])
    assert (await world.stored(answer["name"])).spec.after == [
        Dependency(allocation=id_, when=DependencyEnd(when), result=result)
    ]


async def test_what_can_never_start_is_refused(world: ApiWorld) -> None:
    """The dependency has already ended in another way. The error names its result, and what to write instead."""
    id_ = await first(world, result=Result.FAILED)
    assert await refusal(world, {"allocation": "prep"}) == [
        {
            "pointer": "/after/0/allocation",
            "detail": f"{id_} ended with Failed, but this launch starts only if it succeeded; leave it out, or write "
            "when: ended",
        }
    ]


@pytest.mark.parametrize(
    ("given", "pointer", "detail"),
    [
        ({"allocation": "perp"}, "/after/0/allocation", "workspace default has no allocation perp; slipway ps --all"),
        ({"allocation": "No Name"}, "/after/0/allocation", "workspace default has no allocation No Name; "),
        (
            {"job": "none"},
            "/after/0/job",
            "job none has no allocation in workspace default; launch its allocations first",
        ),
        ({}, "/after/0", "name an allocation or a job: {allocation: ID} or {job: NAME}"),
        ({"allocation": "prep", "job": "sweep"}, "/after/0", "name an allocation or a job: "),
        ({"allocation": "prep", "result": "Succeeded"}, "/after/0/result", "written by the API; leave it out"),
        ({"allocation": "prep", "when": "soon"}, "/after/0/when", ""),
        ({"allocation": "prep", "on": "ended"}, "/after/0/on", ""),
    ],
)
async def test_what_cannot_be_waited_for_is_refused(world: ApiWorld, given: Json, pointer: str, detail: str) -> None:
    """The error has the field, the reason and the next step."""
    await first(world)
    (error,) = await refusal(world, given)
    assert error["pointer"] == pointer
    assert error["detail"].startswith(detail)


async def test_it_cannot_wait_for_itself(world: ApiWorld) -> None:
    """The name of the launch means nothing yet, so a circle is not possible either."""
    answer = await world.post("/allocations", {**COMMAND, "name": "own", "after": [{"allocation": "own"}]})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["detail"].startswith("workspace default has no allocation own; ")


async def test_a_dependency_in_another_workspace_is_refused(world: ApiWorld) -> None:
    """The caller may have no right to know how that work ends."""
    labels = {LABEL_WORKSPACE: "true"}
    await world.kube.create(NAMESPACES, {"metadata": {"name": "other", "labels": labels}})
    id_ = await first(world, workspace="other")
    (error,) = await refusal(world, {"allocation": id_})
    assert error["detail"].startswith(f"workspace default has no allocation {id_}; ")


async def test_two_ends_of_one_allocation_are_a_slip(world: ApiWorld) -> None:
    """An allocation ends in one way only. The same dependency twice is stored once."""
    id_ = await first(world)
    (error,) = await refusal(world, {"allocation": "prep"}, {"allocation": id_, "when": "failed"})
    assert error["detail"] == f"{id_} is named twice, with different values of when: leave one of them out"
    answer = await world.launch(after=[{"allocation": "prep"}, {"allocation": id_}])
    assert len(answer["spec"]["after"]) == 1


async def test_many_are_found_with_one_list(world: ApiWorld) -> None:
    """A fan-in costs one read of the workspace, whatever its width; more than `AFTER_MAX` dependencies are refused."""
    await world.post("/jobs", {"name": "sweep"})
    for number in range(20):
        await first(world, f"p{number}", job="sweep")
    reads: list[str] = []

    async def note(verb: Any, plural: str) -> None:
        if plural == ALLOCATIONS.plural:
            reads.append(str(verb))

    before, world.kube.after = world.kube.after, note
    answer = await world.launch(after=[{"allocation": f"p{number}"} for number in range(20)])
    world.kube.after = before
    assert len(answer["spec"]["after"]) == 20
    assert len(reads) <= 3
    errors = await refusal(world, *({"allocation": f"p{number}"} for number in range(AFTER_MAX + 1)))
    assert errors[0]["pointer"] == "/after"


async def test_a_repeated_launch_is_the_same_launch(world: ApiWorld) -> None:
    """The key finds its first launch also when the dependency of the launch has failed since."""
    await first(world)
    body, headers = {**COMMAND, "after": [{"allocation": "prep"}]}, {"idempotency-key": "k"}
    made = await world.post("/allocations", body, **headers)
    await world.step("prep", Event.TERMINATED, result=Result.FAILED)
    again = await world.post("/allocations", body, **headers)
    assert (made.status_code, again.status_code, again.json()["id"]) == (201, 200, made.json()["id"])


async def test_explain_says_for_whom_it_waits_and_what_to_do(world: ApiWorld) -> None:
    """The sentence is the scheduler's own."""
    await first(world)
    answer = await world.launch(after=[{"allocation": "prep"}])
    stored = await world.stored(answer["name"])
    await world.explain(answer["name"], Gate.WAITING_FOR_DEPENDENCY, f"waits for {id_of(stored)} to succeed")
    found = (await world.get(f"/allocations/{answer['id']}/explain")).json()
    assert (found["code"], found["message"]) == ("WaitingForDependency", f"waits for {id_of(stored)} to succeed")
    assert found["change"][0]["detail"].startswith("wait for the allocations that the message names to end")
