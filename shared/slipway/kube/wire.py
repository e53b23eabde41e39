"""Conversion between Kubernetes JSON and our structs: encodes bodies; decodes objects, lists and watch events.

Owns apiVersion and kind of the bodies that we send, the fence check of a PUT, and one set of decoders per resource.
Must not know HTTP or any error of a server. Lists and changes are decoded directly into structs; any other watch line
is parsed once for its type and once for its object.

Invariant: an object that cannot be decoded raises `InvalidError` and is never skipped, because a missing object looks
deleted. JSON that is nested too deep to be decoded is cut first (`cut_deep_json`); the later validation then refuses
the object.

JSON that is nested too deep is cut, so that one such object cannot prevent the decoding of all others. The API server
accepts thousands of levels in fields without a schema, such as a pod template; our decoder fails after a few hundred.
Owns where the cut is made. Pure.

Invariant: if the input of `cut` is JSON, the result is JSON with at most `LEVELS_MAX` levels; less deep parts are
unchanged.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec

from slipway.crd.meta import ListMeta, ObjectMeta, RawObject
from slipway.errors import ControlPlaneError, InvalidError, InvariantError
from slipway.kube.errors import ServerStatus, Verb, explain
from slipway.kube.ports import Listed, WatchEvent, WatchType
from slipway.kube.resources import Resource

LEVELS_MAX = 128
"""Four times the limit of a launch body, so that an object that was cut is refused because of its depth."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def cut_deep_json(body: bytes) -> bytes:
    """Return `body` with null in place of each object and list deeper than `LEVELS_MAX`. Takes linear time."""
    kept: list[bytes] = []
    levels = begun = 0
    for token in _TOKEN.finditer(body):
        match token[0]:
            case b"{" | b"[":
                levels += 1
                if levels == LEVELS_MAX + 1:
                    kept.append(body[begun : token.start()])
            case b"}" | b"]":
                if levels == LEVELS_MAX + 1:
                    kept.append(b"null")
                    begun = token.end()
                levels -= 1
            case _:
                pass
    if levels <= LEVELS_MAX:
        kept.append(body[begun:])
    return b"".join(kept)


T = TypeVar("T")
D = TypeVar("D")


