"""The `FieldScope` of each kind: how ownership reads the kind's objects.

Owns one scope per kind and version, created at the first use. Invariant: a kind that is declared again gets a new
scope.
"""

from slipway.local.apiserver.custom import CustomStrategy
from slipway.local.apiserver.fields.merging import IgnoredFields
from slipway.local.apiserver.fields.ownership import UNOWNED_FIELDS, FieldScope
from slipway.local.apiserver.fields.shapes import ANY, Shape, builtin_shapes, of_schema
from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.registry import ResourceKind

_NAMES, _SERVERS = UNOWNED_FIELDS.fields, UNOWNED_FIELDS.of_metadata
_STATUS = IgnoredFields(_NAMES | {"status"}, _SERVERS)
_SPEC = IgnoredFields(_NAMES | {"spec"}, _SERVERS)
_CUSTOM_STATUS = IgnoredFields(_NAMES | {"spec", "metadata"}, _SERVERS)
_POD_STATUS = IgnoredFields(_NAMES | {"spec"}, _SERVERS | {"deletionTimestamp", "ownerReferences"})


class Scopes:
    """The cached scopes of one server's kinds."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ResourceKind, FieldScope]] = {}

    def of(self, kind: ResourceKind) -> FieldScope:
        known = self._known.get(kind.key)
        if known is None or known[0] is not kind:
            known = self._known[kind.key] = (kind, _scope(kind))
        return known[1]


def shape_of(kind: ResourceKind) -> Shape | None:
    """Return the shape of a kind, or None for a built-in kind that the table lacks."""
    if isinstance(kind.strategy, CustomStrategy):
        return of_schema(kind.strategy.schema)
    return builtin_shapes().of_kind(kind.api_version, kind.kind)


def _scope(kind: ResourceKind) -> FieldScope:
    shape = shape_of(kind)
    empty: Json = {"apiVersion": kind.api_version, "kind": kind.kind}
    if not kind.is_custom and shape is not None:
        empty |= _empty(shape)
    return FieldScope(shape=shape or ANY, api_version=kind.api_version, ignored=_ignored(kind), empty=empty)


def _ignored(kind: ResourceKind) -> dict[str, IgnoredFields]:
    if not kind.strategy.has_status:
        return {}
    through_status = _CUSTOM_STATUS if kind.is_custom else _POD_STATUS if kind.resource == "pods" else _SPEC
    return {"": _STATUS, "status": through_status}


def _empty(shape: Shape) -> Json:
    """Return the fields that Go writes for an empty struct: structs, and fields that are never left out."""
    found: Json = {}
    for name, field in shape.fields.items():
        if field.is_pointer:
            continue
        if field.shape.sort == "struct":
            found[name] = _empty(field.shape)
        elif not field.empty_goes:
            found[name] = None
    return found
