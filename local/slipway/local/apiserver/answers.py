"""HTTP requests and responses of the API server: the parsed call, and the encoding of results of the core.

Owns the parsed request line and headers, content negotiation (objects, Tables, metadata only) and the encoding of
answers. Knows nothing of verbs. Invariant: each version of an object is encoded once for all callers.
"""

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.types import Scope, Send

from slipway.local.apiserver import table
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.identity import ANONYMOUS
from slipway.local.apiserver.objects import Json, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.paging import Listing
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.status import StatusError
from slipway.local.apiserver.store import ObjectVersion, ServedEvent

_JSON = "application/json"


class Call:
    """One request. `stream_type` is the content type of the answer if the answer is a stream."""

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope.get("method", "GET")
        self.is_upgrade = scope["type"] == "websocket"
        self.path: str = unquote(scope["path"])
        self.query: dict[str, str] = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        self._pairs: list[tuple[bytes, bytes]] = scope["headers"]
        self._headers: dict[bytes, bytes] = dict(self._pairs)
        self.accept = self.header(b"accept")
        self.content_type = self.header(b"content-type").partition(";")[0].strip()
        self.body = b""
        self.user = ANONYMOUS
        self.stream_type = b"application/json"

    def header(self, name: bytes) -> str:
        return self._headers.get(name, b"").decode("latin-1")

    def headers(self, name: bytes) -> list[str]:
        """Return every value of a header that may occur several times."""
        return [value.decode("latin-1") for key, value in self._pairs if key == name]

    @property
    def wants_table(self) -> bool:
        return "as=Table" in self.accept and "g=meta.k8s.io" in self.accept

    @property
    def wants_metadata(self) -> bool:
        return "as=PartialObjectMetadata" in self.accept


class HttpAnswer(msgspec.Struct, frozen=True):
    code: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send) -> None:
        length = str(len(self.body)).encode()
        headers = [(b"content-type", self.content_type), (b"content-length", length), *self.headers]
        await send({"type": "http.response.start", "status": self.code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def json(document: Json, code: int = 200, content_type: str = _JSON) -> HttpAnswer:
    return HttpAnswer(code, msgspec.json.encode(document), content_type.encode())


def text(words: str) -> HttpAnswer:
    return HttpAnswer(200, words.encode(), b"text/plain; charset=utf-8")


def refusal(error: StatusError) -> HttpAnswer:
    headers = list[tuple[bytes, bytes]]()
    if "retryAfterSeconds" in error.details:
        headers.append((b"retry-after", str(error.details["retryAfterSeconds"]).encode()))
    return HttpAnswer(error.code, msgspec.json.encode(error.to_json()), headers=tuple(headers))


def written(
    call: Call, core: ClusterCore, kind: ResourceKind, obj: Json, options: WriteOptions, code: int
) -> HttpAnswer:
    """Return the answer to a write: the object as written, and the warnings about it."""
    headers = tuple((b"warning", f'299 - "{_escape(words)}"'.encode()) for words in options.warnings)
    if call.wants_table:
        body = msgspec.json.encode(table.render(kind, [obj], {}, core.clock()))
    else:
        meta = metadata(obj)
        found = core.store.find(kind.resource, meta.get("namespace", ""), meta["name"])
        stored = found.whole if found is not None and found.obj is obj else b""
        body = stored or msgspec.json.encode(options.ownership.shown_on(obj))
    return HttpAnswer(code, body, headers=headers)


def single(call: Call, kind: ResourceKind, record: ObjectVersion, now: float) -> HttpAnswer:
    if call.wants_table:
        meta = {"resourceVersion": str(record.version)}
        return json(table.render(kind, [record.obj], meta, now, call.query.get("includeObject", "Metadata")))
    if call.wants_metadata:
        return json(table.partial(record.obj))
    return HttpAnswer(200, record.whole)


def collection(call: Call, kind: ResourceKind, listing: Listing, now: float) -> HttpAnswer:
    meta: Json = {"resourceVersion": str(listing.version)}
    if listing.continue_token:
        meta["continue"] = listing.continue_token
        if listing.remaining is not None:
            meta["remainingItemCount"] = listing.remaining
    if call.wants_table:
        return json(table.render(kind, listing.items, meta, now, call.query.get("includeObject", "Metadata")))
    head: Json = {"kind": kind.collection_kind, "apiVersion": kind.api_version, "metadata": meta}
    if call.wants_metadata:
        items = [table.partial(obj) for obj in listing.items]
        kind_name = "PartialObjectMetadataList"
        return json({**head, "kind": kind_name, "apiVersion": "meta.k8s.io/v1", "items": items})
    opening = msgspec.json.encode(head)[:-1] + b',"items":['
    return HttpAnswer(200, opening + b",".join([record.whole for record in listing.records]) + b"]}")


def event_encoder(call: Call, kind: ResourceKind, clock: Callable[[], float]) -> Callable[[ServedEvent], bytes]:
    """Return the function that encodes events in the form that this watch requested."""
    if call.wants_table:
        include = call.query.get("includeObject", "Metadata")

        def as_table(event: ServedEvent) -> bytes:
            meta = {"resourceVersion": str(event.version)}
            return _event(event, table.render(kind, [kind.shown(event.obj)], meta, clock(), include))

        return as_table
    if call.wants_metadata:
        return lambda event: _event(event, table.partial(event.obj))
    if kind.view is not None:
        return lambda event: _event(event, kind.shown(event.obj))
    return lambda event: event.line


def _event(event: ServedEvent, obj: Json) -> bytes:
    return msgspec.json.encode({"type": event.type, "object": obj}) + b"\n"


def _escape(words: str) -> str:
    return words.replace("\\", "\\\\").replace('"', '\\"')