class HasMetadata(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> ObjectMeta: ...


class Outgoing(NamedTuple):
    """A body that is ready to be sent, with the name and namespace of its path."""

    name: str
    namespace: str | None
    body: RawObject


class _ListBody(msgspec.Struct, Generic[T]):
    metadata: ListMeta
    items: list[T] | None = None


class _EventLine(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Change(msgspec.Struct, Generic[T]):
    type: str
    object: T


class _MetaOnly(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


_COMMON = (b'{"type":"ADDED",', b'{"type":"MODIFIED",', b'{"type":"DELETED",')
_EVENT_LINE = msgspec.json.Decoder(_EventLine)
_META_ONLY = msgspec.json.Decoder(_MetaOnly)
_STATUS = msgspec.json.Decoder(ServerStatus)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


class Codec(Generic[T]):
    """The decoders of one resource."""

    def __init__(self, resource: Resource[T]) -> None:
        self._what = resource.plural
        struct: Any = resource.struct
        self._one = cast("msgspec.json.Decoder[T]", msgspec.json.Decoder(struct))
        self._many = cast("msgspec.json.Decoder[_ListBody[T]]", msgspec.json.Decoder(_ListBody[struct]))
        self._change = cast("msgspec.json.Decoder[_Change[T]]", msgspec.json.Decoder(_Change[struct]))

    def decode(self, body: bytes | msgspec.Raw) -> T:
        """Decode one object. Raises InvalidError."""
        try:
            return self._one.decode(body)
        except RecursionError:
            return self.decode(cut_deep_json(bytes(body)))
        except msgspec.ValidationError:
            return self._without_nulls(body, self._one)
        except _UNREADABLE as error:
            raise InvalidError(f"the server sent {self._what} that we cannot read: {error}") from error

    def decode_list(self, body: bytes) -> Listed[T]:
        """Decode one page. Raises InvalidError."""
        try:
            page = self._many.decode(body)
        except RecursionError:
            return self.decode_list(cut_deep_json(body))
        except msgspec.ValidationError:
            page = self._without_nulls(body, self._many)
        except _UNREADABLE as error:
            raise InvalidError(f"the server sent a list of {self._what} that we cannot read: {error}") from error
        return Listed(
            items=page.items or [],
            resource_version=page.metadata.resource_version,
            continue_=page.metadata.continue_,
            remaining_item_count=page.metadata.remaining_item_count,
        )

    def decode_event(self, line: bytes) -> WatchEvent[T]:
        """Decode one line of a watch. Raises the error in an ERROR event, or InvalidError."""
        if line.startswith(_COMMON):
            # Nearly all lines have this form; they are decoded in one pass.
            with contextlib.suppress(*_UNREADABLE, RecursionError):
                change = self._change.decode(line)
                return WatchEvent(WatchType(change.type), change.object, metadata_of(change.object).resource_version)
        try:
            event = _EVENT_LINE.decode(line)
        except RecursionError:
            return self.decode_event(cut_deep_json(line))
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        try:
            if event.type == "ERROR":
                raise _error_event(event.object)
            if event.type == WatchType.BOOKMARK:
                version = _META_ONLY.decode(event.object).metadata.resource_version
                return WatchEvent(WatchType.BOOKMARK, None, version)
            type_ = WatchType(event.type)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._unreadable(error) from error
        found = self.decode(event.object)
        return WatchEvent(type_, found, metadata_of(found).resource_version)

    def _unreadable(self, error: Exception) -> InvalidError:
        return InvalidError(f"the watch of {self._what} sent a line that we cannot read: {error}")

    def _without_nulls(self, body: bytes | msgspec.Raw, decoder: "msgspec.json.Decoder[D]") -> D:
        """Decode again without nulls, which is slower: Go writes some empty lists as null, such as `names` of a node's
        image."""
        try:
            try:
                plain = msgspec.json.decode(body)
            except RecursionError:
                plain = msgspec.json.decode(cut_deep_json(bytes(body)))
            return decoder.decode(msgspec.json.encode(_drop_nulls(plain)))
        except _UNREADABLE as error:
            raise InvalidError(f"the server sent {self._what} that we cannot read: {error}") from error


_codecs: dict[Resource[Any], Codec[Any]] = {}


def codec_of(resource: Resource[T]) -> Codec[T]:
    """Return the decoders of a resource; they are created once."""
    found = _codecs.get(resource)
    if found is None:
        found = _codecs[resource] = Codec(resource)
    return found


def metadata_of(obj: object) -> ObjectMeta:
    """Return the metadata of any object that a Resource decodes."""
    return cast(HasMetadata, obj).metadata


def outgoing(resource: Resource[Any], body: Any, namespace: str | None = None) -> Outgoing:
    """Return the body with apiVersion, kind and namespace set; the argument is not changed.

    Raises:
        InvariantError: no name (unless the resource is nameless), or no namespace for a namespaced resource.
    """
    raw = _shallow(body)
    metadata = _shallow(raw.get("metadata") or {})
    name = metadata.get("name") or ""
    if not name and not resource.nameless:
        raise InvariantError(f"a {resource.kind} without metadata.name")
    where: str | None = None
    if resource.namespaced:
        where = namespace or metadata.get("namespace")
        if not where:
            raise InvariantError(f"{resource.kind} {name!r} without a namespace")
        metadata["namespace"] = where
    rest = {key: value for key, value in raw.items() if key not in {"apiVersion", "kind", "metadata"}}
    return Outgoing(
        name, where, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata} | rest
    )


def fenced(resource: Resource[Any], body: Any) -> Outgoing:
    """Return `outgoing` for a PUT. Raises InvariantError when metadata.resourceVersion is missing."""
    ready = outgoing(resource, body)
    if not ready.body["metadata"].get("resourceVersion"):
        raise InvariantError(f"a PUT of {resource.kind} {ready.name!r} without metadata.resourceVersion has no fence")
    return ready


def binding(namespace: str, pod: str, uid: str, node: str) -> RawObject:
    """Return the body of a POST on `pods/binding`; because of the uid the server refuses another pod of that name."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def delete_options(uid: str | None, resource_version: str | None, grace_s: int | None, propagation: str) -> RawObject:
    """Return the body of a DELETE with its preconditions."""
    options: RawObject = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    if uid or resource_version:
        options["preconditions"] = {key: value for key, value in preconditions.items() if value}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options


def access_review(resource: Resource[Any], verb: str, namespace: str | None, subresource: str) -> RawObject:
    """Return the body of a SelfSubjectAccessReview."""
    wanted = {"verb": verb, "group": resource.group, "resource": resource.plural, "subresource": subresource}
    if namespace:
        wanted["namespace"] = namespace
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in wanted.items() if value}},
    }


def _shallow(value: Any) -> RawObject:
    """Return a new dictionary from a struct or a mapping; the values of a mapping are shared, not copied."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return msgspec.to_builtins(value)


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {key: _drop_nulls(inner) for key, inner in pairs if inner is not None}
    if isinstance(value, list):
        return [_drop_nulls(inner) for inner in cast("list[Any]", value)]
    return value


def _error_event(object_: msgspec.Raw) -> ControlPlaneError:
    status = _STATUS.decode(object_)
    return explain(Verb.WATCH, status.code or 500, status)
