"""Patches that change part of an object: JSON merge patch, JSON patch and strategic merge patch.

The result is not validated. Invariant: the given object is not changed.

Strategic merge patch: lists merge by the key that their field declares, and directives (`$patch`, `$retainKeys`,
`$setElementOrder/`, `$deleteFromPrimitiveList/`) request other changes. Invariants: the result contains no directive; a
null in the patch removes the existing value and never adds a null.

Source: RFC 7386, RFC 6902, k8s.io/apimachinery/pkg/util/strategicpatch (behaviour, v1.37).
"""

from collections.abc import Callable
from typing import Any

import jsonpatch  # pyright: ignore[reportMissingTypeStubs]
import jsonpointer  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from slipway.local.apiserver.fields.shapes import Shape
from slipway.local.apiserver.objects import Json, clone, is_list, is_map, maps, type_name
from slipway.local.apiserver.status import StatusError, bad_request

_PATCH, _RETAIN = "$patch", "$retainKeys"
_ORDER, _DELETE = "$setElementOrder/", "$deleteFromPrimitiveList/"
_ABSENT: Any = msgspec.UNSET
_KEEPS_NOTHING = object()


class PatchError(Exception):
    """A patch is invalid. The message is the one of the real server."""


def merge(shape: Shape, current: Json, patch: Json) -> Json:
    """Return `current` with `patch` applied. Raises: PatchError."""
    directive = patch.get(_PATCH)
    if directive is not None:
        return _directed(patch, directive)
    result = dict(current)
    kept = patch.get(_RETAIN)
    if is_list(kept):
        result = {name: item for name, item in result.items() if name in kept}
    done = {_RETAIN} | _merge_ordered(shape, result, patch)
    for name, change in patch.items():
        if name in done or name.startswith(_ORDER):
            continue
        if name.startswith(_DELETE):
            field = name.removeprefix(_DELETE)
            if is_list(result.get(field)) and is_list(change):
                result[field] = [item for item in result[field] if item not in change]
            continue
        _merge_field(shape, result, name, change)
    return result


def _directed(patch: Json, directive: Any) -> Json:
    match directive:
        case "replace":
            return {name: clone(item) for name, item in patch.items() if name != _PATCH}
        case "delete":
            return {}
        case _:
            raise PatchError(f"unknown patch type found: {directive}")


def _merge_field(shape: Shape, result: Json, name: str, change: Any) -> None:
    if change is None:
        result.pop(name, None)
        return
    current: Any = result.get(name, _ABSENT)
    field = shape.fields.get(name)
    below = shape.child(name)
    if is_map(change) and is_map(current):
        replaces = field is not None and "replace" in field.patch
        result[name] = _plain(change) if replaces and _PATCH not in change else merge(below, current, change)
    elif is_list(change) and is_list(current):
        if field is not None and "merge" in field.patch:
            result[name] = _merge_lists(below, field.merge_key, current, change)
        else:
            result[name] = clone(change)
    else:
        plain = _plain(change)
        if plain is _KEEPS_NOTHING:
            result.pop(name, None)
        else:
            result[name] = plain


def _merge_ordered(shape: Shape, result: Json, patch: Json) -> set[str]:
    """Merge and order the lists whose order the patch specifies. Return their names, because they are then done."""
    done = set[str]()
    for directive, order in patch.items():
        if not directive.startswith(_ORDER) or not is_list(order):
            continue
        name = directive.removeprefix(_ORDER)
        field = shape.fields.get(name)
        key = field.merge_key if field is not None else ""
        current, change = result.get(name), patch.get(name, _ABSENT)
        if change is None or (change is _ABSENT and current is None):
            continue
        before: list[Any] = current if is_list(current) else []
        after = before
        if is_list(change):
            _check_order(change, order, key)
            after = _merge_lists(shape.child(name), key, before, change) if before else _plain(change)
        result[name] = _ordered(after, order, before, key)
        done.add(name)
    return done


