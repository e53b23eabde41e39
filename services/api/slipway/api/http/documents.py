"""The documents of the api about itself: OpenAPI, AsyncAPI, and `/docs`, the route table as one page of HTML.

The page has no scripts and no external resources.

The AsyncAPI 3 document is about the events that Slipway sends: the streams on Redis, and webhooks. It is built from the
same structs and tables that produce the events: event types from the lifecycle, common fields from `AllocationEvent`,
keys and shards from the table of keys, headers from the signature. A test checks real events against it.
"""

import asyncio
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.http.endpoint import JSON_TYPE, Endpoint
from slipway.api.webhooks import hook
from slipway.api.webhooks.formats import CLOUDEVENTS_TYPE
from slipway.model.events import TYPE_PREFIX, AllocationEvent
from slipway.model.lifecycle import Event, Kind
from slipway.model.reasons import Result
from slipway.runtime.service import version
from slipway.streams import keys
from slipway.streams.codec import SOURCE_PREFIX

POLICY = "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
_START = """curl -X POST {base}/api/v1/allocations -H 'Content-Type: application/json' \\
  -d '{{"kind": "command", "image": "python:3.12-slim", "command": ["python", "-c", "print(42)"]}}'
curl {base}/api/v1/allocations/ID/explain
curl -N {base}/api/v1/allocations/ID/events
curl {base}/api/v1/allocations/ID/logs?follow=true"""


