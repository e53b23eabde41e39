"""The API server over HTTP: an ASGI application around the core.

Owns routing by verb, content negotiation, bodies, and the times at which the controllers run. Decides nothing about
objects.
Invariants: every refusal is a Status object; a body larger than 3 MiB is refused (413) before it is read to the end;
controllers run soon after every write and at least every `CONTROLLER_PERIOD_S`.

Duplicate fields in a JSON document: the parser keeps the last value, and the server reports each duplicate.

Pure. Invariant: a document without duplicates costs one encoding and two counts. Only a document that may contain
duplicates is parsed again.
"""

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from email.utils import formatdate
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Message, Receive, Scope, Send

from slipway import yaml_reader
from slipway.errors import InvalidError
from slipway.local.apiserver import answers, commands, discovery, patch, routes, scale, status, wire
from slipway.local.apiserver.access import AccessGate, Authorization, LocalReviews, ReviewRequest
from slipway.local.apiserver.accounts import ServiceAccountTokens
from slipway.local.apiserver.answers import Call, HttpAnswer
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.discovery import find
from slipway.local.apiserver.fields.shapes import ANY
from slipway.local.apiserver.logs import NodeLogs, NodeLogSource
from slipway.local.apiserver.objects import Json, is_list, is_map, mapping, name_of
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.routes import RouteTarget
from slipway.local.apiserver.status import StatusError
from slipway.local.apiserver.watching import Wakers, WatchQuery, watch
from slipway.model import exec_channels
from slipway.runtime.tasks import TaskGroup

_SPACED = re.compile(rb'"\s+:')


def duplicate_fields(body: bytes, document: Any) -> tuple[list[str], dict[str, int]]:
    """Return (paths of duplicates, {path: position of its first occurrence}); both are empty without duplicates."""
    if body.count(b'":') == msgspec.json.encode(document).count(b'":') and not _SPACED.search(body):
        return [], {}
    found = list[str]()
    order: dict[str, int] = {}
    _walk(json.loads(body, object_pairs_hook=_Pairs), "", found, order)
    return (found, order) if found else ([], {})


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as pairs in document order, duplicates included."""


def _walk(value: Any, path: str, found: list[str], order: dict[str, int]) -> None:
    if isinstance(value, _Pairs):
        seen = set[str]()
        for name, item in value:
            where = f"{path}.{name}" if path else name
            if name in seen and where not in found:
                found.append(where)
            seen.add(name)
            order.setdefault(where, len(order))
            _walk(item, where, found, order)
    elif is_list(value):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", found, order)


BODY_BYTES_MAX = 3 * 1024 * 1024
CONTROLLER_DELAY_S = 0.005
CONTROLLER_PERIOD_S = 1.0
WATCH_TIMEOUT_S = 3600.0
_DOCUMENTS = ("application/json", "application/yaml")
_PATCHES = (patch.JSON, patch.MERGE, patch.STRATEGIC, patch.APPLY)


class AccessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How callers are authenticated and authorized; see `create_app`."""

    token: str = ""
    authorization: Authorization = "open"
    accounts_key: bytes = b""
    hosts: tuple[str, ...] = ()