def _check_order(patch: list[Any], order: list[Any], key: str) -> None:
    """Check that the items of the patch have the order that the patch specifies. Raises: PatchError."""
    places = [_index(order, item, key) for item in patch if not (is_map(item) and _PATCH in item)]
    known = [place for place in places if place is not None]
    if len(known) != len(places) or known != sorted(known):
        raise PatchError(f"The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n")


def _merge_lists(shape: Shape, key: str, current: list[Any], patch: list[Any]) -> list[Any]:
    if not any(is_map(item) for item in [*current, *patch]):
        merged = list(current)
        merged += [item for index, item in enumerate(patch) if item not in current and item not in patch[:index]]
        return _ordered(merged, patch, current, "")
    if not key:
        raise PatchError("cannot merge lists without merge key")
    before, changes, replaces = _without_special(key, current, maps(patch))
    if replaces:
        return [_plain(change) for change in changes]
    merged = list(before)
    for change in changes:
        if key not in change:
            raise PatchError(f"map: {change} does not contain declared merge key: {key}")
        index = _index(merged, change, key)
        if index is None:
            plain = _plain(change)
            merged += [] if plain is _KEEPS_NOTHING else [plain]
        else:
            merged[index] = merge(shape.item or shape, merged[index], change)
    return _ordered(merged, changes, before, key)


def _without_special(key: str, current: list[Any], patch: list[Json]) -> tuple[list[Any], list[Json], bool]:
    """Apply the items of the patch that are directives.

    Return the remaining list, the other items of the patch, and whether these replace the whole list.
    """
    before: list[Any] = list(current)
    rest, replaces = list[Json](), False
    for item in patch:
        directive = item.get(_PATCH)
        if directive is None:
            rest.append(item)
        elif directive == "delete":
            if key not in item:
                raise PatchError(f"map: {item} does not contain declared merge key: {key}")
            before = [each for each in before if not is_map(each) or each.get(key) != item[key]]
        elif directive == "replace":
            replaces = True
        else:
            raise PatchError(f"unknown patch type found: {directive}")
    return before, rest, replaces


def _ordered(merged: list[Any], order: list[Any], live: list[Any], key: str) -> list[Any]:
    """Return the items in a merged order.

    The items that `order` names have its order. Each other item precedes the first named item that it precedes in
    `live`.
    """
    named = sorted((item for item in merged if _index(order, item, key) is not None), key=_place(order, key))
    others = sorted((item for item in merged if _index(order, item, key) is None), key=_place(live, key))
    result: list[Any] = []
    while named and others:
        left, right = _index(live, others[0], key), _index(live, named[0], key)
        goes_first = left is not None and right is not None and left < right
        result.append(others.pop(0) if goes_first else named.pop(0))
    return [*result, *named, *others]


def _place(items: list[Any], key: str) -> Callable[[Any], int]:
    def place(item: Any) -> int:
        index = _index(items, item, key)
        return len(items) if index is None else index

    return place


def _index(items: list[Any], wanted: Any, key: str) -> int | None:
    for index, item in enumerate(items):
        if item.get(key) == wanted.get(key) if key and is_map(item) and is_map(wanted) else item == wanted:
            return index
    return None


def _plain(value: Any) -> Any:
    """Return a part of a patch that has no existing value to merge with, without nulls and directives."""
    if is_map(value):
        if _PATCH in value:
            return _KEEPS_NOTHING
        found: Json = {}
        for name, item in value.items():
            if item is not None and not name.startswith((_ORDER, _DELETE)) and name != _RETAIN:
                plain = _plain(item)
                if plain is not _KEEPS_NOTHING:
                    found[name] = plain
        return found
    if is_list(value):
        return [plain for plain in (_plain(item) for item in value) if plain is not _KEEPS_NOTHING]
    return value


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
            return merge(shape, current, patch)
        except PatchError as exc:
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
