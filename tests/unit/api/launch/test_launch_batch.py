"""Many launches in one request: the outcome of each, and that a key launches each of them once."""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from slipway.crd.transitions import id_of
from slipway.kube.resources import SECRETS
from slipway.model.ids import values_name
from tests.support.access import Teams, teams_world
from tests.support.api_world import COMMAND, ApiWorld

Json = dict[str, Any]
PATH = "/allocations/launches"
SERVICE: Json = {"name": "llm", "port": 8000}


def of(*names: str, **common: Any) -> Json:
    """The body for launches of these names."""
    return {"launch": {**COMMAND, **common}, "each": [{"name": name, "env": {"WHICH": name}} for name in names]}


async def sent(world: ApiWorld, body: Json, **headers: str) -> Json:
    """Send launches that must be accepted, and return the answer."""
    answer = await world.post(PATH, body, **headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def outcomes(answer: Json) -> list[str]:
    return [item["outcome"] for item in answer["items"]]


BAD: list[tuple[Json, str]] = [
    ({"launch": COMMAND}, "/each"),
    ({"launch": {**COMMAND, "name": "a", "replicas": 2}}, "/launch/replicas"),
    ({"launch": {**COMMAND, "service": SERVICE, "replicas": 2}}, "/launch/name"),
    *(
        ({"launch": {**COMMAND, "name": "a", "service": SERVICE, "replicas": count}}, "/launch/replicas")
        for count in (0, -1, 201, 1.5, True, "2", None)
    ),
    ({"launch": {**COMMAND, "name": "a", "service": SERVICE, "replicas": 2}, "each": [{"name": "a"}]}, "/each"),
    ({"launch": COMMAND, "each": []}, "/each"),
    ({"launch": COMMAND, "each": [{}]}, "/each/0/name"),
    ({"launch": COMMAND, "each": [{"name": "a"}, {"name": 3}]}, "/each/1/name"),
    ({"launch": COMMAND, "each": [{"name": "a"}, {"name": "a"}]}, "/each/1/name"),
    ({"launch": COMMAND, "each": [{"name": "a", "workspace": "w"}]}, "/each/0/workspace"),
    ({"launch": COMMAND, "each": [{"name": "a", "secretValues": {"A": "b"}}]}, "/each/0/secretValues"),
    ({"launch": {**COMMAND, "secretValues": {"A": 1}}, "each": [{"name": "a"}]}, "/launch/secretValues/A"),
    ({"launch": COMMAND, "each": [{"name": f"a{number}"} for number in range(201)]}, "/each"),
    ({"launch": COMMAND, "each": [{"name": "a"}], "dryRun": True}, "/dryRun"),
]


async def test_replicas_are_launches_behind_one_service(world: ApiWorld) -> None:
    """Each replica has a name and an index of its own; the same key with more replicas launches only the new ones."""
    common = {**COMMAND, "name": "llm", "service": SERVICE, "env": {"A": "b"}}
    answer = await sent(world, {"launch": {**common, "replicas": 2}}, **{"Idempotency-Key": "k"})
    assert [item["name"] for item in answer["items"]] == ["llm-0", "llm-1"]
    for index, name in enumerate(("llm-0", "llm-1")):
        stored = await world.stored(name)
        assert stored.spec.env == {"A": "b", "REPLICA_INDEX": str(index)}
        assert stored.spec.service is not None
        assert stored.spec.service.name == "llm"
    more = await sent(world, {"launch": {**common, "replicas": 3}}, **{"Idempotency-Key": "k"})
    assert outcomes(more) == ["replayed", "replayed", "launched"]


async def test_one_launch_is_not_several(world: ApiWorld) -> None:
    """`POST /allocations` makes one: its refusal names the route for several, and its dry run shows the first."""
    body = {**COMMAND, "name": "llm", "service": SERVICE, "replicas": 2}
    refused = await world.post("/allocations", body)
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/replicas"]
    assert "/allocations/launches" in refused.text
    shown = (await world.post("/allocations?dryRun=true", body)).json()
    assert shown["name"] == "llm-0"
    assert shown["spec"]["env"] == {"REPLICA_INDEX": "0"}
    wrong = await world.post("/allocations?dryRun=true", {**body, "service": None})
    assert [error["pointer"] for error in wrong.json()["errors"]] == ["/replicas"]


async def test_each_is_the_launch_of_what_is_common_and_its_own(world: ApiWorld) -> None:
    """Objects are merged; the answer has the id of each, in the order of `each`."""
    answer = await sent(world, of("a", "b", env={"LR": "0.1"}))
    assert outcomes(answer) == ["launched", "launched"]
    assert answer["counts"] == {"launched": 2}
    for item, name in zip(answer["items"], ("a", "b"), strict=True):
        stored = await world.stored(name)
        assert item["id"] == id_of(stored)
        assert stored.spec.env == {"LR": "0.1", "WHICH": name}


async def test_one_that_is_refused_keeps_no_other_from_being_launched(world: ApiWorld) -> None:
    """A refused launch has the problem that the same launch alone would have."""
    await world.launch(name="b")
    body = of("a", "b", "c")
    body["each"][2]["priority"] = 5000
    answer = await sent(world, body)
    assert outcomes(answer) == ["launched", "refused", "refused"]
    alone = (await world.post("/allocations", {**COMMAND, "name": "c", "priority": 5000})).json()
    told = answer["items"][2]["problem"]
    assert {name: told[name] for name in ("status", "code", "detail", "errors")} == {
        name: alone[name] for name in ("status", "code", "detail", "errors")
    }
    assert answer["items"][1]["problem"]["code"] == "already-exists"


async def test_a_key_launches_each_once(world: ApiWorld) -> None:
    """The same key launches nothing twice, also with new names beside it; the same name with another body is
    refused."""
    key = {"Idempotency-Key": "k"}
    first = await sent(world, of("a", "b"), **key)
    again = await sent(world, of("b", "c"), **key)
    assert outcomes(again) == ["replayed", "launched"]
    assert again["items"][0]["id"] == first["items"][1]["id"]
    other = await sent(world, of("a", image="other"), **key)
    assert other["items"][0]["problem"]["code"] == "idempotency-key-reused"
    assert sorted(await world.names()) == ["a", "b", "c"]


async def test_secret_values_are_those_of_each(world: ApiWorld) -> None:
    """Each allocation owns a Secret with the values; the answer does not repeat them."""
    answer = await world.post(PATH, of("a", "b", secretValues={"TOKEN": "hush-hush"}))
    assert "hush" not in answer.text
    for name in ("a", "b"):
        stored = await world.stored(name)
        assert stored.spec.secret_variables == ["TOKEN"]
        await world.kube.get(SECRETS, values_name(stored.metadata.uid), namespace="default")


@pytest.mark.parametrize(("body", "pointer"), BAD)
async def test_what_is_no_such_request_is_refused(world: ApiWorld, body: Json, pointer: str) -> None:
    """The whole request is refused, with the field, before anything is launched."""
    refused = await world.post(PATH, body)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer), refused.text
    assert await world.names() == []


async def test_what_is_not_reached_in_time_says_so(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that was not reached in time is not made, and can be sent again."""
    monkeypatch.setattr(world.parts.batches, "_time_s", -1.0)
    answer = await sent(world, of("a"))
    assert outcomes(answer) == ["notReached"]


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncGenerator[Teams]:
    """An api in mode `token`."""
    async with teams_world("token", tmp_path) as world:
        yield world


async def test_the_right_is_asked_for_in_the_workspace(teams: Teams, caplog: pytest.LogCaptureFixture) -> None:
    """A caller without the right launches none there; for a caller with the right the audit log has a line for each
    launch."""
    headers = await teams.token("ada", {"team-red": "editor"})
    elsewhere = await teams.call("POST", PATH, headers, json=of("a", workspace="team-blue"))
    assert elsewhere.status_code in (403, 404), elsewhere.text
    with caplog.at_level(logging.INFO):
        answer = await teams.call("POST", PATH, headers, json=of("a", "b", workspace="team-red"))
    assert outcomes(answer.json()) == ["launched", "launched"]
    lines = [record.__dict__ for record in caplog.records if record.message == "audit"]
    assert len(lines) == 3
