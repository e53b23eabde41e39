"""Decoding: turns a document that a client sent into an object of the kind.

Owns the identity checks (apiVersion, kind, namespace), the shape of metadata and of built-in kinds, and the warnings
about unknown and duplicate fields. Pure. Invariants: the document is not changed; with `Strict` no field is dropped
silently; the resulting object has metadata.
"""

from typing import Any

import msgspec

from slipway.local.apiserver import meta, status
from slipway.local.apiserver.fields import reading
from slipway.local.apiserver.fields.shapes import Shape, builtin_shapes
from slipway.local.apiserver.objects import Json, clone, is_map, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.status import StatusError


class UndecodableError(Exception):
    """The document is not an object of the kind. Its message is the last part of a refusal's message."""


def decode(kind: ResourceKind, shape: Shape, namespace: str, document: Any, options: WriteOptions) -> Json:
    """Return a new object. Raises: StatusError 400, 422; UndecodableError."""
    if not is_map(document):
        raise status.bad_request("the body of the request is not an object")
    new: Json = {"apiVersion": kind.api_version, "kind": kind.kind, **clone(document)}
    _check_identity(kind, new)
    _shape(kind, shape, new, options)
    meta.check_shape(new)
    own = new["metadata"].get("namespace")
    if kind.namespaced:
        if own and own != namespace:
            words = "the namespace of the provided object does not match the namespace sent on the request"
            raise status.bad_request(words)
        new["metadata"]["namespace"] = namespace
    else:
        new["metadata"].pop("namespace", None)
    kind.strategy.decode(new, options)
    return new


def refusal(kind: ResourceKind, words: str) -> StatusError:
    """Return the error with which a create or a replace answers an `UndecodableError`."""
    return status.bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {words}')


def patch_refusal(words: str, document: Any) -> StatusError:
    """Return the error with which a patch answers an `UndecodableError`."""
    shown = msgspec.json.encode(document, order="sorted").decode()
    cause = status.bad_value("patch", shown, words)
    return StatusError(422, "Invalid", f' "" is invalid: {cause}', {"causes": [cause.to_json()]})


def complain(options: WriteOptions, dropped: list[str]) -> None:
    """Warn about dropped fields and duplicate fields. Raises: UndecodableError when validation is strict."""
    if options.field_validation == "Ignore" or not (dropped or options.duplicates):
        return
    order = options.order
    words = [(f'duplicate field "{path}"', order.get(path, 0)) for path in options.duplicates]
    words += [(f'unknown field "{path}"', order.get(path, len(order))) for path in dropped]
    options.duplicates = []
    told = [text for text, _ in (sorted(words, key=lambda each: each[1]) if order else words)]
    if options.field_validation == "Strict":
        raise UndecodableError(f"strict decoding error: {', '.join(told)}")
    options.warnings += told


def _check_identity(kind: ResourceKind, new: Json) -> None:
    if (new["apiVersion"], new["kind"]) == (kind.api_version, kind.kind):
        return
    name = str(metadata(new).get("name") or "")
    version = str(new["apiVersion"]).rpartition("/")[2]
    if kind.is_custom and new["apiVersion"] == kind.api_version:
        cause = status.bad_value("kind", new["kind"], f"must be {kind.kind}")
        raise status.invalid(f"{new['kind']}.{kind.group}", name, [cause, *kind.strategy.broken_rules(new)])
    if not kind.is_custom:
        words = f'no kind "{new["kind"]}" is registered for version "{new["apiVersion"]}" in scheme'
        raise status.bad_request(f'{new["kind"]} in version "{version}" cannot be handled as a {kind.kind}: {words}')
    got = f"the API version in the data ({new['apiVersion']})"
    raise status.bad_request(f"{got} does not match the expected API version ({kind.api_version})")


def _shape(kind: ResourceKind, shape: Shape, new: Json, options: WriteOptions) -> None:
    given = new.get("metadata")
    if kind.is_custom and given is not None and not is_map(given):
        raise UndecodableError(f"json: cannot unmarshal {reading.go_name(given)} into Go value of type v1.ObjectMeta")
    try:
        if not kind.is_custom:
            complain(options, reading.read(shape, new) if shape.fields else [])
        elif given is not None:
            options.dropped = [f"metadata.{path}" for path in reading.read(builtin_shapes().meta(), given)]
    except reading.ShapeError as exc:
        raise UndecodableError(str(exc)) from exc
