"""Draws the operations of one sequence.

Owns the choice of operations and their frequency. Everything is derived from one seeded generator and from the model's
answers: stale versions, foreign uids and existing names are from earlier answers. `omissions` lists what is not drawn.
"""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from slipway.local.apiserver.objects import clone
from tests.models.kubernetes.comparison import NOW, AnswerReader
from tests.models.kubernetes.kinds import DROP, ILL_TYPED, MODELLED_KINDS, Choices, ModelledKind
from tests.models.kubernetes.operations import (
    APPLY,
    JSON_PATCH,
    LANE,
    MERGE,
    STRATEGIC,
    Answer,
    Json,
    Operation,
)

NAMESPACE = f"/api/v1/namespaces/{LANE}"
NAMES = ("a", "a", "a", "b", "b", "c")
BAD_NAMES = ("A", "a.b", "x" * 41, "x" * 64, "-a", "a_b")
LABELS: tuple[Json, ...] = ({"app": "x"}, {"app": "y"}, {"app": "x", "tier": "1"}, {"tier": "2"}, {})
SELECTORS = ("app=x", "app!=x", "app in (x,y)", "app notin (y)", "tier", "!tier", "app=x,tier=1", "app==y", "nosuch")
FINALIZERS = (["example.com/hold"], ["example.com/hold", "example.com/more"])
BAD_SELECTORS = ("app in x", "a b", "=x", "app=x=y")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SERVERS_OWN = ("managedFields", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


class SeenObject(msgspec.Struct, frozen=True):
    """An object as one answer showed it."""

    number: int
    obj: Json


class SequenceBuilder:
    """The state that is known while a sequence is drawn."""

    def __init__(self, random: Random, lane: str) -> None:
        self._lane = lane
        self._random = random
        self._number = 0
        self._latest: dict[tuple[str, str], SeenObject] = {}
        self._older: list[tuple[str, str, int]] = []
        self._pages: list[tuple[Operation, int]] = []
        self._uids: dict[str, int] = {}
        self._newest: dict[str, int | None] = {}
        self._chosen = random.sample(
            MODELLED_KINDS, k=random.choice((2, 3, 4)), counts=[each.weight for each in MODELLED_KINDS]
        )
        self._verbs: tuple[tuple[Callable[[ModelledKind], Operation], int], ...] = (
            (self._create, 20),
            (self._get, 8),
            (self._list, 12),
            (self._update, 16),
            (self._status, 12),
            (self._merge, 10),
            (self._json_patch, 7),
            (self._strategic, 6),
            (self._apply, 7),
            (self._delete, 10),
            (self._delete_collection, 2),
            (self._bind, 5),
            (self._watch, 3),
        )

    def open(self) -> Operation:
        """The first operation of every sequence: its namespace."""
        return self._operation("POST", "/api/v1/namespaces", {"metadata": {"name": LANE, "labels": {"lane": LANE}}})

    def draw(self) -> Operation:
        """The next operation."""
        if self._random.random() < 0.015:
            return self._on_namespace()
        modelled = self._random.choice(self._chosen)
        draw = self._random.choices([verb for verb, _ in self._verbs], [weight for _, weight in self._verbs])[0]
        return draw(modelled)

    def close(self) -> list[Operation]:
        """Watches from the beginning of everything that the sequence changed."""
        kinds = {modelled.plural: modelled for modelled in self._chosen}
        return [self._watch_from(modelled, 0, {}) for modelled in kinds.values()]

    def note(self, operation: Operation, answer: Answer) -> None:
        """Update it from the model's answer."""
        meta: Json = answer.body.get("metadata") or {}
        if answer.code >= 300 or operation.query.get("dryRun"):
            return
        if operation.method != "GET":
            self._note_write(operation, answer)
        if meta.get("continue"):
            self._pages.append((operation, operation.number))
        if not meta.get("uid"):
            return
        self._uids.setdefault(str(meta["uid"]), operation.number)
        for modelled in self._chosen:
            if modelled.kind == answer.body.get("kind"):
                name = self._general(str(meta["name"]))
                self._latest[modelled.plural, name] = SeenObject(operation.number, answer.body)
                self._older.append((modelled.plural, name, operation.number))

    def _note_write(self, operation: Operation, answer: Answer) -> None:
        """A created object has the newest version of its kind; after any other write the newest version is not
        known."""
        for modelled in self._chosen:
            if f"{operation.path}/".startswith(f"{modelled.path()}/"):
                is_made = answer.code == 201 and answer.body.get("kind") == modelled.kind
                self._newest[modelled.plural] = operation.number if is_made else None

    # --- verbs ------------------------------------------------------------------------------------------------------

    def _create(self, modelled: ModelledKind) -> Operation:
        random, obj, query = self._random, self._new(modelled, self._name(modelled)), self._options()
        odd = random.random()
        if odd < 0.03:
            obj["metadata"]["resourceVersion"] = "7"
        elif odd < 0.06:
            obj |= {"kind": "Other", **clone(modelled.base)}
        elif odd < 0.09:
            obj["metadata"]["namespace"] = "elsewhere"
        elif odd < 0.12:
            obj["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000"
        elif odd < 0.15:
            obj["apiVersion"] = "other/v1"
        return self._operation("POST", modelled.path(), obj, query)

    def _get(self, modelled: ModelledKind) -> Operation:
        return self._operation("GET", modelled.path(self._name(modelled)))

    def _list(self, modelled: ModelledKind) -> Operation:
        random = self._random
        pages = [(first, number) for first, number in self._pages if first.path == modelled.path()]
        if pages and random.random() < 0.5:
            first, number = random.choice(pages)
            query = {**first.query, "continue": f"«continue:{number}»"}
            query.pop("resourceVersion", None)
            query.pop("resourceVersionMatch", None)
            return self._operation("GET", modelled.path(), None, query)
        query = self._selection(modelled)
        if modelled.namespaced and random.random() < 0.3:
            query["limit"] = str(random.choice((1, 1, 2, 500)))
        known = self._versions(modelled)
        if known and random.random() < 0.3:
            if random.random() < 0.7:
                query |= {"resourceVersion": f"«version:{random.choice(known)}»", "resourceVersionMatch": "Exact"}
            elif (newest := self._newest.get(modelled.plural)) is not None:
                query |= {"resourceVersion": f"«version:{newest}»", "resourceVersionMatch": "NotOlderThan"}
        elif random.random() < 0.05 and not query:
            query["resourceVersionMatch"] = random.choice(("Exact", "NotOlderThan", "Sometimes"))
        return self._operation("GET", modelled.path(), None, query)

    def _update(self, modelled: ModelledKind) -> Operation:
        name = self._name(modelled)
        obj = self._known(modelled, name)
        if obj is None:
            return self._operation("PUT", modelled.path(name), self._new(modelled, name), self._options())
        if self._random.random() < 0.85:
            self._change(obj, modelled.choices)
        self._touch_meta(obj)
        return self._operation("PUT", modelled.path(name), obj, self._options())

    def _status(self, modelled: ModelledKind) -> Operation:
        name = self._name(modelled)
        obj = self._known(modelled, name)
        if modelled.plural == "services":
            return self._get(modelled)
        if obj is None or not modelled.status:
            return self._operation("PUT", modelled.path(name, "status"), self._new(modelled, name))
        if self._random.random() < 0.3:
            body: Json = {}
            self._change(body, modelled.status)
            media = STRATEGIC if not modelled.is_custom and self._random.random() < 0.6 else MERGE
            if self._random.random() < 0.5:
                body["metadata"] = {"resourceVersion": obj["metadata"].get("resourceVersion")}
            return self._operation("PATCH", modelled.path(name, "status"), body, media=media)
        if self._random.random() < 0.9:
            self._change(obj, modelled.status)
        if self._random.random() < 0.2:
            self._change(obj, modelled.choices)
            self._touch_meta(obj)
        return self._operation("PUT", modelled.path(name, "status"), obj)

    def _merge(self, modelled: ModelledKind) -> Operation:
        return self._patch(modelled, MERGE)

    def _strategic(self, modelled: ModelledKind) -> Operation:
        return self._patch(modelled, STRATEGIC)

    def _patch(self, modelled: ModelledKind, media: str) -> Operation:
        name = self._name(modelled)
        body: Json = {"metadata": {}}
        if self._random.random() < 0.7:
            self._change(body, modelled.choices, keep_nulls=True)
        self._touch_meta(body)
        seen = self._latest.get((modelled.plural, name))
        if seen is not None and self._random.random() < 0.4:
            body["metadata"]["resourceVersion"] = self._version(modelled, name, seen.number)
        if seen is not None and self._random.random() < 0.1:
            body["metadata"]["uid"] = self._uid()
        return self._operation("PATCH", modelled.path(name), body, self._options(), media)

    def _json_patch(self, modelled: ModelledKind) -> Operation:
        random, name = self._random, self._name(modelled)
        steps = list[Json]()
        if random.random() < 0.5:
            steps.append({"op": "test", "path": "/metadata/uid", "value": self._uid(modelled, name)})
        path = random.choice(list(modelled.choices))
        value = random.choice(modelled.choices[path])
        pointer = "/" + path.replace(".", "/")
        steps.append(
            random.choice(
                (
                    {"op": "remove", "path": "/metadata/finalizers/0"},
                    {"op": "remove", "path": "/metadata/finalizers"},
                    {"op": "test", "path": "/metadata/finalizers", "value": random.choice(FINALIZERS)},
                    {"op": "add", "path": "/metadata/labels/app", "value": "x"},
                    {"op": "add", "path": "/metadata/annotations", "value": {"note": "1"}},
                    {"op": "replace", "path": "/metadata/labels/app", "value": "y"},
                    {"op": "remove", "path": pointer},
                    {"op": "replace" if random.random() < 0.5 else "add", "path": pointer, "value": value},
                )
            )
        )
        return self._operation("PATCH", modelled.path(name), steps, self._options(), JSON_PATCH)

    def _apply(self, modelled: ModelledKind) -> Operation:
        random, name = self._random, self._name(modelled)
        obj = self._new(modelled, name, well_typed=True)
        query = {"fieldManager": random.choice(("a", "b"))}
        if random.random() < 0.4:
            query["force"] = random.choice(("true", "false"))
        if random.random() < 0.05:
            del query["fieldManager"]
        seen = self._latest.get((modelled.plural, name))
        if seen is not None and random.random() < 0.15:
            obj["metadata"]["resourceVersion"] = self._version(modelled, name, seen.number)
        return self._operation("PATCH", modelled.path(name), obj, query, APPLY)

    def _delete(self, modelled: ModelledKind) -> Operation:
        random, name = self._random, self._name(modelled)
        seen = self._latest.get((modelled.plural, name))
        body: Json = {}
        fences: Json = {}
        if random.random() < 0.3:
            fences["uid"] = self._uid(modelled, name)
        if seen is not None and random.random() < 0.25 and not _is_awaited(seen.obj):
            fences["resourceVersion"] = self._version(modelled, name, seen.number)
        if fences:
            body["preconditions"] = fences
        if random.random() < 0.4:
            policies = ("Background",) if "resourceVersion" in fences else ("Background", "Foreground", "Orphan")
            body["propagationPolicy"] = random.choice(policies)
        if random.random() < 0.4:
            body["gracePeriodSeconds"] = random.choice((0, 0, 1, 60))
        if random.random() < 0.05 and not ("propagationPolicy" in body and seen is not None and _is_awaited(seen.obj)):
            body["dryRun"] = ["All"]
        return self._operation("DELETE", modelled.path(name), body or None)

    def _delete_collection(self, modelled: ModelledKind) -> Operation:
        body = {"gracePeriodSeconds": 0} if self._random.random() < 0.5 else None
        return self._operation("DELETE", modelled.path(), body, self._selection(modelled, good=True))

    def _bind(self, modelled: ModelledKind) -> Operation:
        random = self._random
        pods = next((each for each in self._chosen if each.plural == "pods"), None)
        if pods is None:
            return self._update(modelled)
        name = self._name(pods)
        meta: Json = {"name": name}
        if random.random() < 0.6:
            meta["uid"] = self._uid(pods, name)
        if random.random() < 0.1:
            meta["annotations"] = {"bound": "by us"}
        target = {
            "kind": random.choice(("Node", "Node", "Node", "Rack")),
            "name": random.choice(("n1", "n1", "n2", "")),
        }
        return self._operation("POST", pods.path(name, "binding"), {"metadata": meta, "target": target})

    def _watch(self, modelled: ModelledKind) -> Operation:
        known = self._versions(modelled)
        query = self._selection(modelled, good=True)
        return self._watch_from(modelled, self._random.choice(known) if known else 0, query)

    def _watch_from(self, modelled: ModelledKind, number: int, query: dict[str, str]) -> Operation:
        if not modelled.namespaced:
            query = {"labelSelector": f"lane={LANE}", **query}
        query |= {"watch": "true", "resourceVersion": f"«version:{number}»"}
        return self._operation("GET", modelled.path(), None, query)

    def _on_namespace(self) -> Operation:
        random = self._random
        if random.random() < 0.3:
            return self._operation("DELETE", NAMESPACE, None)
        if random.random() < 0.5:
            return self._operation("GET", NAMESPACE)
        body = {"metadata": {"labels": {"slipway.dev/queue": random.choice(("a", "b"))}}}
        return self._operation("PATCH", NAMESPACE, body, media=MERGE)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _operation(
        self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None, media: str = ""
    ) -> Operation:
        operation = Operation(
            number=self._number,
            method=method,
            path=path,
            query=query or {},
            body=body,
            media=media or "application/json",
        )
        self._number += 1
        return operation

    def _name(self, modelled: ModelledKind) -> str:
        bad = self._random.random() < 0.02
        known = sorted({name for plural, name in self._latest if plural == modelled.plural})
        if known and self._random.random() < 0.6:
            return self._random.choice(known)
        name = self._random.choice(BAD_NAMES if bad else NAMES)
        return name if modelled.namespaced else f"{LANE}-{name}"

    def _new(self, modelled: ModelledKind, name: str, *, well_typed: bool = False) -> Json:
        random = self._random
        labels: Json = dict(random.choice(LABELS))
        if not modelled.namespaced:
            labels["lane"] = LANE
        obj: Json = {"apiVersion": modelled.api, "kind": modelled.kind, **clone(modelled.base)}
        meta: Json = {"name": name, "labels": labels}
        obj["metadata"] = meta
        if well_typed and not labels:
            del meta["labels"]
        if random.random() < 0.15:
            meta["finalizers"] = list(random.choice(FINALIZERS))
        if random.random() < 0.15:
            meta["ownerReferences"] = [self._owner()]
        for choices, share in ((modelled.choices, 0.8), (modelled.status, 0.1)):
            if choices and random.random() < share:
                self._change(obj, _well_typed(choices) if well_typed else choices)
        return obj

    def _owner(self) -> Json:
        flags = self._random.choice(({}, {"controller": True}, {"blockOwnerDeletion": False}))
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": self._uid(), **flags}

    def _change(self, obj: Json, choices: dict[str, list[Any]], *, keep_nulls: bool = False) -> None:
        random = self._random
        for path in random.sample(list(choices), k=min(len(choices), random.choice((1, 1, 2, 3)))):
            if path == "spec.nodeName" and random.random() < 0.8:
                continue
            *steps, last = path.split(".")
            place = obj
            for step in steps:
                if not isinstance(place.get(step), dict):
                    place[step] = {}
                place = place[step]
            value = random.choice(choices[path])
            if value is DROP and not keep_nulls:
                place.pop(last, None)
            else:
                place[last] = clone(value)

    def _touch_meta(self, obj: Json) -> None:
        random, meta = self._random, obj["metadata"]
        odd = random.random()
        if odd < 0.15:
            meta["labels"] = {**(meta.get("labels") or {}), **random.choice(LABELS)}
        elif odd < 0.25:
            meta["annotations"] = random.choice(({"note": "1"}, {"note": "2", "more": "x"}))
        elif odd < 0.4:
            meta["finalizers"] = list(random.choice((*FINALIZERS, [])))
        elif odd < 0.45:
            meta["ownerReferences"] = [self._owner()]
        elif odd < 0.48:
            meta["labels"] = {**(meta.get("labels") or {}), "bad key!": "x"}

    def _known(self, modelled: ModelledKind, name: str) -> Json | None:
        """An object as seen last, or earlier, in the form in which a client sends it back."""
        seen = self._latest.get((modelled.plural, name))
        if seen is None:
            return None
        obj: Json = msgspec.json.decode(_UUID.sub(self._uid_of, self._general(msgspec.json.encode(seen.obj).decode())))
        meta: Json = obj["metadata"]
        for field in _SERVERS_OWN:
            meta.pop(field, None)
        meta["uid"] = self._uid(modelled, name)
        version = self._version(modelled, name, seen.number)
        if version is None:
            meta.pop("resourceVersion")
        else:
            meta["resourceVersion"] = version
        if NOW in str(AnswerReader().read(Operation(number=0, method="GET", path=""), Answer(200, obj))):
            obj.get("status", {}).pop("conditions", None)
        return obj

    def _general(self, text: str) -> str:
        """The text of an answer in a form that any sequence could send."""
        return text.replace(self._lane, LANE)

    def _uid_of(self, match: re.Match[str]) -> str:
        number = self._uids.get(match[0])
        return match[0] if number is None else f"«uid:{number}»"

    def _uid(self, modelled: ModelledKind | None = None, name: str = "") -> str:
        """The uid of the object, or of another one."""
        seen = self._latest.get((modelled.plural, name)) if modelled is not None else None
        if seen is not None and self._random.random() < 0.8:
            return f"«uid:{self._uids[seen.obj['metadata']['uid']]}»"
        if self._uids and self._random.random() < 0.7:
            return f"«uid:{self._random.choice(list(self._uids.values()))}»"
        return "00000000-0000-4000-8000-00000000000f"

    def _version(self, modelled: ModelledKind, name: str, latest: int) -> str | None:
        odd = self._random.random()
        if odd < 0.7:
            return f"«version:{latest}»"
        if odd < 0.85:
            older = [number for plural, known, number in self._older if (plural, known) == (modelled.plural, name)]
            return f"«version:{self._random.choice(older)}»"
        return None if odd < 0.95 else "0"

    def _versions(self, modelled: ModelledKind) -> list[int]:
        return [number for plural, _, number in self._older if plural == modelled.plural]

    def _selection(self, modelled: ModelledKind, *, good: bool = False) -> dict[str, str]:
        random = self._random
        query: dict[str, str] = {}
        labels = [f"lane={LANE}"] if not modelled.namespaced else []
        if random.random() < 0.4:
            labels.append(random.choice(SELECTORS))
        if random.random() < 0.03 and not good:
            labels.append(random.choice(BAD_SELECTORS))
        if labels:
            query["labelSelector"] = ",".join(labels)
        name = "a" if modelled.namespaced else f"{LANE}-a"
        fields = (*modelled.fields, f"metadata.name={name}", f"metadata.name!={name}")
        if random.random() < 0.3:
            query["fieldSelector"] = random.choice(fields)
        elif random.random() < 0.03 and not good:
            query["fieldSelector"] = random.choice(("spec.nosuch=1", "metadata.name", "status.nosuch=1"))
        return query

    def _options(self) -> dict[str, str]:
        odd = self._random.random()
        if odd < 0.06:
            return {"dryRun": "All"}
        if odd < 0.12:
            return {"fieldValidation": self._random.choice(("Strict", "Ignore", "Warn"))}
        if odd < 0.13:
            return {"dryRun": "Some"}
        return {}


def _is_awaited(obj: Json) -> bool:
    """Whether the object waits for the garbage collector of dependents."""
    return bool({"orphan", "foregroundDeletion"} & {*obj["metadata"].get("finalizers", [])})


def _well_typed(choices: Choices) -> Choices:
    return {path: [value for value in values if value not in ILL_TYPED] for path, values in choices.items()}
