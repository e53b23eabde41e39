"""One apply request: its required content, and the wording of its refusals.

Owns the checks of an applied document against its path and its shape, the rule for objects of a client-side
`kubectl apply`, and the wording of conflicts. Knows no store. Invariant: a conflicting apply changes nothing.

Source: k8s.io/apimachinery/pkg/util/managedfields, k8s.io/apiserver/pkg/endpoints/handlers (behaviour, v1.37).

The `FieldScope` of a kind says how ownership reads the kind's objects. There is one per kind and version, created at
the first use. Invariant: a kind that is declared again gets a new scope.
"""

from typing import Any

import msgspec

from slipway.local.apiserver import status
from slipway.local.apiserver.custom import CustomStrategy
from slipway.local.apiserver.fields import merging, ownership, paths
from slipway.local.apiserver.fields.merging import IgnoredFields
from slipway.local.apiserver.fields.ownership import (
    UNOWNED_FIELDS,
    ApplyRequest,
    ApplyResult,
    Author,
    FieldConflictError,
    FieldScope,
)
from slipway.local.apiserver.fields.paths import FieldSet
from slipway.local.apiserver.fields.shapes import ANY, Shape, builtin_shapes, of_schema
from slipway.local.apiserver.objects import Json, is_list, is_map, mapping, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.status import StatusError, bad_request
from slipway.local.apiserver.store import ObjectKey, ObjectVersion

KUBECTL = "kubectl"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_MANAGED = "metadata.managedFields must be nil"


def check(kind: ResourceKind, shape: Shape, at: ObjectKey, document: Any, options: WriteOptions) -> Json:
    """Return the document to apply to the object `at` (namespace, name). Raises: StatusError 400, 409, 422, 500."""
    namespace, name = at
    if not options.writer:
        cause = status.missing("fieldManager", "is required for apply patch")
        raise status.invalid_options("PatchOptions", [cause])
    if not is_map(document):
        raise bad_request("error decoding YAML: json: cannot unmarshal into Go value of type map[string]interface {}")
    given = document.get("metadata")
    if given is not None and not is_map(given):
        raise bad_request("metadata must be an object")
    if document.get("apiVersion") != kind.api_version:
        words = f"Specified patch version: {document.get('apiVersion', '')}, expected: {kind.api_version}"
        raise bad_request(f"Incorrect version specified in apply patch. {words}")
    if metadata(document).get("managedFields") is not None:
        raise bad_request(_MANAGED)
    wanted = metadata(document).get("name")
    if wanted and wanted != name:
        words = f"the name of the object ({wanted}) does not match the name on the URL ({name})"
        raise bad_request(words)
    unknown = _undeclared(shape, document, "")
    if unknown:
        place = f"{namespace}/{name}; {kind.api_version if kind.group else '/' + kind.version}, Kind={kind.kind}"
        raise StatusError(500, "", f"failed to create typed patch object ({place}): {_all(unknown)}")
    return {**document, "metadata": {**metadata(document), "name": name}}


def apply(
    scope: FieldScope, record: ObjectVersion | None, document: Json, writer: Author, time: str, *, force: bool
) -> ApplyResult:
    """Apply a document. Raises: StatusError 409 with a cause per field of another manager; 500 for duplicate items."""
    request = ApplyRequest(writer=writer, time=time, force=force)
    live = None if record is None else record.obj
    claims = ownership.UNOWNED if record is None else record.ownership
    try:
        try:
            result = ownership.applied(scope, live, document, claims, request)
        except FieldConflictError as exc:
            if writer.name != KUBECTL or live is None or not _was_ours(scope, live, exc):
                raise
            forced = ApplyRequest(writer=writer, time=time, force=True)
            result = ownership.applied(scope, live, document, claims, forced)
    except FieldConflictError as exc:
        raise _conflict(exc) from exc
    except merging.DuplicateError as exc:
        raise StatusError(500, "", f"failed to create typed patch object: {exc}") from exc
    if writer.name == KUBECTL and LAST_APPLIED in mapping(metadata(result.obj), "annotations"):
        return _with_last_applied(result, document)
    return result


def _conflict(error: FieldConflictError) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {writer.show()}", "field": paths.show(path)}
        for writer, path in error.conflicts
    ]
    if len(causes) == 1:
        words = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
        return StatusError(409, "Conflict", words, {"causes": causes})
    by_writer: dict[str, list[str]] = {}
    for writer, path in error.conflicts:
        by_writer.setdefault(writer.show(), []).append(f"- {paths.show(path)}")
    listed = [line for who in sorted(by_writer) for line in (f"conflicts with {who}:", *by_writer[who])]
    words = f"Apply failed with {len(causes)} conflicts: " + "\n".join(listed)
    return StatusError(409, "Conflict", words, {"causes": causes})


def _was_ours(scope: FieldScope, live: Json, error: FieldConflictError) -> bool:
    """Whether a client-side `kubectl apply` had set every field in conflict, and all still have the value it set."""
    text = mapping(metadata(live), "annotations").get(LAST_APPLIED)
    try:
        last: Any = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        last = None
    if not is_map(last):
        return False
    claimed = merging.fields_of(scope.shape, last)
    difference = merging.compare(scope.shape, last, live)
    ours = claimed.difference(difference.changed)
    wanted = FieldSet()
    for _, path in error.conflicts:
        wanted.insert(path)
    return not wanted.difference(ours)


def _with_last_applied(result: ApplyResult, document: Json) -> ApplyResult:
    """Update the last-applied annotation, so that a later client-side apply knows what was applied."""
    annotations: Json = {**mapping(metadata(result.obj), "annotations")}
    kept = {key: value for key, value in mapping(metadata(document), "annotations").items() if key != LAST_APPLIED}
    shown = {**document, "metadata": {**metadata(document), "annotations": kept}}
    annotations[LAST_APPLIED] = msgspec.json.encode(shown, order="sorted").decode() + "\n"
    obj = {**result.obj, "metadata": {**metadata(result.obj), "annotations": annotations}}
    return ApplyResult(obj, result.ownership)


def _undeclared(shape: Shape, value: Any, path: str) -> list[str]:
    """Return the paths of fields that the schema does not declare."""
    if is_map(value) and shape.sort in ("struct", "map"):
        found = list[str]()
        for name, item in value.items():
            if shape.sort == "struct" and name not in shape.fields and shape.item is None:
                found.append(f"{path}.{name}")
            else:
                found += _undeclared(shape.child(name), item, f"{path}.{name}")
        return found
    if is_list(value) and shape.sort == "list" and shape.item is not None:
        return [
            each
            for index, item in enumerate(value)
            for each in _undeclared(shape.item, item, path + _place(shape, item, index))
        ]
    return []


def _place(shape: Shape, item: Any, index: int) -> str:
    element = paths.element_of(shape, item) if shape.is_granular_list else None
    return paths.show((element,)) if element else f"[{index}]"


def _all(unknown: list[str]) -> str:
    """Return the message for undeclared fields: a single error alone, several errors as a list."""
    told = [f"{path}: field not declared in schema" for path in unknown]
    return told[0] if len(told) == 1 else "errors:\n" + "\n".join(f"  {each}" for each in told)


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
