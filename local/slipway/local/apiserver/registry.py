"""The kinds that this server serves: built-in kinds and kinds declared by definitions.

Owns the look-up by path, by resource and by kind, and the facts about each kind that discovery, tables and selectors
need. Stores no objects. Invariant: a resource ("pods", "allocations.slipway.dev") names one storage room for all its
served versions.

The subset of JSONPath that printer columns use: `.a.b`, `['a']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`.

Pure. Invariant: a path without a matching value finds nothing; only a path that cannot be parsed is an error.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import Json, is_list, is_map
from slipway.local.apiserver.store import ObjectVersion

_STEP = re.compile(
    r"""\.(?P<name>(?:[^.\[\\]|\\.)+)|\[\s*(?:
        (?P<quote>['"])(?P<quoted>.*?)(?P=quote)
        | (?P<index>-?\d+)
        | (?P<all>\*)
        | \?\(\s*@\.(?P<field>[^=!\s]+)\s*(?P<op>==|!=)\s*(?P<value>"[^"]*"|'[^']*'|[^)\s]+)\s*\)
    )\s*\]""",
    re.VERBOSE,
)

Step = tuple[str, Any]


def parse_path(text: str) -> tuple[Step, ...]:
    """Return the steps of a path. Raises: ValueError."""
    text = text.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    steps = list[Step]()
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(f"not a JSONPath: {text!r}")
        position = match.end()
        if match["name"] is not None:
            name = match["name"].replace("\\.", ".")
            steps.append(("all", None) if name == "*" else ("name", name))
        elif match["quoted"] is not None:
            steps.append(("name", match["quoted"]))
        elif match["index"] is not None:
            steps.append(("index", int(match["index"])))
        elif match["all"] is not None:
            steps.append(("all", None))
        else:
            path = tuple(match["field"].split("."))
            steps.append(("where", (path, match["op"] == "==", match["value"].strip("'\""))))
    return tuple(steps)


def find_path(value: Any, steps: tuple[Step, ...]) -> list[Any]:
    found = [value]
    for kind, argument in steps:
        found = [item for each in found for item in _step(each, kind, argument)]
    return found


def _step(value: Any, kind: str, argument: Any) -> list[Any]:
    match kind:
        case "name":
            return [value[argument]] if is_map(value) and value.get(argument) is not None else []
        case "index":
            return [value[argument]] if is_list(value) and -len(value) <= argument < len(value) else []
        case "all":
            return list(value) if is_list(value) else list(value.values()) if is_map(value) else []
        case _:
            path, equal, wanted = argument
            steps = tuple(("name", name) for name in path)
            return [
                item
                for item in (value if is_list(value) else [])
                if ([str(each) for each in find_path(item, steps)] == [wanted]) is equal
            ]


CellReader = Callable[[Json], Any]
_META_FIELDS = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}
_VERSION = re.compile(r"^v(?P<major>[1-9]\d*)((?P<stage>alpha|beta)(?P<minor>[1-9]\d*))?$")
_STAGES = {"": 0, "beta": 1, "alpha": 2}
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a Table answer. A column of priority 0 is always shown, other columns only in the wide form."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    read: CellReader


class VersionView(msgspec.Struct, frozen=True):
    """The conversion of a room's objects between the stored version and another version or group.

    `show` converts a stored object, `keep` converts back. Both return a new object, which may share parts with the
    given one.
    """

    show: Callable[[Json], Json]
    keep: Callable[[Json], Json]


class ResourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """One resource in one version. `room` is its storage room, or "" when the room has the resource's own name."""

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    singular: str = ""
    list_kind: str = ""
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    strategy: Strategy
    fields: dict[str, tuple[str, ...]] = {}
    columns: tuple[TableColumn, ...] = ()
    subresources: tuple[str, ...] = ()
    schema: Json = {}
    lacks: tuple[str, ...] = ()
    is_custom: bool = False
    is_stored: bool = True
    is_served: bool = True
    room: str = ""
    view: VersionView | None = None

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that discovery lists."""
        return tuple(verb for verb in VERBS if verb not in self.lacks)

    @property
    def resource(self) -> str:
        """The storage room, which also names the resource in messages."""
        return self.room or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def key(self) -> str:
        """The key with which `KindRegistry.get` finds this version."""
        return self.resource if self.is_stored else f"{self.plural}.{self.version}.{self.group}/{self.resource}"

    def shown(self, obj: Json) -> Json:
        """Return a stored object in the form of this version."""
        return obj if self.view is None else self.view.show(obj)

    def kept(self, obj: Json) -> Json:
        """Return an object of this version in its stored form."""
        return obj if self.view is None else self.view.keep(obj)

    def shown_record(self, record: ObjectVersion) -> ObjectVersion:
        if self.view is None:
            return record
        return ObjectVersion(self.view.show(record.obj), record.version, record.ownership, is_first=record.is_first)

    @property
    def qualified(self) -> str:
        """The name of the kind in messages about invalid objects."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """{field label that selectors may name: path}."""
        return {**_META_FIELDS, **self.fields}

    @property
    def collection_kind(self) -> str:
        return self.list_kind or f"{self.kind}List"


class KindRegistry:
    """All kinds that the server knows."""

    def __init__(self, kinds: tuple[ResourceKind, ...] = ()) -> None:
        self._by_path: dict[tuple[str, str, str], ResourceKind] = {}
        self._by_resource: dict[str, ResourceKind] = {}
        self._by_key: dict[str, ResourceKind] = {}
        self._by_kind: dict[tuple[str, str], ResourceKind] = {}
        self.documents: dict[str, bytes] = {}
        """Cached OpenAPI documents of the kinds; every change of a kind clears them."""
        self.install(kinds)

    def install(self, kinds: tuple[ResourceKind, ...] | list[ResourceKind]) -> None:
        self.documents.clear()
        for kind in reversed(kinds):
            if kind.is_served:
                self._by_path[kind.group, kind.version, kind.plural] = kind
            self._by_kind[kind.group, kind.kind] = kind
            self._by_key[kind.key] = kind
            if kind.is_stored:
                self._by_resource[kind.resource] = kind

    def remove(self, resource: str) -> None:
        self.documents.clear()
        for kind in [kind for kind in self._by_key.values() if kind.resource == resource]:
            self._by_path.pop((kind.group, kind.version, kind.plural), None)
            self._by_resource.pop(resource, None)
            self._by_key.pop(kind.key, None)
            self._by_kind.pop((kind.group, kind.kind), None)

    def at(self, group: str, version: str, plural: str) -> ResourceKind | None:
        return self._by_path.get((group, version, plural))

    def get(self, resource: str) -> ResourceKind | None:
        """Return the stored version of a resource, or the version that a `key` names."""
        return self._by_key.get(resource)

    def of_kind(self, api_version: str, kind: str) -> ResourceKind | None:
        """Return a version of the kind that an owner reference names, whatever version the reference has."""
        group = api_version.rpartition("/")[0]
        return self._by_kind.get((group, kind))

    def kinds(self) -> list[ResourceKind]:
        """Return every served version of every resource."""
        return sorted(self._by_path.values(), key=lambda kind: (kind.group, precedence(kind.version), kind.plural))

    def storage_kinds(self) -> list[ResourceKind]:
        """Return the stored version of each resource."""
        return [self._by_resource[resource] for resource in sorted(self._by_resource)]


def precedence(version: str) -> tuple[int, int, int, str]:
    """Return the sort key of a version in discovery: v2, v1, v1beta2, v1beta1, v1alpha1, then other names."""
    match = _VERSION.match(version)
    if match is None:
        return (len(_STAGES), 0, 0, version)
    return (_STAGES[match["stage"] or ""], -int(match["major"]), -int(match["minor"] or 0), "")


def read_path(text: str) -> CellReader:
    """Return a function that reads the values at a JSONPath and joins several values by commas."""
    steps = parse_path(text)

    def read(obj: Json) -> Any:
        found = find_path(obj, steps)
        if len(found) <= 1:
            return found[0] if found else None
        return ",".join(str(value) for value in found)

    return read
