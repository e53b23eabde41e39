"""The OpenAPI 3.1 document, made of the route table and the msgspec structs: it cannot say anything else. Pure."""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec

from slipway.api.endpoint import JSON_TYPE, Endpoint
from slipway.api.problems import PROBLEM_TYPE, Problem
from slipway.api.schemas import LaunchBody

Json = dict[str, Any]

TITLE = "Slipway"
_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_PATH_TEXT = {
    "id": "AllocationID; also the name, or the unique beginning of the id",
    "name": "name",
    "rank": "rank, from 0",
    "letter": "id of the dead letter",
}
_EXAMPLE: Json = {"kind": "command", "image": "python:3.12-slim", "command": ["python", "-c", "print('hello')"]}


def document(endpoints: Iterable[Endpoint], version: str) -> Json:
    """The whole document."""
    rows = list(endpoints)
    types: list[Any] = [Problem]
    for row in rows:
        named = (row.body, row.answer, *chain.from_iterable(row.also.values()))
        types += [each for each in named if each is not None and each not in types]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(str, types), schemas, strict=True))
    _complete(components)
    paths: Json = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": version,
            "description": "Launches AI workloads on Kubernetes. Errors are RFC 9457 problems, times RFC 3339 in UTC.",
        },
        "paths": paths,
        "components": {"schemas": components, "headers": _HEADERS, "securitySchemes": _SCHEMES},
    }


_HEADERS: Json = {
    "Idempotency-Key": {
        "description": "The same key and body launch once, however often they are sent.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    }
}


_SCHEMES: Json = {
    "task": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The token of a rank, from the file $SLIPWAY_TOKEN_FILE; for its own allocation only.",
    }
}


def _operation(row: Endpoint, by_type: Json) -> Json:
    operation: Json = {
        "operationId": _operation_id(row),
        "summary": row.summary,
        "tags": [row.tag],
        "parameters": _parameters(row),
        "responses": {str(row.status): _response(row, by_type), **_others(row, by_type), "default": _PROBLEM},
    }
    if row.for_tasks:
        operation["security"] = [{}, {"task": []}]
    if row.body is not None:
        content: Json = {"schema": by_type[str(row.body)]}
        if row.body is LaunchBody:
            content["example"] = _EXAMPLE
        operation["requestBody"] = {"content": {JSON_TYPE: content}}
    return operation


_PROBLEM: Json = {
    "description": "a problem",
    "content": {PROBLEM_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
}


def _parameters(row: Endpoint) -> list[Json]:
    found: list[Json] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_TEXT.get(name, name),
            "schema": {"type": "string"},
        }
        for name in _PARAMETER.findall(row.path)
    ]
    found += [
        {"name": query.name, "in": "query", "description": query.description, "schema": {"type": query.type}}
        for query in row.query
    ]
    if row.body is LaunchBody:
        header = _HEADERS["Idempotency-Key"]
        found.append({"name": "Idempotency-Key", "in": "header", **header})
    return found


def _response(row: Endpoint, by_type: Json) -> Json:
    response: Json = {"description": row.summary}
    if row.answer is not None:
        others: Json = {media_type: {} for media_type in row.media_types}
        response["content"] = {**others, JSON_TYPE: {"schema": by_type[str(row.answer)]}}
    elif row.media_types != (JSON_TYPE,):
        response["content"] = {media_type: {} for media_type in row.media_types}
    return response


def _others(row: Endpoint, by_type: Json) -> Json:
    return {
        str(status): {
            "description": row.summary,
            "content": {JSON_TYPE: {"schema": {"anyOf": [by_type[str(each)] for each in types]}}},
        }
        for status, types in row.also.items()
    }


def _operation_id(row: Endpoint) -> str:
    words = [word for word in re.split(r"\W+", row.path.removeprefix("/api/v1")) if word]
    return "_".join([row.method.lower(), *words])


def _complete(components: Json) -> None:
    """What the structs cannot say: a launch names a template, or carries one."""
    launch = components["LaunchBody"]["properties"]
    launch["template"] = {
        "description": "a PodTemplateSpec, or the name of a Template of the workspace",
        "anyOf": [{"type": "object"}, {"type": "string"}],
        "default": {},
    }
