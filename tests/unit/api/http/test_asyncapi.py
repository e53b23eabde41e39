"""The AsyncAPI document is valid, and true of the events that are sent."""

import json
import warnings
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from slipway.api.http import documents
from slipway.api.http.cloudevents import cloud_event
from slipway.api.webhooks import hook
from slipway.crd.transitions import event_of, ring_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.events import TYPE_PREFIX, AllocationEvent
from slipway.model.lifecycle import Event, is_legal
from slipway.streams import keys
from slipway.streams.codec import encode_event
from tests.support.api_world import ApiWorld
from tests.support.builders import an_allocation

Json = dict[str, Any]
USED: Json = {"slots": 2, "seconds": {"Running": 5.25}}
CAUSE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def document() -> Json:
    """The document."""
    return documents.document("1.2.3")


def events() -> list[AllocationEvent]:
    """Real events of every type: two attempts of one allocation, and the other types with the common fields only."""
    story = an_allocation().assigned().running().ready()
    story = story.recorded(Event.UPDATED, at_s=5, data={"grown": [2, 3], "slots": 4})
    story = story.recorded(Event.PREEMPTING, at_s=6, data={"n": 1, "requeue": True, "deadline": "2026-01-02T03:04:05Z"})
    story = story.recorded(Event.TERMINATING, at_s=7, reason="Preempted")
    again = story.recorded(Event.RESTARTED, at_s=8, data={"counted": False, **USED})
    over = story.recorded(Event.TERMINATED, at_s=8, data={"result": "Succeeded", **USED})
    found: dict[str, AllocationEvent] = {}
    for each in (again.it, over.it):
        found |= {event.type.value: event for event in published_events(each)}
    for new in (each for each in Event if each.value not in found):
        stages = (an_allocation(), an_allocation().assigned(), an_allocation().assigned().running())
        stage = next(each for each in stages if is_legal(each.it.status.phase, new))
        found[new.value] = published_events(stage.recorded(new, at_s=9).it)[-1]
    return list(found.values())


def published_events(allocation: Allocation) -> list[AllocationEvent]:
    return [event_of(allocation, entry) for entry in ring_of(allocation)]


def schema_of(document: Json, part: Json) -> jsonschema_rs.Draft7Validator:
    """A validator for a part of a message."""
    return jsonschema_rs.Draft7Validator({**part, "components": document["components"]})


def test_the_document_is_valid(document: Json) -> None:
    """A reader of the specification that is not ours finds nothing wrong with it."""
    # Imported here, because its models take long to build, and warn of their own names.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from asyncapi3 import AsyncAPI3
        from pydantic import ValidationError

    read = AsyncAPI3.model_validate(document)
    assert read.asyncapi == "3.0.0"
    with pytest.raises(ValidationError):
        AsyncAPI3.model_validate({**document, "channels": {"x": {"adress": "typo"}}})


def test_every_event_conforms_in_the_streams_and_in_webhooks(document: Json) -> None:
    """In binary mode the attributes are headers and `data` is the payload; in structured mode the event is one body."""
    messages: Json = document["components"]["messages"]
    assert {event.type for event in events()} == set(Event)
    for event in events():
        for each in (event, msgspec.structs.replace(event, traceparent=CAUSE, truncated="1-2", seq=2)):
            fields = {name: value.decode() for name, value in encode_event(each).items()}
            binary, structured = messages[each.type.value], messages[f"{each.type.value}Webhook"]
            schema_of(document, binary["payload"]).validate(json.loads(fields.pop("data")))
            schema_of(document, binary["headers"]).validate(fields)
            assert fields.keys() <= binary["headers"]["properties"].keys()
            body = cloud_event(each)
            schema_of(document, structured["payload"]).validate(json.loads(body))
            sent = hook.headers(b"key", each.event_id, body, now=1.0)
            schema_of(document, structured["headers"]).validate(sent)


def test_an_event_of_another_type_or_without_a_field_does_not_conform(document: Json) -> None:
    """The schemas do not accept everything."""
    messages: Json = document["components"]["messages"]
    [event] = [each for each in events() if each.type is Event.TERMINATED]
    body: Json = json.loads(cloud_event(event))
    assert not schema_of(document, messages["runningWebhook"]["payload"]).is_valid(body)
    for name in ("id", "subject", "time"):
        less = {key: value for key, value in body.items() if key != name}
        assert not schema_of(document, messages["terminatedWebhook"]["payload"]).is_valid(less)
    wrong = {**body, "data": {**body["data"], "phase": "Done"}}
    assert not schema_of(document, messages["terminatedWebhook"]["payload"]).is_valid(wrong)


def test_every_property_says_what_it_means(document: Json) -> None:
    """Every property of a message has a description."""
    parts: dict[str, Json] = dict(document["components"]["schemas"])
    for name, message in document["components"]["messages"].items():
        parts |= {f"{name}.{part}": message[part] for part in ("headers", "payload") if "$ref" not in message[part]}
    bare = [
        f"{name}.{field}"
        for name, schema in parts.items()
        for field, each in schema["properties"].items()
        if "$ref" not in each and not each.get("description")
    ]
    assert bare == []


def test_the_channels_are_the_keys_of_redis(document: Json) -> None:
    """The address of a channel, with its parameter, is a key of the table."""
    channels: Json = document["channels"]
    shards: list[str] = channels["firehose"]["parameters"]["shard"]["enum"]
    assert tuple(channels["firehose"]["address"].format(shard=each) for each in shards) == keys.EVENT_KEYS
    [event, *_] = events()
    example = f"{{{event.allocation_id}}}"
    assert channels["allocation"]["address"].format(allocation=example) == keys.allocation(event.allocation_id)
    assert channels["firehose"]["messages"].keys() == {each.value for each in Event}
    assert {each["name"] for each in document["components"]["messages"].values()} == {
        f"{TYPE_PREFIX}{each.value}" for each in Event
    }


async def test_it_is_served_beside_the_openapi_document(world: ApiWorld) -> None:
    """The AsyncAPI document needs no token, like the OpenAPI document."""
    answer = await world.http.get("/asyncapi.json")
    assert answer.status_code == 200
    assert answer.json()["channels"] == documents.document("")["channels"]
    assert "/asyncapi.json" in (await world.http.get("/docs")).text
