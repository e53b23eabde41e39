"""The port to Kubernetes as HTTP requests: paths, queries, bodies, pages and streams of lines.

Owns the HTTP form of each verb of `KubeApi`. Must not know the HTTP library, TLS or credentials: it uses a `Transport`.

Invariants: no request is sent twice. An invalid object name is never part of a path. A PUT has a fence. Every call has
a deadline, and every stream a silence limit.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from slipway.crd.meta import RawObject
from slipway.errors import ExpiredError, InvalidError, NotFoundError, TooLargeError, UnavailableError
from slipway.kube import wire
from slipway.kube.errors import Verb
from slipway.kube.ports import ContainerChannels, Listed, PatchType, WatchEvent
from slipway.kube.resources import PODS, Resource
from slipway.runtime import liveness
from slipway.runtime.clock import Random

T = TypeVar("T")
Patch = RawObject | list[RawObject]

PAGE_SIZE = 500
LIST_STARTS_MAX = 3
"""Maximum number of starts of a LIST of all pages, when its continue token expires midway."""
BODY_BYTES_MAX = 3 * 1024 * 1024
"""The largest request body that an API server reads."""
EVENT_BYTES_MAX = 16 * 1024 * 1024
LOG_BYTES_MAX = 8 * 1024 * 1024
REFUSAL_BYTES_MAX = 1024
"""Maximum bytes of an error message of a node at the end of a log."""
WATCH_S_MIN = 15.0
WATCH_S_MAX = 25.0
"""The server is asked to end each watch after a random time between these two. So a quiet watch is known to work, and
watches spread over the server's replicas. No other message is certain: when a resource does not change, and etcd
reports no progress to the server, it sends no bookmark for hours."""

JSON_TYPE = "application/json"
BRIEF_TYPE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"
BRIEF_LIST_TYPE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"
"""Accept headers that request only the metadata, from servers that support it."""
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_ANSWERED_WITH_OBJECTS = (Verb.GET, Verb.CREATE, Verb.UPDATE)
_LOST = (b"unable to retrieve container logs", b"rpc error: code = NotFound")
"""Start of a kubelet's message when the container, with its log, does not exist any more."""
_SEGMENT = re.compile(r"[A-Za-z0-9._:-]{1,253}")


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts in seconds. `silence_s` must exceed the longest watch, because only the end of a watch is certain to
    arrive. And it must be short enough that the loss of events on a dead connection is repaired within a minute.
    """

    request_s: float = 30.0
    list_s: float = 60.0
    silence_s: float = 40.0
    log_silence_s: float = 600.0
    connect_s: float = 10.0


class KubeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request; `verb` and `resource` are its metric labels and decide the meaning of an error."""

    verb: Verb
    resource: str
    method: str
    target: str
    body: bytes | None = None
    content_type: str = JSON_TYPE
    accept: str = JSON_TYPE


