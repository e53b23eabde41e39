"""A small client of the REST API on the standard library: calls, and streams that resume by themselves.

Owns deadlines, the few retries when a connection is lost or the server says when to retry, the conversion of answers to
our errors, and resuming a stream after its last id. It imports quickly, which httpx2 does not.

Promises: a request that would have another effect the second time (`retries.is_repeatable`) is sent once. A stream
yields every entry that the server has after the given id, in order and once, even when the server is restarted. It ends
when the server has ended it and `is_over` confirms the end, or with an error after `PATIENCE_S` without an answer.
"""

import contextlib
import http.client
import json
import re
import selectors
import shlex
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote, urlencode

from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    InvalidError,
    PermanentError,
    TransientError,
    UnavailableError,
)
from slipway.installed import VERSION_HEADER
from slipway.model.lifecycle import Kind
from slipway.sdk import refusals
from slipway.sdk.address import ServerAddress
from slipway.sdk.retries import UNKNOWN, RetryBudget, Tries, chance, is_read, is_repeatable, is_without_effect
from slipway.sdk.sse import LINE_BYTES_MAX, SILENCE_S, EventParser, ResumableStream, ServerSentEvent

Json = dict[str, Any]
Query = Mapping[str, Any]

API = "/api/v1"
CONNECT_S = 5.0
CALL_S = 35.0
PATIENCE_S = 60.0
"""Seconds of retries before a broken stream fails."""
AGAIN_S = 20.0
"""Seconds during which a call is retried when the server cannot answer now."""
TRIES = 3
PAUSE_S = 0.25
UPLOAD_S = 900.0
AGAIN = "; try again in "
BLOCK_BYTES = 256 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes of an answer, which is kept in memory."""
_KEY = "cli-"
"""The beginning of a key that the command made up."""
_CREDENTIAL = "Authorization: Bearer $SLIPWAY_API_TOKEN"
"""The header in a printed command: a token must not appear on a screen."""
_NO_NAME = re.compile(r"^(?=\d)|\W", re.ASCII)
"""Characters that the name of a shell variable cannot contain."""
_ROUTE = re.compile(r"GET /api/v1/([a-z-]+) lists\b")
_VERBS = {
    "allocations": "slipway ps",
    "dead": "slipway dead ls",
    "jobs": "slipway job",
    "nodes": "slipway nodes",
    "pools": "slipway pool",
    "queues": "slipway queue",
    "templates": "slipway template ls",
    "webhooks": "slipway webhook ls",
    "workspaces": "slipway workspace",
}
"""{resource that a route lists: the verb that shows it}"""
_ALLOCATIONS = frozenset({"allocations", *(f"{kind.value}s" for kind in Kind)})
_LOST = (ConnectionError, http.client.HTTPException, ssl.SSLError, socket.gaierror, OSError)


class ApiResponse(NamedTuple):
    """A 2xx answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        """Decode the body, which must be an object; an empty body is an empty object.

        Raises:
            PermanentError: the body is something else, so the server is no Slipway.
        """
        try:
            found: Any = json.loads(self.body) if self.body.strip() else {}
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise PermanentError(
                "the answer is not JSON of Slipway: check the address (--server, $SLIPWAY_SERVER), and the proxies "
                "between this machine and the server"
            )
        return cast("Json", found)


class _ProgressReader:
    """A file that reports how many bytes of it were read."""

    def __init__(self, file: BinaryIO, tell: Callable[[int], None]) -> None:
        self._file = file
        self._tell = tell
        self._done = 0

    def read(self, size: int = -1) -> bytes:
        """Return the next block."""
        block = self._file.read(max(size, BLOCK_BYTES))
        self._done += len(block)
        self._tell(self._done)
        return block


class _EndOfStream(Exception):
    """Raised when the server says that the stream has no more entries."""