class ApiServer:
    """The ASGI endpoint of one core."""

    def __init__(
        self,
        core: ClusterCore,
        *,
        logs: NodeLogs | None = None,
        doors: AccessOptions,
        bookmark_interval_s: float = 60.0,
    ) -> None:
        self._core = core
        self._logs = logs or NodeLogSource()
        self._accounts = ServiceAccountTokens(core, doors.accounts_key or secrets.token_bytes(32))
        self._gate = AccessGate(
            core, self._accounts, token=doors.token, authorization=doors.authorization, hosts=doors.hosts
        )
        self._reviews = LocalReviews(core, self._accounts, token=doors.token)
        self._bookmark_interval_s = bookmark_interval_s
        self._wakers = Wakers(core)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._controllers_due = False
        self._commands: set[_SocketPeer] = set()
        core.subscribe(lambda _: self._call_controllers())

    def close(self) -> None:
        """End all watches and commands, so that the server can stop."""
        self._wakers.close()
        for peer in self._commands:
            peer.leave()

    def stop_soon(self) -> None:
        """Call `close` from another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._run_command(_SocketPeer(scope, receive, send))
            return
        if scope["type"] != "http":
            return
        call, send = Call(scope), _dated(send, self._core.clock)
        try:
            call.user = self._gate.admit(call)
            call.body = await _read_body(call, receive)
            answer = self._answer(call)
            if isinstance(answer, HttpAnswer):
                await answer.send(send)
                return
            await _stream(answer, receive, send, content_type=call.stream_type)
        except StatusError as exc:
            await answers.refusal(exc).send(send)

    async def _run_command(self, peer: "_SocketPeer") -> None:
        """Serve `pods/exec`, the only WebSocket endpoint."""
        call = Call(peer.scope)
        await peer.connected()
        try:
            call.user = self._gate.admit(call)
            target = routes.resolve(self._core.registry, call.path)
            if target.kind.resource != "pods" or target.subresource != "exec":
                raise status.bad_request("only pods/exec is a WebSocket here")
            pod = self._core.get("pods", target.place, target.name)
            asked = commands.asked_of(pod, peer.scope["query_string"])
            node = self._core.get("nodes", "", mapping(pod, "spec")["nodeName"])
            if exec_channels.PROTOCOL not in peer.scope.get("subprotocols", ()):
                raise status.bad_request(f"only the protocol {exec_channels.PROTOCOL} is spoken here")
        except StatusError as exc:
            await peer.refuse(answers.refusal(exc))
            return
        await peer.accept(exec_channels.PROTOCOL)
        self._commands.add(peer)
        try:
            await commands.run(peer, pod, node, asked)
        finally:
            self._commands.discard(peer)

    async def run_controllers(self) -> None:
        """Run the controllers periodically, because some of their work depends on time alone."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._call_controllers()
            await asyncio.sleep(CONTROLLER_PERIOD_S)

    def _call_controllers(self) -> None:
        if not self._controllers_due:
            with contextlib.suppress(RuntimeError):  # no event loop: a caller runs the core's controllers itself
                asyncio.get_running_loop().call_later(CONTROLLER_DELAY_S, self._run_controllers)
                self._controllers_due = True

    def _run_controllers(self) -> None:
        self._controllers_due = False
        self._core.run_controllers()

    def _answer(self, call: Call) -> HttpAnswer | AsyncIterator[bytes]:
        fixed = find(self._core.registry, call)
        if fixed is not None:
            return fixed
        if call.method == "POST":
            unstored = self._post_unstored(call, call.path.strip("/").split("/"))
            if unstored is not None:
                return unstored
        target = routes.resolve(self._core.registry, call.path)
        match call.method:
            case "GET":
                return self._read(call, target)
            case "POST":
                return self._post(call, target)
            case "PUT":
                return self._put(call, target)
            case "PATCH":
                return self._patch(call, target)
            case "DELETE":
                return self._delete(call, target)
            case _:
                raise status.not_supported(call.method)

    def _read(self, call: Call, target: RouteTarget) -> HttpAnswer | AsyncIterator[bytes]:
        core, kind = self._core, target.kind
        if routes.is_true(call.query, "watch"):
            return self._watch(call, target)
        if not target.name:
            listing = core.list(kind.key, target.namespace, routes.list_query(call.query))
            return answers.collection(call, kind, listing, core.clock())
        if target.subresource == "log":
            return self._log(call, target)
        if target.subresource == "scale" and target.subresource in kind.subresources:
            return answers.json(scale.read(core.get(kind.key, target.place, target.name)))
        if target.subresource == "exec":
            raise status.bad_request(commands.NO_UPGRADE)
        if target.subresource in discovery.CREATED_ONLY:
            raise status.not_supported("GET")
        _check_subresource(target)
        return answers.single(call, kind, core.record(kind, target.place, target.name), core.clock())

    def _watch(self, call: Call, target: RouteTarget) -> AsyncIterator[bytes]:
        wanted = routes.list_query(call.query, target.name)
        query = WatchQuery(
            kind=target.kind,
            namespace=target.namespace,
            labels=wanted.labels,
            fields=wanted.fields,
            version=wanted.version,
            timeout_s=float(routes.number(call.query, "timeoutSeconds") or WATCH_TIMEOUT_S),
            bookmarks=routes.is_true(call.query, "allowWatchBookmarks"),
            sends_initial=routes.is_true(call.query, "sendInitialEvents"),
        )
        encode = answers.event_encoder(call, target.kind, self._core.clock)
        interval_s = self._bookmark_interval_s
        return watch(self._core, self._wakers, query, encode, bookmark_interval_s=interval_s)

    def _log(self, call: Call, target: RouteTarget) -> HttpAnswer | AsyncIterator[bytes]:
        pod = self._core.get("pods", target.place, target.name)
        node = str(mapping(pod, "spec").get("nodeName") or "")
        if not node:
            return HttpAnswer(204, b"", b"text/plain")
        call.stream_type = b"text/plain"
        return self._logs.read(pod, self._core.get("nodes", "", node), call.query)

    def _post(self, call: Call, target: RouteTarget) -> HttpAnswer:
        core, kind, place = self._core, target.kind, target.place
        if kind.resource == "pods" and target.subresource == "exec":
            raise status.bad_request(commands.NO_UPGRADE)
        options = _options(call, "CreateOptions")
        body = _object(call, options)
        if kind.resource == "pods" and target.subresource == "binding":
            if name_of(body) != target.name:
                raise status.bad_request("name in URL does not match name in Binding object")
            return answers.json(core.bind(place, target.name, body, dry_run=options.dry_run), 201)
        if kind.resource == "pods" and target.subresource == "eviction":
            return answers.json(core.evict(place, target.name, body, dry_run=options.dry_run), 201)
        if target.name:
            raise status.not_supported("POST")
        if kind.namespaced and target.namespace is None:
            raise status.not_supported("POST")
        return answers.written(call, core, kind, core.create(kind.key, place, body, options), options, 201)

    def _post_unstored(self, call: Call, parts: list[str]) -> HttpAnswer | None:
        """Answer the creates that store no object of their own: reviews, Bindings and tokens. None for other paths."""
        match parts:
            case ["apis", group, "v1", plural]:
                return self._review(call, group, plural, "")
            case ["apis", group, "v1", "namespaces", namespace, plural]:
                return self._review(call, group, plural, namespace)
            case ["api", "v1", "namespaces", namespace, "bindings"]:
                body = _object(call)
                options = _options(call, "CreateOptions")
                return answers.json(self._core.bind(namespace, name_of(body), body, dry_run=options.dry_run), 201)
            case ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]:
                return answers.json(self._accounts.issue(namespace, name, _object(call)), 201)
            case _:
                return None

    def _review(self, call: Call, group: str, plural: str, namespace: str) -> HttpAnswer | None:
        review = self._reviews.answer(group, plural, lambda: ReviewRequest(call.user, namespace, _object(call)))
        return None if review is None else answers.json(review, 201)

    def _put(self, call: Call, target: RouteTarget) -> HttpAnswer:
        core, kind = self._core, target.kind
        _need_name(target, "PUT")
        _check_subresource(target)
        options = _options(call, "UpdateOptions")
        place, body = target.place, _object(call, options)
        existed = core.store.find(kind.resource, place, target.name) is not None
        match target.subresource:
            case "status":
                obj = core.update_status(kind.key, place, target.name, body, options)
            case "":
                obj = core.update(kind.key, place, target.name, body, options)
            case "finalize":
                obj = core.finalize(target.name, body)
            case "scale" if "scale" in kind.subresources:
                return answers.json(self._scale(target, body, options))
            case _:
                raise status.not_supported("PUT")
        return answers.written(call, core, kind, obj, options, 200 if existed else 201)

    def _patch(self, call: Call, target: RouteTarget) -> HttpAnswer:
        core, kind = self._core, target.kind
        _need_name(target, "PATCH")
        _check_subresource(target)
        media = call.content_type
        if media not in _PATCHES:
            raise status.unsupported_media([*_PATCHES])
        if kind.is_custom and media == patch.STRATEGIC:
            raise status.unsupported_media([patch.JSON, patch.MERGE, patch.APPLY])
        options = _options(call, "PatchOptions", is_apply=media == patch.APPLY)
        if target.subresource == "scale" and "scale" in kind.subresources:
            shown = scale.read(core.get(kind.key, target.place, target.name))
            del shown["metadata"]["resourceVersion"]
            return answers.json(self._scale(target, patch.apply_patch(media, shown, _decode(call), ANY), options))
        existed = core.store.find(kind.resource, target.place, target.name) is not None
        obj = core.patch(
            kind.key,
            target.place,
            target.name,
            _decode(call, options),
            media=media,
            subresource=target.subresource,
            options=options,
        )
        return answers.written(call, core, kind, obj, options, 200 if existed else 201)

    def _scale(self, target: RouteTarget, wanted: Json, options: WriteOptions) -> Json:
        kind = target.kind
        changed = scale.write(self._core.get(kind.key, target.place, target.name), wanted)
        return scale.read(self._core.update(kind.key, target.place, target.name, changed, options))

    def _delete(self, call: Call, target: RouteTarget) -> HttpAnswer:
        core, kind = self._core, target.kind
        body: Any = _decode(call) if call.body else {}
        options = routes.delete_options(call.query, body)
        if target.name:
            return answers.json(core.delete(kind.key, target.place, target.name, options))
        if "deletecollection" not in kind.verbs or (kind.namespaced and target.namespace is None):
            raise status.not_supported("DELETE")
        gone = core.delete_collection(kind.key, target.namespace, routes.list_query(call.query), options)
        meta = {"resourceVersion": str(core.version)}
        document = {"kind": kind.collection_kind, "apiVersion": kind.api_version, "metadata": meta, "items": gone}
        return answers.json(document)


