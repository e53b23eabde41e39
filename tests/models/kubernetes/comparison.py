"""When two answers are equal: in everything except values that two servers cannot share.

Owns that rule. Uids and resourceVersions become numbers in order of appearance (so that equal ones stay equal and
different ones different), present times become one word. Of a refusal the code, the reason, its subject, the fields and
reasons of its causes (each once), and our error class are compared. Nothing else is ignored; `omissions` lists the
requests that are not made at all.
"""

import itertools
import re
from typing import Any

import msgspec

from slipway.kube.errors import ServerStatus, Verb, explain
from slipway.local.apiserver.objects import is_list, is_map, parse_time
from slipway.runtime.clock import SystemClock
from tests.models.kubernetes.operations import Answer, Json, Operation

NOW = "«now»"
NOW_S = 3600.0
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
_UID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_ANY_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_VERBS = {"POST": Verb.CREATE, "PUT": Verb.UPDATE, "PATCH": Verb.PATCH, "DELETE": Verb.DELETE}


class AnswerReader:
    """Reads the answers of one server in one sequence, in order."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._now = SystemClock().now()

    def read(self, operation: Operation, answer: Answer) -> Json:
        """The compared part of an answer."""
        if answer.code >= 400:
            return self._refusal(operation, answer)
        if isinstance(answer.body.get("items"), list):
            return {"code": answer.code, **self._list(answer.body)}
        return {"code": answer.code, "body": self._value(answer.body)}

    def events(self, events: list[Json]) -> list[Json]:
        """The compared part of a watch."""
        return [
            self._status(event["object"])
            if event["type"] in ("ERROR", "REFUSED")
            else {"type": event["type"], "object": self._value(event["object"])}
            for event in events
        ]

    @property
    def versions(self) -> list[int]:
        """Every resourceVersion, in order of appearance."""
        return [int(version) for version in self._versions]

    def _refusal(self, operation: Operation, answer: Answer) -> Json:
        verb = _VERBS.get(operation.method, Verb.GET)
        if operation.path.endswith("/binding"):
            verb = Verb.BIND
        told = msgspec.convert(answer.body, ServerStatus)
        error = explain(verb, answer.code, told)
        return {"code": answer.code, **self._status(answer.body), "means": type(error).__name__}

    def _status(self, body: Json) -> Json:
        details: Json = body.get("details") or {}
        causes: list[Json] = details.get("causes") or []
        return {
            "reason": body.get("reason", ""),
            "about": [details.get(field, "") for field in ("kind", "group", "name")],
            "causes": sorted({f"{cause.get('reason', '')} of {self._field(cause)}" for cause in causes}),
            "status": body.get("code"),
        }

    def _field(self, cause: Json) -> str:
        return _ANY_UID.sub(lambda match: self._uids.get(match[0], match[0]), str(cause.get("field", "")))

    def _list(self, body: Json) -> Json:
        meta: Json = body["metadata"]
        items = [self._value({**item, "apiVersion": "", "kind": ""}) for item in body["items"]]
        newest = max((int(item["metadata"]["resourceVersion"]) for item in body["items"]), default=0)
        return {
            "kind": body["kind"],
            "apiVersion": body["apiVersion"],
            "items": items,
            "has more": bool(meta.get("continue")),
            "remaining": meta.get("remainingItemCount"),
            "is at least as new as its items": int(meta["resourceVersion"]) >= newest,
        }

    def _value(self, value: Any, key: str = "") -> Any:
        if is_map(value):
            return {name: self._value(value[name], name) for name in sorted(value) if name != "managedFields"}
        if is_list(value):
            return [self._value(item) for item in value]
        if not isinstance(value, str):
            return value
        if key == "resourceVersion":
            return self._versions.setdefault(value, f"«version {len(self._versions)}»")
        if _UID.match(value):
            return self._uids.setdefault(value, f"«uid {len(self._uids)}»")
        if _TIME.match(value) and abs((parse_time(value) or 0.0) - self._now) < NOW_S:
            return NOW
        return value


def are_in_step(model: AnswerReader, real: AnswerReader) -> bool:
    """Whether the versions of both rise together."""
    pairs = sorted(zip(model.versions, real.versions, strict=False))
    return all(before[1] < after[1] for before, after in itertools.pairwise(pairs))


def differences(model: Any, real: Any, path: str = "") -> list[str]:
    """The differences of two answers, and their values."""
    if is_map(model) and is_map(real):
        names = sorted({*model, *real})
        return [
            line
            for name in names
            for line in differences(model.get(name, "«absent»"), real.get(name, "«absent»"), f"{path}.{name}")
        ]
    if is_list(model) and is_list(real) and len(model) == len(real):
        return [
            line
            for index, pair in enumerate(zip(model, real, strict=True))
            for line in differences(pair[0], pair[1], f"{path}[{index}]")
        ]
    if model == real and type(model) is type(real):
        return []
    if is_list(model) and is_list(real):
        return [f"{path or 'answer'}: model has {_heads(model)}, real has {_heads(real)}"]
    return [f"{path or 'answer'}: model {_shown(model)}, real {_shown(real)}"]


def _heads(items: list[Any]) -> str:
    """The items of lists that differ in length, in short."""
    told = list[str]()
    for item in items:
        if is_map(item) and is_map(item.get("object")):
            meta: Json = item["object"]["metadata"]
            told.append(f"{item['type']} {meta['name']} {meta['resourceVersion']}")
        else:
            told.append(_shown(item))
    return f"[{', '.join(told)}]"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
