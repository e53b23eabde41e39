"""The OpenAPI 3.1 document, generated from the route table and the msgspec structs, so that it cannot contradict them.

Pure, except that the texts below the fields of structs are read from the source files.
"""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any, cast, get_origin

import msgspec
from msgspec import inspect

from slipway.api.access import session
from slipway.api.endpoint import JSON_TYPE, Endpoint
from slipway.api.problems import PROBLEM_TYPE
from slipway.api.property_texts import text_of
from slipway.api.schemas import LaunchBody, Problem
from slipway.api.sse import SSE_TYPE
from slipway.crd import fielddocs

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
    _describe(components, _structs_of(types))
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
        "security": [{}, {"token": []}, {"kubernetes": []}, {"session": []}],
    }


_HEADERS: Json = {
    "Idempotency-Key": {
        "description": "Requests with the same key and body launch only once.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    },
    "If-Match": {
        "description": "The ETag of the version that you read; 412 when the object has another version by now.",
        "schema": {"type": "string"},
    },
}


_SCHEMES: Json = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "With SLIPWAY_AUTH=token: a token that `slipway token create` made.",
    },
    "kubernetes": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "With SLIPWAY_AUTH=kubernetes: a token of the cluster, of a user or a service account.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": session.NAME,
        "description": "The cookie of a browser that has logged in at /login; over TLS, its name begins with __Host-.",
    },
    "task": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The token of a rank, from the file $SLIPWAY_TOKEN_FILE; for its own allocation only.",
    },
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
    headers = {"Idempotency-Key": row.body is LaunchBody, "If-Match": row.has_condition}
    return found + [{"name": name, "in": "header", **_HEADERS[name]} for name, is_taken in headers.items() if is_taken]


_MEDIA: Json = {
    SSE_TYPE: {
        "schema": {
            "type": "string",
            "description": "Server-sent events. `id` is the cursor: send it as Last-Event-ID, and the stream continues "
            "after it. An `id` without `data` is not an event but the position at which the stream begins. `data` is "
            "one line of JSON. A line `: alive` is sent when there are no events.",
        },
        "example": "id: 1767322800000-3\ndata: {...}\n\n",
    },
    JSON_TYPE: {
        "schema": {
            "type": "object",
            "description": "A page: its items, and in metadata.continue the cursor of the next page.",
            "required": ["items"],
            "properties": {
                "items": {"type": "array", "items": {"type": "object"}, "description": "the entries, in order"},
                "metadata": {"$ref": _REF.format(name="ListMetadata"), "description": "about the list"},
            },
        }
    },
    "text/plain": {"schema": {"type": "string", "description": "One line for each entry."}},
    "text/csv": {"schema": {"type": "string", "description": "The same rows, with a header line."}},
    "application/gzip": {"schema": {"type": "string", "format": "binary", "description": "A gzipped tar archive."}},
}
"""{media type: its content} for answers that no struct describes."""


def _response(row: Endpoint, by_type: Json) -> Json:
    response: Json = {"description": row.summary}
    if row.answer is not None:
        others: Json = {media_type: _MEDIA.get(media_type, {}) for media_type in row.media_types}
        response["content"] = {**others, JSON_TYPE: {"schema": by_type[str(row.answer)]}}
    elif row.media_types != (JSON_TYPE,):
        response["content"] = {media_type: _MEDIA.get(media_type, {}) for media_type in row.media_types}
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
    """Add what the structs cannot express: the `template` of a launch is a pod template, or the name of a Template."""
    launch = components["LaunchBody"]["properties"]
    launch["template"] = {
        "description": "a PodTemplateSpec, or the name of a Template of the workspace",
        "anyOf": [{"type": "object"}, {"type": "string"}],
    }
    for schema in components.values():
        _say_items(schema)


def _say_items(schema: Any) -> None:
    """Give each array schema without items an empty `items`: generators of clients refuse an array without it."""
    if isinstance(schema, list):
        for each in cast("list[Any]", schema):
            _say_items(each)
    elif isinstance(schema, dict):
        found = cast("Json", schema)
        if found.get("type") == "array" and not found.keys() & {"items", "prefixItems"}:
            found["items"] = {}
        for each in found.values():
            _say_items(each)


def _describe(components: Json, structs: dict[str, type]) -> None:
    """Describe each property: by the annotation in its struct, the text below the field, or the table of names."""
    for component, schema in components.items():
        struct = structs.get(component)
        fields = {each.encode_name: each.name for each in msgspec.structs.fields(struct)} if struct is not None else {}
        for name, each in schema.get("properties", {}).items():
            if each.get("default") == "" and not _may_be_empty(each):
                # A client may omit the property, but must not send the empty text, so "" is no valid default.
                del each["default"]
            if "description" in each:
                continue
            below = fielddocs.doc_of(struct, fields[name]) if struct is not None and name in fields else ""
            text = below or text_of(component, name)
            if text:
                each["description"] = text


def _may_be_empty(schema: Json) -> bool:
    return not schema.get("minLength") and re.search(str(schema.get("pattern", "")), "") is not None


def _structs_of(types: Iterable[Any]) -> dict[str, type]:
    """Return all structs that the types contain, by name."""
    found: dict[str, type] = {}
    waiting: list[Any] = list(inspect.multi_type_info(types))
    while waiting:
        info = waiting.pop()
        if isinstance(info, inspect.StructType):
            # Lists of different items share the name `Items`, so each of them is searched.
            if info.cls.__name__ in found and get_origin(info.cls) is None:
                continue
            found[info.cls.__name__] = info.cls
            waiting += [each.type for each in info.fields]
        for name in ("type", "item_type", "key_type", "value_type"):
            part = getattr(info, name, None)
            waiting += [part] if isinstance(part, inspect.Type) else []
        for name in ("types", "item_types"):
            waiting += getattr(info, name, None) or ()
    return found
