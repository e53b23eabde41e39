"""Patches that change part of an object: JSON merge patch, JSON patch and strategic merge patch.

Owns the application of a patch document to an object; strategic merge itself is `fields/strategic.py`. Does not
validate the result. Invariant: the given object is not changed.

Source: RFC 7386, RFC 6902.
"""

from typing import Any

import jsonpatch  # pyright: ignore[reportMissingTypeStubs]
import jsonpointer  # pyright: ignore[reportMissingTypeStubs]

from slipway.local.apiserver.fields import strategic
from slipway.local.apiserver.fields.shapes import Shape
from slipway.local.apiserver.objects import Json, clone, is_list, is_map, type_name
from slipway.local.apiserver.status import StatusError, bad_request

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def apply_patch(kind: str, current: Json, patch: Any, shape: Shape) -> Json:
    """Return the object after `patch`; `kind` is the media type. Raises: StatusError 400, 422 or 500."""
    if kind == JSON:
        return _json_patch(current, patch)
    if not is_map(patch):
        words = f"json: cannot unmarshal {type_name(patch)} into Go value of type map[string]interface {{}}"
        raise bad_request(words if kind == STRATEGIC else f"error decoding patch: {words}")
    if kind == STRATEGIC:
        try:
            return strategic.merge(shape, current, patch)
        except strategic.PatchError as exc:
            raise StatusError(500, "", str(exc)) from exc
    return _merge(current, patch)


def _merge(current: Any, patch: Any) -> Any:
    if not is_map(patch):
        return _without_nulls(patch)
    result: Json = dict(current) if is_map(current) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), change)
    return result


def _without_nulls(value: Any) -> Any:
    """Return a copy without nulls in objects, also in objects inside lists."""
    if is_map(value):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if is_list(value):
        return [_without_nulls(item) for item in value]
    return value


def _json_patch(current: Json, patch: Any) -> Json:
    if not is_list(patch):
        words = f"json: cannot unmarshal {type_name(patch)} into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: {words}")
    try:
        jsonpatch.JsonPatch(patch)
        result: Any = clone(current)
        for operation in patch:
            result = _step(result, operation)
    except jsonpatch.InvalidJsonPatch as exc:
        raise bad_request(f"error decoding patch: {exc}") from exc
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as exc:
        message = f"the server rejected our request due to an error in our request: {exc}"
        raise StatusError(422, "Invalid", message) from exc
    if not is_map(result):
        raise bad_request("the patch leaves no object")
    return result


def _step(document: Any, operation: Json) -> Any:
    """Apply one operation to the document in place.

    The server is more tolerant than the RFC: a missing key of a map reads as null, and can be replaced.
    """
    name = operation.get("op")
    if name in ("replace", "test"):
        parent, last = jsonpointer.JsonPointer(operation["path"]).to_last(document)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if last is not None and is_map(parent) and last not in parent:
            if name == "test" and operation.get("value") is None:
                return document
            if name == "replace":
                operation = {**operation, "op": "add"}
    changed: Any = jsonpatch.JsonPatch([operation])
    return changed.apply(document, in_place=True)