class _SocketPeer:
    """One WebSocket of a client, over ASGI."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._is_open = False
        self._leaving = asyncio.Event()

    async def connected(self) -> None:
        """Receive the ASGI connect event, which must precede every answer."""
        await self._receive()

    async def accept(self, protocol: str) -> None:
        await self._send({"type": "websocket.accept", "subprotocol": protocol})
        self._is_open = True

    async def refuse(self, answer: HttpAnswer) -> None:
        """Send an ordinary HTTP answer instead of accepting the WebSocket."""
        headers = [(b"content-type", answer.content_type), *answer.headers]
        await self._send({"type": "websocket.http.response.start", "status": answer.code, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": answer.body})

    def leave(self) -> None:
        """End the connection, because the server stops."""
        self._leaving.set()

    async def receive(self) -> bytes | None:
        """Return the next binary message, or None when the client has disconnected or the server stops."""
        coming = asyncio.ensure_future(self._receive())
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            message: Message = coming.result() if coming.done() else {"type": "websocket.disconnect"}
        finally:
            coming.cancel()
            leaving.cancel()
        if message["type"] == "websocket.disconnect":
            self._is_open = not coming.done()
            return None
        return message.get("bytes") or b""

    async def send(self, message: bytes) -> None:
        if self._is_open:
            await self._send({"type": "websocket.send", "bytes": message})

    async def close(self, code: int) -> None:
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):  # the client has disconnected
                await self._send({"type": "websocket.close", "code": code})


def create_app(
    core: ClusterCore,
    *,
    logs: NodeLogs | None = None,
    token: str = "",
    authorization: Authorization = "open",
    accounts_key: bytes = b"",
    hosts: tuple[str, ...] = (),
    bookmark_interval_s: float = 60.0,
) -> Starlette:
    """Return the application; `app.state.server` is its ApiServer.

    logs: the source of pods/log, by default the nodes. token: the administrator's bearer token; with authorization
    "open", a call without credentials is refused, unless the token is empty. accounts_key: the key that signs the
    tokens of service accounts, by default a new random key. hosts: host names of the server in addition to those of
    the loopback address.
    """
    doors = AccessOptions(token=token, authorization=authorization, accounts_key=accounts_key, hosts=hosts)
    server = ApiServer(core, logs=logs, doors=doors, bookmark_interval_s=bookmark_interval_s)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with TaskGroup() as tasks:
            running = tasks.create_task(server.run_controllers())
            yield
            server.close()
            running.cancel()

    app = Starlette(routes=[Mount("/", app=server)], exception_handlers={500: _broken}, lifespan=lifespan)
    app.state.server = server
    return app


async def _broken(_: Request, exc: Exception) -> Response:
    error = StatusError(500, "InternalError", f"Internal error occurred: {type(exc).__name__}: {exc}")
    return Response(msgspec.json.encode(error.to_json()), 500, media_type="application/json")


def _dated(send: Send, clock: Callable[[], float]) -> Send:
    """Return `send` with a Date header of the second in which an answer begins. Clients correct their clocks by it.

    uvicorn updates its own Date about once a second, so that Date may be a second late.
    """

    async def dated(message: Message) -> None:
        if message["type"] == "http.response.start":
            date = formatdate(int(clock()), usegmt=True).encode()
            message = {**message, "headers": [*message["headers"], (b"date", date)]}
        await send(message)

    return dated


async def _read_body(call: Call, receive: Receive) -> bytes:
    if call.method in ("GET", "HEAD"):
        return b""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise status.bad_request("the client went away")
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            words = f"Request entity too large: limit is {BODY_BYTES_MAX}"
            raise StatusError(413, "RequestEntityTooLarge", words)
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


async def _stream(chunks: AsyncIterator[bytes], receive: Receive, send: Send, *, content_type: bytes) -> None:
    """Send the chunks as they arrive, until they end or the client disconnects.

    Raises: StatusError, only before the answer has begun.
    """
    first = await anext(chunks, None)
    headers = [(b"content-type", content_type), (b"cache-control", b"no-cache, private")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if first is not None:
        await send({"type": "http.response.body", "body": first, "more_body": True})

    async def forward() -> None:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        gone.cancel()

    async def wait_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()

    async with TaskGroup() as tasks:
        gone = tasks.create_task(wait_gone())
        sending = tasks.create_task(forward())


def _options(call: Call, kind: str, *, is_apply: bool = False) -> WriteOptions:
    return routes.write_options(call.query, kind, call.header(b"user-agent"), is_apply=is_apply)


def _decode(call: Call, options: WriteOptions | None = None) -> Any:
    if call.content_type == wire.MEDIA_TYPE:
        return wire.decode(call.body)
    # For any web page a browser sends text, a form or no type at all without a CORS preflight request.
    if call.content_type not in (*_DOCUMENTS, *_PATCHES):
        raise status.unsupported_media([*_DOCUMENTS, wire.MEDIA_TYPE])
    try:
        if "yaml" in call.content_type and not call.body.lstrip().startswith((b"{", b"[")):
            return yaml_reader.parse(call.body.decode(), yaml_reader.MANIFEST)
        document = msgspec.json.decode(call.body)
        if options is not None and options.field_validation != "Ignore":
            options.duplicates, options.order = duplicate_fields(call.body, document)
        return document
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidError) as exc:
        raise status.bad_request(f"the object provided is unrecognized: {exc}") from exc


def _object(call: Call, options: WriteOptions | None = None) -> Json:
    body = _decode(call, options)
    if not is_map(body):
        raise status.bad_request("the body of the request is not an object")
    return body


def _check_subresource(target: RouteTarget) -> None:
    """Check that the kind has the target's subresource. Raises: StatusError 404."""
    if target.subresource in ("", *discovery.subresources_of(target.kind)):
        return
    raise status.not_found(target.kind.resource, target.name) if target.kind.is_custom else status.no_such_path()


def _need_name(target: RouteTarget, method: str) -> None:
    if not target.name:
        raise status.not_supported(method)