class Api:
    """One connection to the API; several threads must not use it at once.

    `show` receives each request as a curl command, `note` a message for the user when a call has to wait.
    """

    def __init__(
        self,
        server: ServerAddress,
        *,
        user: str = "",
        show: Callable[[str], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.server = server
        self._user = user
        self._show = show
        self._note = note
        self._budget = RetryBudget()
        self._connection: http.client.HTTPConnection | None = None
        self._is_idle = False
        """whether the answer to the last request on the connection was read to its end"""
        self._is_aborted = threading.Event()
        self.streams_opened = 0
        """how often a stream was opened; more than 1 after a lost connection"""
        self.server_version = ""
        """the version in the last answer; empty before the first answer, and when the server does not send it"""

    # --- calls ----------------------------------------------------------------------------------------------------

    def get(self, path: str, query: Query | None = None) -> Any:
        """Send GET; return the decoded body."""
        return self.call("GET", path, query=query).json()

    def post(self, path: str, body: Any = None, query: Query | None = None) -> Any:
        """Send POST; return the decoded body."""
        return self.call("POST", path, body=body, query=query).json()

    def patch(self, path: str, body: Any) -> Any:
        """Send PATCH; return the decoded body."""
        return self.call("PATCH", path, body=body).json()

    def launch(self, body: Json, *, path: str = "/allocations", key: str = "") -> Json:
        """Launch once, even when the answer is lost and the call is retried; return the allocation."""
        headers = {"Idempotency-Key": key or new_key()}
        return cast("Json", self.call("POST", path, body=body, headers=headers).json())

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        """Send one call; paths are below /api/v1 unless they start with `//`.

        The call is retried, for up to 20 s, when the server cannot answer now and says when it can.

        Raises:
            ControlPlaneError: the server refused the call, or no server answered.
        """
        target = self.target(path, query)
        payload = None if body is None else _payload(body)
        sent = self._headers(headers, payload)
        self._tell(method, target, sent, payload)
        may_repeat = is_repeatable(method, path, query=query or {}, headers=sent, body=body)
        unknown = "" if is_read(method, path, query or {}) else _unknown_outcome(path, sent.get("Idempotency-Key", ""))
        tries = Tries(self._budget, is_repeatable=may_repeat, now=time.monotonic(), timeout_s=AGAIN_S)
        tried = 0
        while True:
            tried += 1
            is_sent = False
            try:
                self._open()
                is_sent = True
                answer = _answer_of(self._send(method, target, payload, sent, CALL_S))
                self._is_idle = True
            except TimeoutError as exc:
                self.close()
                if not is_sent:
                    raise self._unreachable(exc) from exc
                raise DeadlineError(f"{self.server.url} did not answer within {CALL_S:.0f} s{unknown}") from exc
            except _LOST as exc:
                self.close()
                # A connection that is refused at the first try is a final answer. A lost connection is retried: the
                # server may be restarting. A request that was sent may have taken effect without an answer.
                if is_sent and not may_repeat:
                    raise self._lost(exc, unknown) from exc
                if tried == TRIES or (isinstance(exc, ConnectionRefusedError) and tried == 1):
                    raise (self._lost(exc, unknown) if is_sent else self._unreachable(exc)) from exc
                time.sleep(PAUSE_S if tried > 1 else 0)
                continue
            except BaseException:
                self.close()
                raise
            if answer.status < 300:
                self._budget.earn()
                return answer
            error = error_of(answer)
            if may_repeat or is_without_effect(error) or not isinstance(error, TransientError):
                time.sleep(self._pause_after(error, tries))
                continue
            error.args = (str(error).partition(AGAIN)[0] + unknown,)
            raise error

    def send_file(
        self,
        path: str,
        file: BinaryIO,
        size: int,
        *,
        query: Query | None = None,
        tell: Callable[[int], None] = lambda _done: None,
    ) -> ApiResponse:
        """Send a gzipped file with PUT; `tell` receives the number of bytes sent so far.

        The file is sent again, for up to a minute, when the connection is lost or the server cannot accept it now. The
        server stores it once, however often it is sent.

        Raises:
            ControlPlaneError: the server refused the file, or no server answered.
        """
        target = self.target(path, query)
        headers = self._headers({"Content-Type": "application/gzip", "Content-Length": str(size)}, None)
        until, is_first = time.monotonic() + PATIENCE_S, True
        while True:
            file.seek(0)
            try:
                response = self._put(target, _ProgressReader(file, tell), headers)
                answer = _answer_of(response)
                if answer.status < 300:
                    return answer
                error = error_of(answer)
            except TimeoutError as exc:
                self.close()
                raise DeadlineError(f"{self.server.url} did not answer within {UPLOAD_S:.0f} s") from exc
            except _LOST as exc:
                error = self._unreachable(exc)
                if is_first and isinstance(exc, ConnectionRefusedError):
                    raise error from exc
            self.close()
            pause_s = (error.retry_after_s if isinstance(error, TransientError) else None) or 1.0
            if not isinstance(error, TransientError) or time.monotonic() + pause_s > until:
                raise error
            is_first = False
            time.sleep(pause_s)

    # --- streams --------------------------------------------------------------------------------------------------

    def stream(
        self,
        path: str,
        query: Query | None = None,
        *,
        after: str = "",
        is_over: Callable[[], bool] = lambda: True,
    ) -> Iterator[ServerSentEvent]:
        """Yield the entries of a stream of server-sent events, across broken connections.

        A server that is stopped ends its streams as a completed stream ends: `is_over` distinguishes the two.
        """
        course = ResumableStream(after, patience_s=PATIENCE_S, pause_s=PAUSE_S)
        while True:
            broken: Exception = UnavailableError(f"{self.server.url} ended the stream too early")
            try:
                for entry in self._events(path, query, course):
                    course.passed(entry)
                    yield entry
                if self._is_aborted.is_set() or is_over():
                    return
            except _EndOfStream:
                return
            except TransientError as exc:
                broken = exc
            except _LOST as exc:
                broken = self._unreachable(exc)
            finally:
                self.close()
            if self._is_aborted.wait(course.pause_after(broken, time.monotonic())):
                return

    def _events(self, path: str, query: Query | None, course: ResumableStream) -> Iterator[ServerSentEvent]:
        """Yield the entries of one connection. Raises a ConnectionError when the connection breaks."""
        target = self.target(path, query)
        extra = {"Accept": "text/event-stream"} | ({"Last-Event-ID": course.last} if course.last else {})
        headers = self._headers(extra, None)
        self._tell("GET", target, headers, None)
        response = self._send("GET", target, None, headers, SILENCE_S)
        if response.status >= 300:
            raise error_of(_answer_of(response))
        course.opened(time.monotonic())
        self.streams_opened += 1
        if response.status == http.client.NO_CONTENT:
            raise _EndOfStream
        with response:
            yield from _entries(response, course)

    # --- one request ----------------------------------------------------------------------------------------------

    def target(self, path: str, query: Query | None = None) -> str:
        """Return the request target of a path of the API."""
        whole = path[1:] if path.startswith("//") else API + path
        pairs = [(name, value) for name, value in (query or {}).items() if value is not None and value != ""]
        try:
            return self.server.prefix + quote(whole, safe="/:@~") + (f"?{urlencode(pairs)}" if pairs else "")
        except UnicodeEncodeError as error:
            shown = str(error.object).removeprefix(API)[:64]
            raise InvalidError(f"{shown!r} is not UTF-8 text, and the server accepts only UTF-8") from None

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abort(self) -> None:
        """End the read of another thread on this connection, and prevent new ones."""
        self._is_aborted.set()
        connection = self._connection
        sock = cast("socket.socket | None", connection.sock) if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):  # the connection is being closed
                sock.shutdown(socket.SHUT_RDWR)

    def again(self) -> "Api":
        """Return another client of the same server."""
        return Api(self.server, user=self._user, show=self._show, note=self._note)

    def _headers(self, extra: Mapping[str, str] | None, payload: bytes | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "slipway-cli"}
        if self._user:
            headers["X-Slipway-User"] = self._user
        if self.server.credential is not None:
            headers["Authorization"] = f"Bearer {self.server.credential.token()}"
        if payload is not None:
            headers["Content-Type"] = "application/json"
        return {**headers, **(extra or {})}

    def _open(self) -> http.client.HTTPConnection:
        """Return a connection without an unread answer, which the server has not closed."""
        kept = self._connection
        if kept is not None and self._is_idle and kept.sock is not None and _is_silent(kept.sock):
            return kept
        self.close()
        make = http.client.HTTPSConnection if self.server.scheme == "https" else http.client.HTTPConnection
        self._connection = made = make(self.server.host, self.server.port, timeout=CONNECT_S)
        made.connect()
        self._is_idle = True
        cast("socket.socket", made.sock).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def _send(
        self,
        method: str,
        target: str,
        payload: "bytes | _ProgressReader | None",
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> http.client.HTTPResponse:
        for name, value in headers.items():
            if any(ord(letter) > 255 for letter in value):
                raise InvalidError(f"{name}: {value[:64]!r} has characters that are not allowed in a header")
        connection = self._open()
        self._is_idle = False
        cast("socket.socket", connection.sock).settimeout(timeout_s)
        connection.request(method, target, body=payload, headers=dict(headers))
        response = connection.getresponse()
        self.server_version = response.getheader(VERSION_HEADER) or self.server_version
        return response

    def _put(self, target: str, body: "_ProgressReader", headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a body. If the server answers before it has read it all, return that answer, not the broken pipe."""
        try:
            return self._send("PUT", target, body, headers, UPLOAD_S)
        except (BrokenPipeError, ConnectionResetError):
            sock = cast("socket.socket | None", self._connection.sock) if self._connection is not None else None
            if sock is None:
                raise
            answer = http.client.HTTPResponse(sock, method="PUT")
            answer.begin()
            return answer

    def as_curl(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Return the call as a curl command, without sending it; tokens and secret values are shell variables in it."""
        payload = None if body is None else _payload(body)
        unsigned = Api(self.server._replace(credential=None), user=self._user)
        sent = unsigned._headers(headers, payload)
        sent |= {"Authorization": ""} if self.server.credential is not None else {}
        return self._curl_of(method, self.target(path, query), sent, payload)

    def _tell(self, method: str, target: str, headers: Mapping[str, str], payload: bytes | None) -> None:
        if self._show is not None:
            self._show(self._curl_of(method, target, headers, payload))

    def _curl_of(self, method: str, target: str, headers: Mapping[str, str], payload: bytes | None) -> str:
        words = ["curl", "-sS"] if method == "GET" else ["curl", "-sS", "-X", method]
        for name, value in headers.items():
            if name == "Authorization":
                words += ["-H", f'"{_CREDENTIAL}"']
            elif name != "User-Agent":
                words += ["-H", shlex.quote(f"{name}: {value}")]
        if payload is not None:
            words += ["-d", _body_for_shell(payload)]
        return " ".join([*words, shlex.quote(self.server._replace(prefix="").url + target)])

    def _pause_after(self, error: ControlPlaneError, tries: Tries) -> float:
        """Return the seconds until the next try, and report the first wait. Raises `error` when no try is left."""
        if not isinstance(error, TransientError) or error.retry_after_s is None:
            raise error
        is_first = tries.count == 1
        pause_s = tries.pause_after(error, was_sent=True, now=time.monotonic(), chance=chance())
        if is_first and self._note is not None:
            self._note(f"no answer yet: {str(error).partition(AGAIN)[0]}; retrying for up to {AGAIN_S:.0f} s")
        return pause_s

    def _unreachable(self, error: Exception) -> UnavailableError:
        refused = isinstance(error, ConnectionRefusedError)
        why = "the connection was refused" if refused else (str(error) or type(error).__name__)
        return UnavailableError(
            f"no Slipway answers at {self.server.url} ({self.server.origin}): {why}\n"
            "start one here with `slipway up`, or name another with --server URL or $SLIPWAY_SERVER"
        )

    def _lost(self, error: Exception, unknown: str) -> UnavailableError:
        """Return the error for a request that was sent and not answered; `unknown` is empty if it changes nothing."""
        if not unknown:
            return self._unreachable(error)
        why = str(error) or type(error).__name__
        return UnavailableError(f"the connection to {self.server.url} was lost before the answer: {why}{unknown}")


def new_key() -> str:
    """Return a new Idempotency-Key for a launch without one."""
    return f"{_KEY}{uuid.uuid4().hex}"


def _unknown_outcome(path: str, key: str) -> str:
    """Return what to say of a request without an answer: it may have taken effect, and which verb shows that.

    The `key` of a launch that the command made up is named, since the user can repeat the launch with it only.
    """
    resource, _, rest = path.removeprefix("/").partition("/")
    name = rest.partition("/")[0]
    is_one = name not in ("", "batch", "launches")
    if resource in _ALLOCATIONS:
        look = shlex.join(["slipway", "get", name]) if is_one else _VERBS["allocations"]
    else:
        look = shlex.join(["slipway", "job", "show", name]) if resource == "jobs" and is_one else _VERBS.get(resource)
    again = f", or add --key {key} to launch it only once" if key.startswith(_KEY) and name in ("", "launches") else ""
    return f"; {UNKNOWN}" + (f": look with `{look}` before you call again{again}" if look else "")


def _is_silent(sock: socket.socket) -> bool:
    """Whether an idle connection has nothing to read: what a server sends without a request is its end."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return not selector.select(0)


def _payload(body: Any) -> bytes:
    """Return a body as JSON. Raises InvalidError for a text that is not UTF-8, such as a word of another encoding."""
    payload = json.dumps(body).encode()
    if b"\\ud" in payload and (place := _not_utf8(body)) is not None:
        # The text itself is not shown: it may be a secret.
        raise InvalidError(f"{'.'.join(place) or 'the text'}: is not UTF-8 text")
    return payload


def _not_utf8(value: Any) -> list[str] | None:
    """Return the path of the first text that is not UTF-8; None when there is none."""
    if isinstance(value, str):
        return [] if any("\ud800" <= letter <= "\udfff" for letter in value) else None
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        for name, part in cast("Json", value).items():
            parts += [(ascii(name), name), (name, part)] if _not_utf8(name) is not None else [(name, part)]
    elif isinstance(value, list | tuple):
        parts = [(str(index), part) for index, part in enumerate(cast("list[Any]", value))]
    for name, part in parts:
        if (place := _not_utf8(part)) is not None:
            return [name, *place]
    return None


def _answer_of(response: http.client.HTTPResponse) -> ApiResponse:
    """Read the whole answer.

    Raises:
        PermanentError: it is longer than `BODY_BYTES_MAX`.
        IncompleteRead: the connection was lost before its end.
    """
    body = response.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        response.close()
        raise PermanentError(f"the answer has more than {BODY_BYTES_MAX} bytes; ask for less, by a filter or a limit")
    if response.length:
        # A read with a size does not raise for bytes that are missing.
        raise http.client.IncompleteRead(body, response.length)
    return ApiResponse(response.status, body, dict(response.getheaders()))


def _entries(response: http.client.HTTPResponse, course: ResumableStream) -> Iterator[ServerSentEvent]:
    """Yield the entries of one answer, as they arrive."""
    parser = EventParser(course.stands_at)
    while raw := response.readline(LINE_BYTES_MAX):
        course.heard(time.monotonic())
        entry = parser.line(raw)
        if entry is not None:
            yield entry


def _body_for_shell(payload: bytes) -> str:
    """Return the body as a word of the shell, with a variable for each secret: a secret must not appear on a screen.

    Each part between two variables is quoted by itself, so no text of the body can become a variable.
    """
    try:
        body: Any = json.loads(payload)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return shlex.quote(payload.decode())
    mark = uuid.uuid4().hex  # the mark is random, so no text in the body can contain it
    hidden = _marked(cast("Json", body), mark)
    if isinstance(hidden.get("launch"), dict):
        hidden["launch"] = _marked(hidden["launch"], mark)
    if hidden == body:
        return shlex.quote(payload.decode())
    parts = json.dumps(hidden).split(mark)
    return "".join(f'"${part}"' if number % 2 else shlex.quote(part) for number, part in enumerate(parts))


def _marked(body: Json, mark: str) -> Json:
    """Return the body, with each secret replaced by the name of its variable between two marks."""
    hidden = dict(body)
    values = hidden.get("secretValues")
    if isinstance(values, dict):
        hidden["secretValues"] = {name: f"{mark}{shell_variable(name)}{mark}" for name in cast("Json", values)}
    elif values:
        hidden["secretValues"] = f"{mark}SECRET_VALUES{mark}"
    if hidden.get("secret"):
        hidden["secret"] = f"{mark}SECRET{mark}"
    return hidden


def shell_variable(name: str) -> str:
    """Return the shell variable that contains the secret value of that name."""
    return _NO_NAME.sub("_", name)


def in_our_words(text: str) -> str:
    """Replace a route in a text of the server by the verb that calls it."""
    return _ROUTE.sub(lambda found: f"`{_VERBS[found[1]]}` lists" if found[1] in _VERBS else found[0], text)


def error_of(answer: ApiResponse) -> ControlPlaneError:
    """Return the error for a refusal, in the words of the command."""
    error = refusals.error_of(answer.status, answer.headers, answer.body, phrase=in_our_words)
    text = str(error)
    retry_after_s = error.retry_after_s if isinstance(error, TransientError) else None
    if answer.status == 401 and "slipway login" not in text:
        error.args = (f"{text}; log in: slipway login",)
    elif answer.status in (502, 503, 504) and retry_after_s is not None:
        error.args = (f"{text}{AGAIN}{retry_after_s:.0f} s",)
    return error


def error_of_problem(problem: Json) -> ControlPlaneError:
    """Return the error for one refused item of a batch answer."""
    return error_of(ApiResponse(int(problem["status"]), json.dumps(problem).encode(), {}))