def page(endpoints: Sequence[Endpoint], schemas: dict[str, Any], base: str) -> str:
    """Return the page."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width"><title>Slipway API</title>',
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/assets/docs/docs.css">',
        "</head><body><h1>Slipway API</h1>",
        '<p>Everything here is also in <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1), events and ',
        'webhooks in <a href="/asyncapi.json">/asyncapi.json</a> (AsyncAPI 3). Errors are ',
        "<code>application/problem+json</code> with a JSON pointer per bad field.</p>",
        f"<pre>{escape(_START.format(base=base))}</pre>",
    ]
    for tag, rows in groupby(sorted(endpoints, key=lambda row: row.tag), key=lambda row: row.tag):
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [_row(row, schemas) for row in rows]
    parts.append("</body></html>")
    return "".join(parts)


def _row(row: Endpoint, schemas: dict[str, Any]) -> str:
    terms = [(f"?{query.name}", query.description) for query in row.query]
    if row.body is not None:
        terms += [(name, _text(field)) for name, field in _fields(row.body, schemas).items()]
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in terms)
    return (
        f'<details><summary><span class="method">{row.method}</span><code>{escape(row.path)}</code>'
        f'<span class="what">{escape(row.summary)}</span></summary>'
        f"<dl>{body or '<dd>no parameters</dd>'}</dl></details>"
    )


def _fields(body: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    return schemas.get(getattr(body, "__name__", ""), {}).get("properties", {})


def _text(field: dict[str, Any]) -> str:
    """Return the type, description and default of a field in a few words."""
    kinds = [field.get("type") or field.get("$ref", "").rpartition("/")[2]]
    for option in field.get("anyOf", ()):
        kinds.append(option.get("type") or option.get("$ref", "").rpartition("/")[2])
    words = [" or ".join(str(kind) for kind in kinds if kind and kind != "null")]
    words += [str(field["description"])] if "description" in field else []
    words += [f"default {field['default']}"] if field.get("default") not in (None, "", [], {}) else []
    return "; ".join(words)


Json = dict[str, Any]

PAYLOAD_TYPE = "application/json"
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_ATTRIBUTES: dict[str, Json] = {
    "specversion": {"const": "1.0", "description": "version of CloudEvents"},
    "id": {
        **_TEXT,
        "pattern": "^[^/]+/[1-9][0-9]*$",
        "description": (
            "<AllocationID>/<seq>; the same when the event is delivered again: ignore events that you have processed"
        ),
    },
    "source": {**_TEXT, "pattern": f"^{SOURCE_PREFIX}[^/]+/[^/]+$", "description": "workspace and name"},
    "subject": {**_TEXT, "description": "AllocationID"},
    "time": {**_TEXT, "format": "date-time", "description": "when the transition happened (RFC 3339, UTC)"},
    "datacontenttype": {"const": PAYLOAD_TYPE, "description": "format of `data`"},
    "traceparent": {**_TEXT, "description": "W3C trace context of the cause: link to it, do not make it a parent"},
    "truncated": {
        **_TEXT,
        "pattern": "^[1-9][0-9]*-[1-9][0-9]*$",
        "description": "this entry replaces the events of these seqs, which were lost: read the object",
    },
}
"""The attributes of an event, except its type"""
_OPTIONAL = ("traceparent", "truncated")
_OWN = {
    "seq": "seq",
    "attempt": "attempt",
    "phase": "phase",
    "reason": "reason",
    "uid": "uid",
    "created_ms": "createdMs",
}
"""{field of `AllocationEvent`: its name in `data`}"""
_OWN_TEXTS = {
    "seq": "number of the transition of this allocation, from 1, without a gap",
    "attempt": "number of the attempt, from 1",
    "phase": "phase after the transition",
    "reason": "reason, in one word; empty when there is none",
    "uid": "uid of the Allocation",
    "createdMs": "creation time of the Allocation, in milliseconds since 1970",
}
_RANKS: Json = {"type": "array", "items": _COUNT}
_USED: dict[str, Json] = {
    "slots": {**_COUNT, "description": "number of GPUs that the attempt held"},
    "seconds": {
        "type": "object",
        "additionalProperties": {"type": "number", "minimum": 0},
        "description": "seconds in each phase",
    },
}
_EXTRA: dict[Event, dict[str, Json]] = {
    Event.REQUESTED: {
        "kind": {"enum": [each.value for each in Kind], "description": "kind of workload"},
        "pool": {**_TEXT, "description": "resource pool"},
        "ranks": {**_COUNT, "description": "number of requested ranks"},
        "user": {**_TEXT, "description": "the user who launched it"},
    },
    Event.ASSIGNED: {
        "decision": {**_TEXT, "description": "id of the scheduler's decision"},
        "nodes": {"type": "object", "additionalProperties": _COUNT, "description": "ranks on each node"},
    },
    Event.RUNNING: {
        "ranks": {**_COUNT, "description": "number of running ranks"},
        "nodes": {"type": "array", "items": _TEXT, "description": "their nodes"},
        "slots": {**_COUNT, "description": "number of GPUs that it holds"},
    },
    Event.PREEMPTING: {
        "n": {**_COUNT, "description": "number of the preemption"},
        "requeue": {"type": "boolean", "description": "whether it returns to its queue"},
        "deadline": {**_TEXT, "description": "time at which ranks that have not ended are killed (RFC 3339)"},
        "by": {**_TEXT, "description": "the allocation that preempts it"},
    },
    Event.TERMINATING: {
        "rank": {**_COUNT, "description": "the rank whose end is the cause"},
        "node": {**_TEXT, "description": "the node on which that rank ran"},
        "exitCode": {"type": "integer", "description": "exit code of that rank"},
        "message": {**_TEXT, "description": "how it ended, in words"},
        "rule": {**_COUNT, "description": "position in failurePolicy.rules of the rule that applies"},
        "target": {**_COUNT, "description": "position in successPolicy.targets of the target that is met"},
        "by": {**_TEXT, "description": "the allocation that preempts it"},
    },
    Event.TERMINATED: {"result": {"enum": [each.value for each in Result], "description": "how it ended"}, **_USED},
    Event.RESTARTED: {
        "counted": {"type": "boolean", "description": "whether the attempt counts against maxRestarts"},
        **_USED,
    },
    Event.UPDATED: {
        "grown": {**_RANKS, "description": "ranks that were added to the running allocation"},
        "startedAgain": {**_RANKS, "description": "ranks that failed and restart in place"},
        "restarts": {**_COUNT, "description": "number of restarts that count against maxRestarts, including these"},
        "note": {**_TEXT, "description": "what happened, in words"},
        "ranks": {**_RANKS, "description": "ranks that were evicted"},
        "slots": {**_COUNT, "description": "number of GPUs that it holds since then"},
        "held": {"type": "boolean", "description": "whether it is held now"},
        "waiting": {"type": "boolean", "description": "whether the service inside has nothing to show yet"},
        "blocked": {**_TEXT, "description": "what blocks its start, in words; empty when nothing blocks it any more"},
    },
}
"""{type: the further fields of its `data`}; new fields may be added at any time"""
_WEBHOOK_HEADERS: dict[str, Json] = {
    hook.ID: {**_TEXT, "description": "id of the event, the same in every try"},
    hook.TIMESTAMP: {**_TEXT, "pattern": "^[0-9]+$", "description": "time of this try, in seconds since 1970"},
    hook.SIGNATURE: {
        **_TEXT,
        "pattern": "^v1,",
        "description": "HMAC-SHA256 over id, timestamp and body, with the webhook's key (Standard Webhooks)",
    },
    "traceparent": {**_TEXT, "description": "W3C trace context of the delivery"},
}


def document(version: str) -> Json:
    """Return the whole document."""
    names = [each.value for each in Event]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Slipway events",
            "version": version,
            "description": "Every transition of an allocation is an event: in streams on Redis, and as HTTP POSTs "
            "to webhooks. Each is delivered at least once; repeated deliveries have the same id. "
            "Ignore unknown fields: new ones may be added at any time.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": PAYLOAD_TYPE,
        "servers": {
            "redis": {
                "host": "{redis}",
                "protocol": "redis",
                "description": "the Redis of the installation, with the account `reader`",
                "variables": {"redis": {"default": "localhost:6379", "description": "host and port"}},
            },
            "receiver": {
                "host": "{receiver}",
                "protocol": "https",
                "description": "the URL of a webhook",
                "variables": {"receiver": {"default": "hooks.example", "description": "host of the receiver"}},
            },
        },
        "channels": _channels(names),
        "operations": {
            f"send{channel[0].upper()}{channel[1:]}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{channel}"},
                "summary": summary,
                **(
                    {"bindings": {"http": {"method": "POST", "bindingVersion": "0.3.0"}}}
                    if channel == "webhook"
                    else {}
                ),
            }
            for channel, summary in (
                ("allocation", "each transition once, in order"),
                ("firehose", "each transition of all allocations, at least once"),
                ("webhook", "each transition that the webhook selects, at least once"),
            )
        },
        "components": {
            "messages": {
                **{name: _binary(Event(name)) for name in names},
                **{f"{name}Webhook": _structured(Event(name)) for name in names},
            },
            "schemas": {f"{name}Data": _data(Event(name)) for name in names},
        },
    }


def _channels(names: list[str]) -> Json:
    return {
        "allocation": {
            "address": f"{keys.ALLOCATION.prefix}{{allocation}}",
            "title": "the stream of one allocation",
            "description": f"A Redis stream. The id of an entry is <creation time in ms>-<seq>. At most "
            f"{keys.ALLOCATION.length_max} entries, until {keys.ALLOCATION.ttl_s // keys.DAY_S} days after the end.",
            "servers": [{"$ref": "#/servers/redis"}],
            "parameters": {
                "allocation": {
                    "description": "AllocationID in braces, which are part of the key",
                    "examples": ["{run-4f2k9c-9c1f0f2e}"],
                }
            },
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        },
        "firehose": {
            "address": f"{keys.EVENTS.prefix}{{shard}}",
            "title": "the streams of all allocations",
            "description": f"{keys.SHARDS} Redis streams for consumer groups, each of at most about "
            f"{keys.EVENTS.length_max} entries. An allocation is in shard crc32(AllocationID) % {keys.SHARDS}.",
            "servers": [{"$ref": "#/servers/redis"}],
            "parameters": {
                "shard": {
                    "description": "number of the shard in braces, which are part of the key",
                    "enum": [key.removeprefix(keys.EVENTS.prefix) for key in keys.EVENT_KEYS],
                }
            },
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        },
        "webhook": {
            "address": None,
            "title": "a webhook",
            "description": "One POST for each event. Answer 2xx within the time limit; after any other answer, or "
            "none, the event is sent again. A webhook with the format slack or teams posts a chat "
            "message instead.",
            "servers": [{"$ref": "#/servers/receiver"}],
            "messages": {f"{name}Webhook": {"$ref": f"#/components/messages/{name}Webhook"} for name in names},
        },
    }


def _binary(event: Event) -> Json:
    """Return the message in CloudEvents binary mode: each attribute is a field of the entry, and so is `data`."""
    return {
        "name": f"{TYPE_PREFIX}{event.value}",
        "title": event.value,
        "summary": "an entry of a stream: the headers and `data` are its fields",
        "contentType": PAYLOAD_TYPE,
        "headers": _object(_attributes(event), _OPTIONAL),
        "payload": {"$ref": f"#/components/schemas/{event.value}Data"},
    }


def _structured(event: Event) -> Json:
    """Return the message in CloudEvents structured mode: the whole event is the body."""
    data = {"$ref": f"#/components/schemas/{event.value}Data"}
    return {
        "name": f"{TYPE_PREFIX}{event.value}",
        "title": f"{event.value}, as a webhook",
        "summary": "the same event as the body of a POST",
        "contentType": CLOUDEVENTS_TYPE,
        "headers": _object(_WEBHOOK_HEADERS, ("traceparent",)),
        "payload": _object({**_attributes(event), "data": data}, _OPTIONAL),
    }


def _attributes(event: Event) -> dict[str, Json]:
    kind: Json = {"const": f"{TYPE_PREFIX}{event.value}", "description": "what happened"}
    return {"type": kind, **_ATTRIBUTES}


def _data(event: Event) -> Json:
    """Return the schema of `data`: the fields of every event, typed by their struct, and the fields of this type."""
    _, components = msgspec.json.schema_components([AllocationEvent], ref_template="#/{name}")
    own: dict[str, Json] = {}
    for field, name in _OWN.items():
        schema: Json = components["AllocationEvent"]["properties"][field]
        if "$ref" in schema:  # an enumeration
            schema = {"enum": components[schema["$ref"].removeprefix("#/")]["enum"]}
        own[name] = {**{key: each for key, each in schema.items() if key != "default"}, "description": _OWN_TEXTS[name]}
    extra = {**_EXTRA.get(event, {}), "truncated": _ATTRIBUTES["truncated"]}
    return _object({**own, **extra}, tuple(extra))


def _object(properties: dict[str, Json], optional: tuple[str, ...]) -> Json:
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


CACHE = {"Cache-Control": "max-age=60"}


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    # Building the first document takes long, so it runs in a thread and does not block the event loop.
    document = await asyncio.to_thread(request.app.state.document)
    return Response(msgspec.json.encode(document), media_type=JSON_TYPE, headers=CACHE)


async def asyncapi(_: Request) -> Response:
    """Return the AsyncAPI document."""
    return Response(msgspec.json.encode(document(version())), media_type=JSON_TYPE, headers=CACHE)


async def docs(request: Request) -> Response:
    """Return the page about the REST API."""
    base = str(request.base_url).rstrip("/")
    headers = {**CACHE, "Content-Security-Policy": POLICY}
    page = await asyncio.to_thread(request.app.state.docs_of, base)
    return Response(page, media_type="text/html", headers=headers)
