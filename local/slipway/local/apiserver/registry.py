"""The kinds this server serves, built in and declared.

Owns the look-up by path, by resource and by kind, and what discovery, tables and selectors must know of each kind. It
holds no objects. Invariant: a resource ("pods", "allocations.slipway.dev") names one storage room, whatever versions
of it are served.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from slipway.local.apiserver import jsonpath
from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.store import ObjectVersion

CellReader = Callable[[Json], Any]
_META_FIELDS = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}
_VERSION = re.compile(r"^v(?P<major>[1-9]\d*)((?P<stage>alpha|beta)(?P<minor>[1-9]\d*))?$")
_STAGES = {"": 0, "beta": 1, "alpha": 2}
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a Table answer; priority 0 is always shown, others in the wide form."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    read: CellReader


class VersionView(msgspec.Struct, frozen=True):
    """How the objects of a room look to those who ask for another version or group than the stored one.

    Both ways answer a new object, which may share parts with the one given.
    """

    show: Callable[[Json], Json]
    keep: Callable[[Json], Json]


class ResourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """One resource in one version. `room` is where its objects are, when that is not under its own name."""

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
        """What discovery says can be done with it."""
        return tuple(verb for verb in VERBS if verb not in self.lacks)

    @property
    def resource(self) -> str:
        """The storage room, which also names the resource in messages."""
        return self.room or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def key(self) -> str:
        """What `KindRegistry.get` finds this very version by."""
        return self.resource if self.is_stored else f"{self.plural}.{self.version}.{self.group}/{self.resource}"

    def shown(self, obj: Json) -> Json:
        """A stored object as this version shows it."""
        return obj if self.view is None else self.view.show(obj)

    def kept(self, obj: Json) -> Json:
        """An object of this version as it is stored."""
        return obj if self.view is None else self.view.keep(obj)

    def shown_record(self, record: ObjectVersion) -> ObjectVersion:
        if self.view is None:
            return record
        return ObjectVersion(self.view.show(record.obj), record.version, record.ownership, is_first=record.is_first)

    @property
    def qualified(self) -> str:
        """The kind as messages about invalid objects name it."""
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
    """All kinds; the first of a resource is its storage version."""

    def __init__(self, kinds: tuple[ResourceKind, ...] = ()) -> None:
        self._by_path: dict[tuple[str, str, str], ResourceKind] = {}
        self._by_resource: dict[str, ResourceKind] = {}
        self._by_key: dict[str, ResourceKind] = {}
        self._by_kind: dict[tuple[str, str], ResourceKind] = {}
        self.documents: dict[str, bytes] = {}
        """What was worked out from the kinds; gone with every change of them."""
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
        """The stored version of a resource, or the version that a `key` names."""
        return self._by_key.get(resource)

    def of_kind(self, api_version: str, kind: str) -> ResourceKind | None:
        """Any served version of the kind that an owner reference names."""
        group = api_version.rpartition("/")[0]
        return self._by_kind.get((group, kind))

    def kinds(self) -> list[ResourceKind]:
        """Every served version of every resource."""
        return sorted(self._by_path.values(), key=lambda kind: (kind.group, precedence(kind.version), kind.plural))

    def storage_kinds(self) -> list[ResourceKind]:
        """One per resource."""
        return [self._by_resource[resource] for resource in sorted(self._by_resource)]


def precedence(version: str) -> tuple[int, int, int, str]:
    """The order of versions in discovery: v2, v1, v1beta2, v1beta1, v1alpha1, and other names after them."""
    match = _VERSION.match(version)
    if match is None:
        return (len(_STAGES), 0, 0, version)
    return (_STAGES[match["stage"] or ""], -int(match["major"]), -int(match["minor"] or 0), "")


def read_path(text: str) -> CellReader:
    """A reader of the values at a JSONPath, several joined by commas."""
    steps = jsonpath.parse(text)

    def read(obj: Json) -> Any:
        found = jsonpath.find(obj, steps)
        if len(found) <= 1:
            return found[0] if found else None
        return ",".join(str(value) for value in found)

    return read