class Transport(Protocol):
    """Sends requests; errors are of `slipway.errors`."""

    async def send(self, request: KubeRequest, *, timeout_s: float) -> bytes:
        """Return the body of a 2xx response."""
        ...

    def stream(self, request: KubeRequest, *, timeout_s: float, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the body of a 2xx response in chunks as they arrive; `timeout_s` applies to its headers."""
        ...

    def upgrade(self, request: KubeRequest, *, timeout_s: float) -> AbstractAsyncContextManager[ContainerChannels]:
        """Open a WebSocket of `exec_channels.PROTOCOL`; `timeout_s` applies to its handshake."""
        ...


class RestApi:
    """`KubeApi` over a transport."""

    def __init__(self, transport: Transport, random: Random, timeouts: Timeouts | None = None) -> None:
        self._transport = transport
        self._random = random
        self._timeouts = timeouts or Timeouts()

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        body = await self._send(Verb.GET, resource, "GET", _path(resource, namespace, name))
        return wire.codec_of(resource).decode(body)

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listed[T]:
        path = _path(resource, namespace)
        query = {"labelSelector": label_selector, "fieldSelector": field_selector}
        if limit or continue_:
            return await self._page(resource, path, query | {"limit": limit or "", "continue": continue_})
        for start in range(LIST_STARTS_MAX):
            try:
                return await self._all_pages(resource, path, query | {"limit": PAGE_SIZE})
            except ExpiredError:
                if start == LIST_STARTS_MAX - 1:
                    raise
        raise AssertionError

    async def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str | None = None, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": int(self._random.uniform(WATCH_S_MIN, WATCH_S_MAX)),
            "labelSelector": label_selector,
        }
        request = KubeRequest(
            verb=Verb.WATCH,
            resource=resource.plural,
            method="GET",
            target=_target(_path(resource, namespace), query),
            accept=_accept(resource),
        )
        codec = wire.codec_of(resource)
        async with self._lines(request, self._timeouts.silence_s, EVENT_BYTES_MAX) as lines:
            async for line in lines:
                if len(line) > EVENT_BYTES_MAX:
                    raise UnavailableError(f"the watch of {resource.plural} sent a line over {EVENT_BYTES_MAX} B")
                if line.strip():
                    yield codec.decode_event(line)

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        query = {"container": container, "tailLines": tail_lines, "sinceTime": since_time, "timestamps": "true"}
        target = _path(PODS, namespace, pod, "log")
        found = await self._send(Verb.LOG, PODS, "GET", target, query | {"limitBytes": LOG_BYTES_MAX})
        _check_log(found.rpartition(b"\n")[2])
        return found

    async def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        query = {"container": container, "sinceTime": since_time, "timestamps": "true", "follow": "true"}
        target = _target(_path(PODS, namespace, pod, "log"), query)
        request = KubeRequest(verb=Verb.LOG, resource=PODS.plural, method="GET", target=target)
        stream = self._transport.stream(
            request, timeout_s=self._timeouts.request_s, silence_s=self._timeouts.log_silence_s
        )
        rest = b""
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                _, line_end, after = chunk.rpartition(b"\n")
                rest = (after if line_end else rest + chunk)[:REFUSAL_BYTES_MAX]
                yield chunk
        _check_log(rest)

    @asynccontextmanager
    async def exec(
        self, namespace: str, pod: str, *, container: str, command: Sequence[str], stdin: bool, tty: bool
    ) -> AsyncGenerator[ContainerChannels, None]:
        query: list[tuple[str, str]] = [("command", word) for word in command]
        query += [("container", container), ("stdin", _flag(stdin)), ("stdout", "true")]
        # A terminal has only one output: the API server refuses `tty` together with `stderr`.
        query += [("stderr", _flag(not tty)), ("tty", _flag(tty))]
        target = f"{_path(PODS, namespace, pod, 'exec')}?{urlencode(query)}"
        request = KubeRequest(verb=Verb.EXEC, resource=PODS.plural, method="GET", target=target)
        async with self._transport.upgrade(request, timeout_s=self._timeouts.request_s) as channels:
            yield channels

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T:
        ready = wire.outgoing(resource, body, namespace)
        query = {"dryRun": "All" if dry_run else ""}
        answer = await self._send(Verb.CREATE, resource, "POST", _path(resource, ready.namespace), query, ready.body)
        return wire.codec_of(resource).decode(answer)

    async def replace(self, resource: Resource[T], body: Any) -> T:
        return await self._put(resource, body, "")

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        return await self._put(resource, body, "status")

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T:
        request = KubeRequest(
            verb=Verb.PATCH,
            resource=resource.plural,
            method="PATCH",
            target=_path(resource, namespace, name),
            body=_encode(patch),
            content_type=type_.value,
            accept=_accept(resource),
        )
        answer = await self._transport.send(request, timeout_s=self._timeouts.request_s)
        return wire.codec_of(resource).decode(answer)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: str = "Background",
    ) -> None:
        options = wire.delete_options(uid, resource_version, grace_s, propagation)
        await self._send(Verb.DELETE, resource, "DELETE", _path(resource, namespace, name), body=options)

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        body = wire.binding(namespace, pod, uid, node)
        await self._send(Verb.BIND, PODS, "POST", _path(PODS, namespace, pod, "binding"), body=body)

    async def may(
        self, verb: str, resource: Resource[Any], *, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        review = wire.access_review(resource, verb, namespace, subresource)
        answer = await self._send(Verb.CREATE, resource, "POST", _REVIEWS, body=review)
        return bool(msgspec.json.decode(answer).get("status", {}).get("allowed", False))

    async def serves(self, resource: Resource[Any]) -> bool:
        root = f"/apis/{resource.group}" if resource.group else "/api"
        try:
            answer = await self._send(Verb.GET, resource, "GET", f"{root}/{resource.version}")
        except NotFoundError:
            return False
        return any(item.get("name") == resource.plural for item in msgspec.json.decode(answer).get("resources") or ())

    async def _put(self, resource: Resource[T], body: Any, subresource: str) -> T:
        ready = wire.fenced(resource, body)
        path = _path(resource, ready.namespace, ready.name, subresource)
        return wire.codec_of(resource).decode(await self._send(Verb.UPDATE, resource, "PUT", path, body=ready.body))

    async def _all_pages(self, resource: Resource[T], path: str, query: Mapping[str, object]) -> Listed[T]:
        page = await self._page(resource, path, query)
        items = page.items
        while page.continue_:
            page = await self._page(resource, path, {**query, "continue": page.continue_})
            items.extend(page.items)
        return Listed(items=items, resource_version=page.resource_version)

    async def _page(self, resource: Resource[T], path: str, query: Mapping[str, object]) -> Listed[T]:
        accept = BRIEF_LIST_TYPE if resource.is_brief else JSON_TYPE
        request = KubeRequest(
            verb=Verb.LIST, resource=resource.plural, method="GET", target=_target(path, query), accept=accept
        )
        body = await self._transport.send(request, timeout_s=self._timeouts.list_s)
        liveness.beat()  # a large LIST has many pages
        return wire.codec_of(resource).decode_list(body)

    async def _send(
        self,
        verb: Verb,
        resource: Resource[Any],
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: RawObject | None = None,
    ) -> bytes:
        request = KubeRequest(
            verb=verb,
            resource=resource.plural,
            method=method,
            target=_target(path, query or {}),
            body=None if body is None else _encode(body),
            # The response to a DELETE or a binding may be a Status or an object.
            accept=_accept(resource) if verb in _ANSWERED_WITH_OBJECTS else JSON_TYPE,
        )
        return await self._transport.send(request, timeout_s=self._timeouts.request_s)

    @asynccontextmanager
    async def _lines(
        self, request: KubeRequest, silence_s: float, line_bytes_max: int
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        stream = self._transport.stream(request, timeout_s=self._timeouts.request_s, silence_s=silence_s)
        async with aclosing(stream) as chunks, aclosing(_lines(chunks, line_bytes_max)) as lines:
            yield lines


def _accept(resource: Resource[Any]) -> str:
    return BRIEF_TYPE if resource.is_brief else JSON_TYPE


def _target(path: str, query: Mapping[str, object]) -> str:
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _check_log(rest: bytes) -> None:
    """Raise the error of a kubelet that could not read a log.

    The kubelet answers 200 before it opens the log, so the error is the end of the body. It has no newline, and does
    not start with a time as log lines do.
    """
    if not rest or rest[:1].isdigit():
        return
    text = rest.decode("utf-8", "replace")
    if rest.startswith(_LOST):
        raise NotFoundError(text)
    raise UnavailableError(text)


def _path(resource: Resource[Any], namespace: str | None, name: str | None = None, subresource: str = "") -> str:
    for segment in (namespace, name):
        if segment is not None and not _is_segment(segment):
            raise NotFoundError(f"no {resource.kind} can be named {segment[:100]!r}")
    if name is not None and resource.namespaced and not namespace:
        raise InvalidError(f"{resource.kind} {name!r} needs a namespace")
    return resource.path(namespace, name, subresource)


def _encode(body: Patch) -> bytes:
    """Return the body as JSON. Raises TooLargeError, because a server that refuses midway resets the connection, which
    would look transient."""
    encoded = msgspec.json.encode(body)
    if len(encoded) > BODY_BYTES_MAX:
        raise TooLargeError(f"a body of {len(encoded)} B; the API server accepts at most {BODY_BYTES_MAX} B")
    return encoded


def _is_segment(text: str) -> bool:
    """Whether the text is one path segment that needs no quoting."""
    return _SEGMENT.fullmatch(text) is not None and text.strip(".") != ""


async def _lines(chunks: AsyncGenerator[bytes, None], line_bytes_max: int) -> AsyncGenerator[bytes, None]:
    """Yield lines without newlines. A line above the limit is split into pieces; a last line without a newline is
    dropped."""
    held: list[bytes] = []
    held_bytes = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        held.append(first)
        held_bytes += len(first)
        for other in others:
            yield b"".join(held)
            held, held_bytes = [other], len(other)
        if held_bytes > line_bytes_max:
            yield b"".join(held)
            held, held_bytes = [], 0
