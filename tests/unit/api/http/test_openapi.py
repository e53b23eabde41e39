"""The OpenAPI document is valid and described, with its ways to log in and its streams."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from slipway.api.app import ENDPOINTS
from slipway.api.http import openapi
from slipway.api.http.openapi import TEXTS
from slipway.api.schemas import PoolView
from slipway.crd.schema import doc_of, field_docs
from slipway.crd.v1alpha1 import AllocationSpec
from tests.support.api_world import ApiWorld

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Json:
    """The document."""
    return openapi.document(ENDPOINTS, "1.2.3")


def test_the_document_is_valid(document: Json) -> None:
    """A validator that is not ours finds nothing wrong with it."""
    # Imported here: it compiles grammars for two seconds, which each worker would pay to collect this file.
    from openapi_spec_validator import OpenAPIV31SpecValidator

    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_every_property_says_what_it_means(document: Json) -> None:
    """Every property of a body has a description."""
    schemas: dict[str, Json] = document["components"]["schemas"]
    bare = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, each in schema.get("properties", {}).items()
        if not str(each.get("description", "")).strip()
    ]
    assert bare == []


def test_a_launch_has_no_default_that_a_client_would_send(document: Json) -> None:
    """A template is a name or an object: clients made of the document sent a default of it as a name."""
    assert "default" not in document["components"]["schemas"]["LaunchBody"]["properties"]["template"]


def test_every_list_says_what_its_items_are(document: Json) -> None:
    """Generators leave out a schema that has an array without items."""
    bare: list[Json] = []

    def look(schema: Any) -> None:
        if isinstance(schema, list):
            for each in cast("list[Any]", schema):
                look(each)
        elif isinstance(schema, dict):
            found = cast("Json", schema)
            if found.get("type") == "array" and not found.keys() & {"items", "prefixItems"}:
                bare.append(found)
            for each in found.values():
                look(each)

    look(document["components"])
    assert bare == []


def test_every_parameter_and_answer_has_words(document: Json) -> None:
    """Parameters and answers have descriptions too."""
    operations = [each for row in document["paths"].values() for each in row.values()]
    assert len(operations) > 80
    for operation in operations:
        assert all(parameter["description"] for parameter in operation["parameters"])
        assert all(response["description"] for response in operation["responses"].values())


def test_no_text_of_a_route_has_a_placeholder(document: Json) -> None:
    """A text with a name in braces was meant to contain the value of that name."""

    def texts(node: Any) -> Iterator[str]:
        for key, each in cast("Json", node).items() if isinstance(node, dict) else enumerate(cast("list[Any]", node)):
            if isinstance(each, dict | list):
                yield from texts(each)
            elif key in ("summary", "description"):
                yield str(each)

    assert [text for text in texts(document["paths"]) if "{" in text] == []


def test_every_text_of_the_table_is_used(document: Json) -> None:
    """A text whose property does not exist any more is removed."""
    schemas: dict[str, Json] = document["components"]["schemas"]
    names = {name for schema in schemas.values() for name in schema.get("properties", {})}
    whole = {f"{name}.{field}" for name, schema in schemas.items() for field in schema.get("properties", {})}
    assert {key for key in TEXTS if key not in names | whole} == set()


def test_a_text_below_a_field_goes_before_the_table(document: Json) -> None:
    """The text below a struct's field is its description; a launch inherits the texts of the custom resource."""
    below = doc_of(AllocationSpec, "preemptible")
    assert below
    assert document["components"]["schemas"]["LaunchBody"]["properties"]["preemptible"]["description"] == below


def test_without_its_source_a_struct_has_no_texts() -> None:
    """A program whose source is not there starts all the same."""
    assert field_docs("/nowhere/at/all.py") == {}
    assert doc_of(int, "x") == ""


def test_the_ways_to_log_in_are_named(document: Json) -> None:
    """A generated client can send a token; the routes for tasks accept only that of the task."""
    schemes: Json = document["components"]["securitySchemes"]
    assert set(schemes) == {"token", "kubernetes", "session", "task"}
    assert document["security"] == [{}, {"token": []}, {"kubernetes": []}, {"session": []}]
    named = [
        each
        for row in document["paths"].values()
        for operation in row.values()
        for each in operation.get("security", [])
    ]
    assert {name for each in named for name in each} == {"task"}


@pytest.mark.parametrize("path", ["/api/v1/allocations/{id}/events", "/api/v1/events", "/api/v1/allocations/{id}/logs"])
def test_streams_are_described(document: Json, path: str) -> None:
    """Server-sent events have a schema that says what an entry is, and how to go on."""
    stream = document["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"]
    assert stream["schema"]["type"] == "string"
    assert "Last-Event-ID" in stream["schema"]["description"]


async def test_what_is_served_is_this_document(world: ApiWorld, document: Json) -> None:
    """`/openapi.json` and `/docs` have the same routes."""
    served: Json = (await world.http.get("/openapi.json")).json()
    assert served["components"]["schemas"].keys() == document["components"]["schemas"].keys()
    assert "/api/v1/allocations/{id}/explain" in (await world.http.get("/docs")).text


def test_the_text_below_a_field_is_its_description_in_every_list_of_items(document: Json) -> None:
    """Lists are one generic struct: the structs of their items are all found, not those of the first list only."""
    described = document["components"]["schemas"]["PoolView"]["properties"]["gpus"]["description"]
    assert described == doc_of(PoolView, "gpus") != ""
