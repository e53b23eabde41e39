"""Launch bodies from Python arguments: fields in snake_case, and three short forms. Pure.

Owns the short forms (`ranks=4`, `gpus=1`, `cpus=2`, `memory="4Gi"`). The struct of the server defines which fields
exist. Only the given fields are sent, so that templates and defaults of the workspace can fill the others.
"""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.api.schemas import LaunchBody
from slipway.errors import FieldError, InvalidError

Json = dict[str, Any]

ROLE = "worker"
_RESOURCES = {"cpus": "cpu", "memory": "memory", "gpus": "nvidia.com/gpu"}


def body_of(kind: str, given: Mapping[str, Any]) -> Json:
    """Return the launch body.

    Raises:
        InvalidError: there is no such field, or its value has another type.
    """
    rest = dict(given)
    resources = {name: _amount(rest.pop(short)) for short, name in _RESOURCES.items() if rest.get(short) is not None}
    for short in _RESOURCES:
        rest.pop(short, None)
    count = rest.get("ranks")
    is_count = isinstance(count, int) and not isinstance(count, bool)
    if resources and not is_count and count is not None:
        detail = f"write the resources of each role in ranks; {', '.join(_RESOURCES)} are for ranks=N"
        raise InvalidError(f"ranks: {detail}", fields=(FieldError("/ranks", detail),))
    if is_count or resources:
        role: Json = {"name": ROLE, "count": count} if is_count else {"name": ROLE}
        rest["ranks"] = [role | ({"resources": resources} if resources else {})]
    return fields_of(LaunchBody, {"kind": kind, **rest}, short=tuple(_RESOURCES))


def difference_of(kind: str, given: Mapping[str, Any]) -> Json:
    """Return the fields in which one launch of many differs, as a partial launch body. Raises what `body_of` raises."""
    body = body_of(kind, given)
    del body["kind"]
    return body


def fields_of(struct: Any, given: Mapping[str, Any], *, short: tuple[str, ...] = ()) -> Json:
    """Return the given fields, checked against a struct, under the names of the API; None values are left out.

    Raises:
        InvalidError: the struct has no such field, or the value has another type.
    """
    names = {each.name: each.encode_name for each in msgspec.structs.fields(struct)}
    body: Json = {}
    for name, value in given.items():
        if name not in names:
            close = difflib.get_close_matches(name, [*names, *short], n=1)
            detail = "there is no such field" + (f"; did you mean {close[0]}?" if close else "")
            raise InvalidError(f"{name}: {detail}", fields=(FieldError(f"/{name}", detail),))
        if value is not None:
            body[names[name]] = msgspec.to_builtins(value)
    # A template may be given as a name instead of as an object; the server looks the name up.
    checked = {name: value for name, value in body.items() if not (name == "template" and isinstance(value, str))}
    try:
        msgspec.convert(checked, struct)
    except msgspec.ValidationError as error:
        words, _, at = str(error).partition(" - at `$")
        pointer = at.rstrip("`").replace("[...]", "").replace("[", "/").replace("]", "").replace(".", "/")
        raise InvalidError(f"{pointer.removeprefix('/')}: {words}", fields=(FieldError(pointer, words),)) from error
    return body


def _amount(value: Any) -> str:
    """Format an amount as Kubernetes writes it: 0.5 CPUs are `500m`."""
    if isinstance(value, float) and not value.is_integer():
        return f"{round(value * 1000)}m"
    return str(int(value)) if isinstance(value, float) else str(value)
