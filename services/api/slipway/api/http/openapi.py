"""The OpenAPI 3.1 document, generated from the route table and the msgspec structs, so that it cannot contradict them.

Pure, except that the texts below the fields of structs are read from the source files.

Properties that no struct describes have their descriptions here: one text for each name. Owns the words for names that
mean the same everywhere. A key `Struct.property` has precedence over the name alone. A text that fits only one field is
written below that field, in its struct.
"""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any, cast, get_origin

import msgspec
from msgspec import inspect

from slipway.api.auth import session
from slipway.api.http.endpoint import JSON_TYPE, Endpoint
from slipway.api.http.problems import PROBLEM_TYPE
from slipway.api.http.streaming import SSE_TYPE
from slipway.api.schemas import LaunchBody, Problem
from slipway.crd.schema import doc_of

TEXTS = {
    "acks": "number of ranks that acknowledged, by the number of the preemption",
    "addresses": "address of each rank, by rank",
    "admitted": "number of allocations that were admitted",
    "adopt": "true: turn an existing namespace into a workspace",
    "ahead": "number of allocations of its queue that are ahead of it",
    "aheadOf": "it moves to the place directly ahead of this one",
    "aheadSlots": "GPUs that the allocations ahead of it request, without those that can never start",
    "allocatable": "allocatable resources of the nodes, by resource",
    "allocation": "id of an allocation",
    "appendonly": "whether Redis keeps an append-only file on disk",
    "args": "arguments of the command",
    "at": "time (RFC 3339)",
    "attempt": "number of the attempt, from 1",
    "attempts": "number of attempts",
    "attributes": "attributes of the span",
    "auth": "how callers are authenticated: none, token or kubernetes",
    "averageQueuedSeconds": "mean time in the queue, in seconds",
    "behind": "it moves to the place directly behind this one",
    "body": "partial launch body",
    "by": "the key of the sums",
    "PreemptionView.by": "the allocation that needs the room: workspace/name",
    "bytes": "size of the archive, in bytes",
    "cause": "why the message could not be processed",
    "change": "the smallest change that would let it start",
    "code": "short name of the error or reason, for programs",
    "conditions": "the conditions of its status",
    "continue": "cursor of the next page; absent on the last one",
    "counts": "number of allocations in each phase",
    "createdAt": "creation time (RFC 3339)",
    "cursor": "cursor from which to continue after this entry",
    "data": "the data itself",
    "day": "day (UTC), such as 2026-01-02",
    "days": "one row per day",
    "deadline": "time at which ranks that have not ended are killed (RFC 3339)",
    "deadlines": "the deadlines that will end it, the next one first",
    "defaultPool": "pool of launches that name no pool",
    "defaultQueue": "queue of launches that name no queue",
    "defaultTemplate": "template that every launch starts from",
    "deleting": "whether it is being deleted",
    "delivered": "whether the receiver accepted it",
    "deliveries": "number of delivery attempts",
    "description": "description for people",
    "desired": "Running, or Stopped to cancel it for good",
    "detail": "explanation for people",
    "durationMs": "duration, in milliseconds",
    "earliest": "earliest time (RFC 3339)",
    "effect": "effect of the taint; empty: every effect",
    "enabled": "whether events are sent to it",
    "encoding": "encoding of the content: text, or base64",
    "endNs": "end time, in nanoseconds since 1970",
    "ended": "number that have ended",
    "endedAt": "end time (RFC 3339)",
    "entryId": "id of the entry in its stream",
    "epoch": "epoch of the ledger: each new leader increments it",
    "error": "why it was refused",
    "estimatedStart": "bounds of the estimated start",
    "events": "its events, or the names of the events that are sent",
    "evicted": "number of keys that Redis evicted for lack of memory",
    "exitCode": "exit code of the main container",
    "expired": "whether the token has expired",
    "expiresAt": "expiry time (RFC 3339)",
    "explain": "address of its explanation",
    "failed": "number that were refused",
    "fields": "fields of the message",
    "files": "number of files",
    "foreseen": "the planner's forecast, if it was requested",
    "from": "begin of the time range",
    "group": "name of the all-gather",
    "hasRedis": "whether Redis answers",
    "helps": "the smallest change that would let it start, as a sentence",
    "hold": "true: it does not start until the hold is removed",
    "holders": "the allocations that use the resources it waits for",
    "host": "host name or address of the rank",
    "id": "the identifier",
    "imagePullSecrets": "Secrets of the workspace for pulling images, used after those of the pod template",
    "instance": "path of the request",
    "interrupt": "whether running allocations restart under the new priority",
    "ip": "address of the pod",
    "items": "the rows",
    "job": "the job that groups it with other allocations",
    "jobsAhead": "the jobs ahead of it",
    "key": "key of the taint",
    "kind": "the kind",
    "labels": "labels, by name",
    "latest": "latest time (RFC 3339)",
    "likely": "bounds of the likely start",
    "likelyUnknown": "why there are no bounds of the likely start",
    "links": "addresses of related resources",
    "live": "number that are admitted and have not ended",
    "logs": "address of its log",
    "lossy": "what the answer may lack, as sentences; empty when it is complete",
    "maxSlots": "maximum number of GPUs that its members use at once; null: no limit",
    "members": "its allocations",
    "memoryUsed": "memory that Redis uses, in bytes",
    "message": "explanation for people",
    "metadata": "metadata of the list",
    "missing": "the ranks that have not arrived",
    "n": "number of the preemption",
    "name": "the name",
    "node": "the node that it runs on",
    "nodes": "nodes",
    "numPeers": "number of peers that arrived",
    "ok": "whether it succeeded",
    "openDecisions": "number of decisions that are not applied yet",
    "operator": "Equal or Exists",
    "othersHolding": "number of further allocations that use what it waits for",
    "parentSpanId": "id of the parent span",
    "pending": "number that wait",
    "phase": "the phase",
    "place": "number that orders it among allocations of the same priority; the lowest starts first",
    "pool": "the pool whose nodes it runs on",
    "position": "place in the queue, from 1; 0 when it does not wait",
    "GatherView.position": "place of the caller in the answer; null when the caller came too late",
    "preempt": "true: the ranks should acknowledge, save their work and end",
    "preemptible": "whether it may be preempted for other allocations",
    "priority": "the priority; the highest starts first",
    "progress": "completed part, from 0 to 1",
    "proxy": "address under which the proxy serves it",
    "queue": "the queue",
    "queuePosition": "number that orders it among allocations of the same priority; the lowest starts first",
    "queuedSeconds": "sum of the times in the queue, in seconds",
    "queues": "queues",
    "quota": "quota of the workspace, by resource",
    "rank": "number of the rank, from 0",
    "ranks": "the ranks",
    "ready": "whether it is ready",
    "reason": "short reason, for programs",
    "reasons": "number of nodes or allocations for each reason",
    "redis": "the servers of Redis",
    "redisError": "why Redis does not answer",
    "refused": "number that were refused",
    "remainingItemCount": "approximate number of further items; absent where a filter makes it unknown",
    "replayed": "number that were sent again",
    "requestIds": "ids of the requests, in the order of the answer",
    "requeue": "whether another attempt follows",
    "resourceVersion": "version of the object, for If-Match",
    "result": "the result; null while it has not ended",
    "results": "only ends with one of these results are sent",
    "role": "role of the rank",
    "ServerHealth.role": "primary or replica",
    "roles": "roles of the token, by workspace",
    "runAs": "user and groups of launches that set none",
    "running": "number that run",
    "runningSeconds": "running time, in seconds",
    "seconds": "duration, in seconds",
    "secondsByPhase": "seconds in each phase",
    "secret": "signing key; shown only once",
    "self": "address of this resource",
    "service": "the program that wrote it",
    "since": "begin of this state (RFC 3339)",
    "size": "number of ranks",
    "slotSeconds": "GPU-seconds since the admission",
    "slotSecondsByPhase": "GPU-seconds in each phase",
    "slots": "number of GPUs that it requests or uses",
    "slotsInUse": "number of GPUs in use",
    "slotsQueued": "number of GPUs that waiting allocations request",
    "source": "its origin",
    "spanId": "id of the span",
    "spans": "the spans, in order",
    "spec": "the requested state, as in the custom resource",
    "startNs": "start time, in nanoseconds since 1970",
    "startedAt": "start time (RFC 3339)",
    "state": "the state, as one word",
    "status": "the observed state, as in the custom resource",
    "Problem.status": "status code of HTTP",
    "WebhookTest.status": "status code of the answer",
    "subject": "the job or the allocation",
    "taints": "taints of the node",
    "tick": "number of the scheduler's tick",
    "time": "time of the process (RFC 3339)",
    "timeoutSeconds": "time to wait for the other peers, in seconds",
    "title": "title of the error's kind",
    "to": "end of the time range",
    "total": "sum of all rows",
    "totalSeconds": "time from its first to its last moment, in seconds",
    "traceId": "id of the trace under which the server logged the request",
    "type": "URN of the error's kind",
    "uid": "uid of the object in Kubernetes",
    "uncordonNodes": "cordoned nodes that would be made schedulable",
    "unpackedBytes": "size of the unpacked files, in bytes",
    "until": "end time (RFC 3339)",
    "updates": "the changes, in order",
    "url": "address",
    "used": "used part of the quota, by resource",
    "user": "the user who launched it",
    "Me.user": "the name of the caller",
    "TokenView.user": "the user that the token authenticates",
    "value": "the value",
    "version": "version of the server",
    "waitedSeconds": "time that it waited, in seconds",
    "waiting": "the waiting allocations, in order",
    "AllocationView.waiting": "whether the service inside has nothing to show yet",
    "warnings": "warnings for people",
    "weight": "weight of the job in its queue, compared with other jobs",
    "windows": "times for which nodes of the pool are reserved, without those that are over; invalid ones are included",
    "workspace": "the workspace",
    "workspaces": "workspaces",
}


def text_of(struct: str, name: str) -> str:
    """Return the description of a property; empty when there is none."""
    return TEXTS.get(f"{struct}.{name}") or TEXTS.get(name, "")


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
            below = doc_of(struct, fields[name]) if struct is not None and name in fields else ""
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
