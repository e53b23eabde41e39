"""One verb for many allocations: the outcome of each, how many at once, who may send it, and that a key acts once."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from slipway.api.http import batch as bounds
from slipway.api.http.batch import BatchDeadlineError, BatchLimits
from slipway.crd.meta import ANNOTATION_BATCH
from slipway.errors import InvariantError, NotFoundError, ThrottledError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.runtime.clock import SystemClock
from tests.support.access import Teams, teams_world
from tests.support.api_world import ApiWorld

Json = dict[str, Any]


async def several(world: ApiWorld, *names: str, **body: Any) -> list[str]:
    """Launch allocations with these names, and return their ids."""
    return [(await world.launch(name=name, **body))["id"] for name in names]


async def sent(world: ApiWorld, body: Json, **headers: str) -> Json:
    """Send a batch that must be accepted, and return its answer."""
    answer = await world.post("/allocations/batch", body, **headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def outcomes(answer: Json) -> list[str]:
    return [item["outcome"] for item in answer["items"]]


async def deleted(world: ApiWorld) -> list[str]:
    """The names of allocations that are being deleted; without a watcher no object loses its finalizers."""
    stored = [await world.stored(name) for name in await world.names()]
    return sorted(each.metadata.name for each in stored if each.metadata.deletion_timestamp)


async def desired(world: ApiWorld) -> dict[str, str]:
    return {name: (await world.stored(name)).spec.desired for name in await world.names()}


async def test_each_has_its_outcome(world: ApiWorld) -> None:
    """Outcomes have the order of the ids: done, refused with the problem of the verb for one allocation, or not
    found."""
    ids = await several(world, "a", "ended", "b")
    await world.step("ended", Event.TERMINATED, result=Result.SUCCEEDED)
    answer = await sent(world, {"verb": "hold", "ids": [ids[0], "nothing", ids[1], "b"]})
    assert outcomes(answer) == ["done", "notFound", "refused", "done"]
    assert answer["counts"] == {"done": 2, "refused": 1, "notFound": 1}
    alone = (await world.post(f"/allocations/{ids[1]}/hold")).json()
    told = answer["items"][2]["problem"]
    assert {name: told[name] for name in ("status", "code", "title", "detail")} == {
        name: alone[name] for name in ("status", "code", "title", "detail")
    }
    assert answer["items"][1]["problem"]["status"] == 404
    assert [(await world.stored(name)).spec.hold for name in ("a", "ended", "b")] == [True, False, True]
    assert outcomes(await sent(world, {"verb": "resume", "ids": [ids[0], ids[2]]})) == ["done", "done"]
    assert not (await world.stored("b")).spec.hold


async def test_what_has_ended_is_killed_as_one_is(world: ApiWorld) -> None:
    """A kill of ended work changes nothing, and is no refusal."""
    (id_,) = await several(world, "a")
    await world.step("a", Event.TERMINATED, result=Result.SUCCEEDED)
    assert outcomes(await sent(world, {"verb": "kill", "ids": [id_]})) == ["done"]


async def test_a_priority_and_a_grace_reach_each(world: ApiWorld) -> None:
    """A batch sets the same values as the verb for one allocation."""
    ids = await several(world, "a", "b")
    await world.run("b")
    await sent(world, {"verb": "priority", "priority": 77, "ids": ids})
    assert [(await world.stored(name)).spec.priority for name in ("a", "b")] == [77, 77]
    await sent(world, {"verb": "kill", "grace": "20s", "ids": ["b"]})
    stored = await world.stored("b")
    assert (stored.spec.desired, stored.spec.signals and stored.spec.signals.grace_s) == ("Stopped", 20)


async def test_a_selector_chooses(world: ApiWorld) -> None:
    """A selector chooses by labels, phase, kind and owner; without phases it chooses work that has not ended. An empty
    selector is refused, so that it never chooses everything by accident."""
    for name in ("a", "b", "ended"):
        await world.launch(name=name, labels={"sweep": "lr"})
    await several(world, "other")
    await world.run("a")
    await world.step("ended", Event.TERMINATED, result=Result.FAILED)
    refused = await world.post("/allocations/batch", {"verb": "kill", "selector": {}})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/selector")
    chosen = {"labelSelector": "sweep=lr"}
    shown = await sent(world, {"verb": "kill", "selector": {**chosen, "phases": ["Running"]}, "dryRun": True})
    assert [(item["name"], item["phase"], item["outcome"]) for item in shown["items"]] == [("a", "Running", "done")]
    assert set((await desired(world)).values()) == {"Running"}
    done = await sent(world, {"verb": "kill", "selector": chosen})
    assert sorted(item["name"] for item in done["items"]) == ["a", "b"]
    assert await desired(world) == {"a": "Stopped", "b": "Stopped", "ended": "Running", "other": "Running"}
    rest = await sent(world, {"verb": "kill", "selector": {"all": True, "phases": ["Pending"]}, "dryRun": True})
    assert "other" in [item["name"] for item in rest["items"]]


async def test_a_selection_has_pages(world: ApiWorld) -> None:
    """A page has `limit` allocations; the cursors lead through all of them, once."""
    names = [f"run{number}" for number in range(7)]
    await several(world, *names)
    body: Json = {"verb": "priority", "priority": 9, "selector": {"all": True}, "limit": 3}
    seen: list[str] = []
    sizes: list[int] = []
    while True:
        answer = await sent(world, body)
        seen += [item["name"] for item in answer["items"]]
        sizes.append(len(answer["items"]))
        if "continue" not in answer["metadata"]:
            break
        body["continue"] = answer["metadata"]["continue"]
    assert sorted(seen) == names
    assert sizes == [3, 3, 1]


async def test_many_ids_are_read_by_the_page(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are not read one by one. Names, ended work, and allocations that the pages do not reach are still found."""
    monkeypatch.setattr("slipway.api.allocations.batch_routes.LIST_FROM", 4)
    monkeypatch.setattr("slipway.api.allocations.batch_routes.PAGE", 2)
    monkeypatch.setattr("slipway.api.allocations.batch_routes.LIST_PAGES_MAX", 1)
    ids = await several(world, "a", "b", "c", "ended")
    await world.step("ended", Event.TERMINATED, result=Result.SUCCEEDED)
    answer = await sent(world, {"verb": "kill", "ids": [*ids, "nothing"]})
    assert outcomes(answer) == ["done"] * 4 + ["notFound"]
    assert await desired(world) == {"a": "Stopped", "b": "Stopped", "c": "Stopped", "ended": "Running"}


