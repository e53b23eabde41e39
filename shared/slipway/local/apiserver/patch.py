"""The ways of changing part of an object: JSON merge patch, JSON patch and strategic merge.

Owns how a patch document turns one object into the next. It checks nothing about the result. Strategic merge is
approximated: lists of the built-in kinds merge by the keys below, which is what `kubectl apply` and `kubectl patch`
need. Invariant: the object given is not changed.

Source: RFC 7386, RFC 6902, k8s.io/apimachinery/pkg/util/strategicpatch.
"""

from typing import Any

import jsonpatch  # pyright: ignore[reportMissingTypeStubs]
import jsonpointer  # pyright: ignore[reportMissingTypeStubs]

from slipway.local.apiserver.objects import Json, clone, is_list, is_map, maps
from slipway.local.apiserver.status import StatusError, bad_request

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port"),
    "conditions": ("type",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "imagePullSecrets": ("name",),
    "schedulingGates": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "taints": ("key",),
    "secrets": ("name",),
}
_SET_LISTS = frozenset({"finalizers"})


def apply_patch(kind: str, current: Json, patch: Any) -> Json:
    """The object after `patch` of media type `kind`. Raises: StatusError 400 or 422."""
    if kind == JSON:
        return _json_patch(current, patch)
    if not is_map(patch):
        raise bad_request("error decoding patch: a JSON object is wanted")
    if kind == STRATEGIC:
        return _strategic(current, patch)
    return _merge(current, patch)


def _merge(current: Any, patch: Any) -> Any:
    if not is_map(patch):
        return clone(patch)
    result: Json = dict(current) if is_map(current) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), change)
    return result


def _json_patch(current: Json, patch: Any) -> Json:
    if not is_list(patch):
        raise bad_request("error decoding patch: a JSON array is wanted")
    try:
        operations: Any = jsonpatch.JsonPatch(patch)
        result: Any = operations.apply(clone(current))
    except jsonpatch.InvalidJsonPatch as exc:
        raise bad_request(f"error decoding patch: {exc}") from exc
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as exc:
        message = f"the server rejected our request due to an error in our request: {exc}"
        raise StatusError(422, "Invalid", message) from exc
    if not is_map(result):
        raise bad_request("the patch leaves no object")
    return result


def _strategic(current: Any, patch: Json) -> Json:
    if patch.get("$patch") == "replace":
        return {name: clone(item) for name, item in patch.items() if name != "$patch"}
    result: Json = dict(current) if is_map(current) else {}
    if patch.get("$patch") == "delete":
        return {}
    for name, change in patch.items():
        if name == "$patch" or name.startswith("$setElementOrder/"):
            continue
        if name.startswith("$retainKeys"):
            kept: list[Any] = change
            result = {key: item for key, item in result.items() if key in kept}
        elif name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            result[field] = [item for item in result.get(field, []) if item not in change]
        elif change is None:
            result.pop(name, None)
        elif is_map(change):
            result[name] = _strategic(result.get(name), change)
        elif is_list(change):
            result[name] = _merge_list(name, result.get(name), change)
        else:
            result[name] = change
    return result


def _merge_list(name: str, current: Any, patch: list[Any]) -> list[Any]:
    if name in _SET_LISTS and is_list(current):
        return [*current, *(item for item in patch if item not in current)]
    key = _list_key(name, patch)
    if key is None or not is_list(current):
        return [_without_directives(item) for item in patch if not _is_directive(item)]
    if any(is_map(item) and item.get("$patch") == "replace" for item in patch):
        return [_without_directives(item) for item in patch if not _is_directive(item)]
    result = list(current)
    for change in maps(patch):
        index = next((i for i, item in enumerate(result) if is_map(item) and item.get(key) == change.get(key)), None)
        if change.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(clone(change))
        else:
            result[index] = _strategic(result[index], change)
    return result


def _list_key(name: str, patch: list[Any]) -> str | None:
    for key in _MERGE_KEYS.get(name, ()):
        if patch and all(key in item or "$patch" in item for item in maps(patch)) and len(maps(patch)) == len(patch):
            return key
    return None


def _is_directive(item: Any) -> bool:
    return is_map(item) and set(item) == {"$patch"}


def _without_directives(item: Any) -> Any:
    return {key: clone(value) for key, value in item.items() if key != "$patch"} if is_map(item) else item