async def test_delete_is_for_what_has_ended(world: ApiWorld) -> None:
    """Work that has not ended is refused and stays, until `force` ends it first; a batch that is sent again is done."""
    ids = await several(world, "ended", "waits", "runs")
    await world.step("ended", Event.TERMINATED, result=Result.SUCCEEDED)
    await world.run("runs")
    body: Json = {"verb": "delete", "ids": ids}
    assert outcomes(await sent(world, {**body, "dryRun": True})) == ["done", "refused", "refused"]
    assert await deleted(world) == []
    answer = await sent(world, body, **{"Idempotency-Key": "k"})
    assert outcomes(answer) == ["done", "refused", "refused"]
    problem = answer["items"][1]["problem"]
    assert (
        problem["status"],
        "is Pending, and only an allocation that has ended can be deleted" in problem["detail"],
    ) == (409, True)
    assert await deleted(world) == ["ended"]
    assert outcomes(await sent(world, {**body, "force": True}, **{"Idempotency-Key": "k"})) == ["done"] * 3
    assert await deleted(world) == ["ended", "runs", "waits"]


async def test_a_selection_to_delete_is_of_what_has_ended(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `force` or phases no live work is chosen; many ids are read by the page here too."""
    monkeypatch.setattr("slipway.api.allocations.batch_routes.LIST_FROM", 2)
    ids = await several(world, "one", "two", "waits")
    for name in ("one", "two"):
        await world.step(name, Event.TERMINATED, result=Result.FAILED)
    chosen: Json = {"verb": "delete", "selector": {"all": True}, "dryRun": True}

    def names(answer: Json) -> list[str]:
        return sorted(item["name"] for item in answer["items"])

    assert names(await sent(world, chosen)) == ["one", "two"]
    assert names(await sent(world, {**chosen, "force": True})) == ["one", "two", "waits"]
    waiting = {"verb": "delete", "selector": {"phases": ["Pending"]}, "dryRun": True}
    assert outcomes(await sent(world, waiting)) == ["refused"]
    assert outcomes(await sent(world, {"verb": "delete", "ids": ids[:2]})) == ["done", "done"]
    assert await deleted(world) == ["one", "two"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"verb": "kill"}, "/ids"),
        ({"verb": "hold", "ids": ["a"], "force": True}, "/force"),
        ({"verb": "delete", "ids": ["a"], "grace": "5s"}, "/grace"),
        ({"verb": "kill", "ids": ["a"], "selector": {"all": True}}, "/ids"),
        ({"verb": "kill", "ids": ["a"], "priority": 3}, "/priority"),
        ({"verb": "hold", "ids": ["a"], "grace": "5s"}, "/grace"),
        ({"verb": "kill", "ids": ["a"], "grace": "soon"}, "/grace"),
        ({"verb": "priority", "ids": ["a"]}, "/priority"),
        ({"verb": "move", "ids": ["a"]}, "/aheadOf"),
        ({"verb": "move", "ids": ["a"], "aheadOf": "b", "behind": "c"}, "/aheadOf"),
        ({"verb": "move", "ids": [f"r{number}" for number in range(101)], "behind": "c"}, "/ids"),
        ({"verb": "kill", "ids": ["a"] * 1001}, "/ids"),
        ({"verb": "kill", "ids": ["a"], "limit": 3}, "/limit"),
        ({"verb": "eat", "ids": ["a"]}, "/verb"),
    ],
)
async def test_what_does_not_go_together_is_refused(world: ApiWorld, body: Json, pointer: str) -> None:
    """The refusal names the field, before anything is looked up."""
    refused = await world.post("/allocations/batch", body)
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("beside", "order"),
    [("aheadOf", ["a", "b", "c", "y"]), ("behind", ["y", "a", "b", "c"])],
)
async def test_moves_keep_the_order_of_the_ids(world: ApiWorld, beside: str, order: list[str]) -> None:
    """The allocations that move keep the order in which they were named, ahead of another one or behind it."""
    await several(world, "c", "b", "a", "y")
    answer = await sent(world, {"verb": "move", "ids": ["a", "b", "c"], beside: "y"})
    assert outcomes(answer) == ["done"] * 3
    assert [item["name"] for item in answer["items"]] == ["a", "b", "c"]
    queue = (await world.get("/queues/default")).json()
    assert [entry["name"] for entry in queue["waiting"]] == order


async def test_beside_what_is_not_there(world: ApiWorld) -> None:
    """The move is refused, and the problem names the allocation that is not found."""
    await several(world, "a")
    answer = await sent(world, {"verb": "move", "ids": ["a"], "behind": "nothing"})
    assert outcomes(answer) == ["refused"]
    assert "nothing" in answer["items"][0]["problem"]["detail"]


async def test_a_key_acts_once_on_each(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again is done, and changes nothing: a kill is no second kill, and a hold that was undone
    stays undone. Allocations that the batch had not reached are still changed."""
    monkeypatch.setattr("slipway.api.allocations.verbs.SECOND_KILL_AFTER_S", 0.0)
    ids = await several(world, "a", "b", "c")
    await world.run("a")
    assert outcomes(await sent(world, {"verb": "kill", "ids": ids[:1]}, **{"Idempotency-Key": "k1"})) == ["done"]
    await world.step("a", Event.TERMINATING, reason="Killed")
    assert outcomes(await sent(world, {"verb": "kill", "ids": ids[:1]}, **{"Idempotency-Key": "k1"})) == ["done"]
    signals = (await world.stored("a")).spec.signals
    assert signals is None or signals.grace_s is None
    await sent(world, {"verb": "kill", "ids": ids[:1]}, **{"Idempotency-Key": "k2"})
    signals = (await world.stored("a")).spec.signals
    assert signals is not None
    assert signals.grace_s == 1
    await sent(world, {"verb": "hold", "ids": ids[1:2]}, **{"Idempotency-Key": "k3"})
    await world.post(f"/allocations/{ids[1]}/resume")
    again = await sent(world, {"verb": "hold", "ids": ids[1:]}, **{"Idempotency-Key": "k3"})
    assert outcomes(again) == ["done", "done"]
    assert [(await world.stored(name)).spec.hold for name in ("b", "c")] == [False, True]


async def test_a_key_is_for_one_verb(world: ApiWorld) -> None:
    """A used key is refused with another verb or value; another user's key is another key."""
    ids = await several(world, "a")
    await sent(world, {"verb": "priority", "priority": 5, "ids": ids}, **{"Idempotency-Key": "k"})
    other = await sent(world, {"verb": "priority", "priority": 6, "ids": ids}, **{"Idempotency-Key": "k"})
    assert [item["problem"]["code"] for item in other["items"]] == ["idempotency-key-reused"]
    eve = {"Idempotency-Key": "k", "X-Slipway-User": "eve"}
    assert outcomes(await sent(world, {"verb": "priority", "priority": 6, "ids": ids}, **eve)) == ["done"]
    assert (await world.stored("a")).spec.priority == 6


async def test_a_key_is_kept_where_nothing_is_annotated(world: ApiWorld) -> None:
    """An allocation that was applied by hand may have no annotation at all."""
    (id_,) = await several(world, "a")
    await world.kube.patch(ALLOCATIONS, "a", {"metadata": {"annotations": None}}, namespace="default")
    assert not (await world.stored("a")).metadata.annotations
    await sent(world, {"verb": "priority", "priority": 5, "ids": [id_]}, **{"Idempotency-Key": "k"})
    stored = await world.stored("a")
    assert (stored.spec.priority, list(stored.metadata.annotations)) == (5, [ANNOTATION_BATCH])


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncGenerator[Teams]:
    """An api in mode `token`."""
    async with teams_world("token", tmp_path) as world:
        yield world


async def test_each_item_of_a_batch_is_authorised_like_a_single_call(
    teams: Teams, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that the caller may see and not change is forbidden, work that it may not see is not found. The rest is
    done, and each has a line in the audit log."""
    headers = await teams.token("ada", {"team-red": "editor"})
    body = {"verb": "priority", "priority": 4, "ids": [teams.ids["red"], teams.ids["blue"]]}
    with caplog.at_level(logging.INFO):
        answer = (await teams.call("POST", "/allocations/batch", headers, json=body)).json()
    assert outcomes(answer) == ["done", "notFound"]
    lines = [record for record in caplog.records if record.message == "audit"]
    assert len(lines) == 3
    viewer = await teams.token("vic", {"team-red": "viewer"})
    looked = (await teams.call("POST", "/allocations/batch", viewer, json=body)).json()
    assert outcomes(looked) == ["refused", "notFound"]
    assert looked["items"][0]["problem"]["code"] == "forbidden"
    removed = {"verb": "delete", "force": True, "ids": [teams.ids["red"], teams.ids["blue"]]}
    refused = (await teams.call("POST", "/allocations/batch", viewer, json=removed)).json()
    assert outcomes(refused) == ["refused", "notFound"]
    assert refused["items"][0]["problem"]["code"] == "forbidden"
    moved = {"verb": "move", "ids": [teams.ids["blue"], teams.ids["red"]], "behind": teams.ids["blue"]}
    answer = (await teams.call("POST", "/allocations/batch", headers, json=moved)).json()
    assert outcomes(answer) == ["notFound", "refused"]
    assert "team-blue" not in str(answer)
    chosen = {"verb": "kill", "selector": {"all": True}, "dryRun": True}
    seen = (await teams.call("POST", "/allocations/batch", headers, json=chosen)).json()
    assert {item["workspace"] for item in seen["items"]} == {"team-red"}


async def test_a_batch_has_bounded_concurrency() -> None:
    """One batch has LANES calls under way, all together LANES_OF_ALL; each outcome is at its place."""
    lanes = BatchLimits(SystemClock(), request_s=30)
    under_way = most = 0

    async def do(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if number % 7 == 0:
            raise NotFoundError(str(number))
        return number

    async def one(user: str) -> None:
        async with lanes.turn(user) as turn:
            found = await turn.each(range(60), do)
        for number, each in enumerate(found):
            assert str(each) == str(number)
            assert isinstance(each, NotFoundError) is (number % 7 == 0)

    await one("ada")
    assert most == bounds.LANES
    most = 0
    await asyncio.gather(*(one(f"user{number}") for number in range(5)))
    assert most == bounds.LANES_OF_ALL


async def test_one_batch_of_a_user_at_a_time() -> None:
    """The next batch of a user waits; when that takes too long, it is asked to try again."""
    lanes = BatchLimits(SystemClock(), request_s=0.05)
    async with lanes.turn("ada"):
        with pytest.raises(ThrottledError, match="another batch of ada is under way"):
            async with lanes.turn("ada"):
                pass
        async with lanes.turn("eve") as turn:
            assert await turn.each([], _never) == []
    async with lanes.turn("ada"):
        pass


async def test_items_after_the_deadline_are_not_changed() -> None:
    """A call that has begun is finished; the outcome of the others is BatchDeadlineError."""
    lanes = BatchLimits(SystemClock(), request_s=0.1)
    touched: list[int] = []

    async def slow(number: int) -> int:
        touched.append(number)
        await asyncio.sleep(0.1)
        return number

    async with lanes.turn("ada") as turn:
        found = await turn.each(range(5), slow, lanes=1)
    assert touched == [0]
    assert found[0] == 0
    assert all(isinstance(each, BatchDeadlineError) for each in found[1:])


async def test_an_internal_error_is_no_item_result() -> None:
    """The error is raised as it is, so that the process learns of it."""
    lanes = BatchLimits(SystemClock(), request_s=30)

    async def broken(number: int) -> int:
        raise InvariantError(str(number))

    with pytest.raises(InvariantError):
        async with lanes.turn("ada") as turn:
            await turn.each(range(3), broken)


async def _never(number: int) -> int:
    raise AssertionError(number)
