"""The small client: errors of the error tree, one more try on a stale connection, streams that resume."""

import _thread
import asyncio
import json
import socketserver
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any, cast

import pytest

from slipway.cli import http
from slipway.cli.background import lines_of
from slipway.cli.http import Api, ApiResponse, error_of
from slipway.errors import (
    AlreadyExistsError,
    ControlPlaneError,
    DeniedError,
    InvalidError,
    NotFoundError,
    PermanentError,
    StaleError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)
from slipway.sdk import retries
from slipway.sdk.address import parse
from slipway.sdk.credentials import fixed

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
Script = Callable[[int, str], bytes]


class Scripted(socketserver.ThreadingTCPServer):
    """A server that answers the n-th request with what the script says, then closes the connection."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, script: Script) -> None:
        self.requests: list[str] = []
        self.script = script
        super().__init__(("127.0.0.1", 0), Once)

    @property
    def api(self) -> Api:
        return Api(parse(f"http://127.0.0.1:{self.server_address[1]}", "test"))


class Once(socketserver.StreamRequestHandler):
    """One request per connection."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Scripted)
        lines: list[str] = []
        while (line := self.rfile.readline().decode().strip()) != "":
            lines.append(line)
        length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0)
        body = self.rfile.read(length).decode()
        server.requests.append("\n".join([*lines, body]))
        self.wfile.write(server.script(len(server.requests) - 1, "\n".join(lines)))


@contextmanager
def scripted(script: Script) -> Generator[Scripted]:
    """The server, listening in a thread of its own."""
    with Scripted(script) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Short pauses between tries."""
    monkeypatch.setattr(http, "PAUSE_S", 0.005)
    monkeypatch.setattr(http, "PATIENCE_S", 0.2)
    monkeypatch.setattr(retries, "FIRST_S", 0.005)


def an_answer(status: int, *, retry_after: str = "", **problem: Any) -> ApiResponse:
    """A refusal."""
    headers = {"Retry-After": retry_after} if retry_after else {}
    return ApiResponse(status, json.dumps(problem).encode(), headers)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "malformed", InvalidError),
        (401, "", DeniedError),
        (403, "", DeniedError),
        (404, "not-found", NotFoundError),
        (409, "ambiguous-id", InvalidError),
        (409, "already-exists", AlreadyExistsError),
        (409, "conflict", PermanentError),
        (409, "stale", StaleError),
        (412, "precondition-failed", PermanentError),
        (413, "body-too-large", TooLargeError),
        (422, "invalid", InvalidError),
        (429, "throttled", ThrottledError),
        (500, "internal", UnavailableError),
        (503, "unavailable", UnavailableError),
    ],
)
def test_refusals(status: int, code: str, kind: type[ControlPlaneError]) -> None:
    """Each status has its class in the error tree; the detail is the message for users."""
    error = error_of(an_answer(status, code=code, detail="because"))
    assert type(error) is kind
    assert "because" in str(error)


def test_fields_of_a_refusal() -> None:
    """The error of a refusal has each wrong field with its pointer."""
    error = error_of(an_answer(422, detail="2 problems", errors=[{"pointer": "/a", "detail": "x"}]))
    assert isinstance(error, InvalidError)
    assert [(field.pointer, field.detail) for field in error.fields] == [("/a", "x")]


def test_retry_after_is_said() -> None:
    """Retry-After is in the message of a server that is away for a short time."""
    error = error_of(an_answer(503, detail="the Kubernetes API is away", retry_after="2"))
    assert "try again in 2 s" in str(error)
    assert isinstance(error, UnavailableError)
    assert error.retry_after_s == 2.0


def test_a_refusal_that_is_no_problem() -> None:
    """A refusal without problem details, such as the page of a proxy, still shows its status."""
    assert "502" in str(error_of(ApiResponse(HTTPStatus.BAD_GATEWAY, b"<html>", {})))


def test_a_closed_connection_is_opened_again() -> None:
    """When the server has closed a kept connection, the call is made again on a new one."""
    with scripted(lambda n, _: OK) as server:
        api = server.api
        assert [api.get("/x"), api.get("/y")] == [{}, {}]
        api.close()
        assert [line.split()[1] for line in server.requests] == ["/api/v1/x", "/api/v1/y"]


def test_a_server_that_hangs_up() -> None:
    """A missing answer is reported as such, with the next step."""
    with scripted(lambda n, _: b"") as server, pytest.raises(UnavailableError, match="slipway up"):
        server.api.get("/x")
    assert len(server.requests) == http.TRIES


def test_a_part_of_an_answer_is_no_answer() -> None:
    """A part of an answer is a lost connection, and is never shown as a whole answer."""
    half = OK.replace(b"Length: 2", b"Length: 12")
    with scripted(lambda n, _: half if n == 0 else OK) as server, closing(server.api) as api:
        assert api.call("GET", "/x").body == b"{}"
    assert len(server.requests) == 2


BUSY = b'HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 17\r\n\r\n{"detail":"busy"}'


def test_a_server_that_cannot_answer_now_is_asked_again() -> None:
    """A server that answers with a near Retry-After is called again; the user sees one note that it takes longer, and
    then the answer."""
    told: list[str] = []
    with scripted(lambda n, _: BUSY if n < 2 else OK) as server:
        api = Api(server.api.server, note=told.append)
        assert api.get("/x") == {}
        api.close()
    assert len(server.requests) == 3
    assert told == ["no answer yet: busy; retrying for up to 20 s"]


@pytest.mark.parametrize("refused", [BUSY.replace(b"Retry-After: 0\r\n", b""), BUSY.replace(b": 0\r", b": 60\r")])
def test_a_server_that_names_no_near_time_is_not_asked_again(refused: bytes) -> None:
    """A server that names no Retry-After, or one too long to wait for at a prompt, is not called again."""
    with (
        scripted(lambda n, _: refused) as server,
        closing(server.api) as api,
        pytest.raises(UnavailableError, match="busy"),
    ):
        api.get("/x")
    assert len(server.requests) == 1


@pytest.mark.parametrize(("method", "times"), [("GET", 5), ("PATCH", 5), ("POST", 1), ("DELETE", 1)])
def test_only_what_may_be_done_twice_is_asked_again(method: str, times: int) -> None:
    """Only idempotent calls are repeated after a timeout of the server, which may have done the call: a second DELETE
    would return 404."""
    with (
        scripted(lambda n, _: BUSY) as server,
        closing(server.api) as api,
        pytest.raises(UnavailableError, match="busy"),
    ):
        api.call(method, "/x")
    assert len(server.requests) == times


@pytest.mark.parametrize(
    ("path", "query", "body", "times"),
    [
        ("/allocations/a/kill", {}, None, 1),
        ("/allocations/a/kill", {}, {"force": True}, 3),
        ("/allocations/a/preempt", {}, None, 1),
        ("/allocations/a/hold", {}, None, 3),
        ("/allocations", {"dryRun": "true"}, {}, 3),
        ("/simulate", {}, {}, 3),
        ("/webhooks", {}, {}, 1),
    ],
)
def test_a_lost_answer_is_asked_for_again_where_that_is_harmless(
    path: str, query: dict[str, Any], body: Any, times: int
) -> None:
    """A call with a lost answer is repeated only when that is harmless. A second kill would end the ranks without their
    grace: it is sent once, and the error says so."""
    with scripted(lambda n, _: b"") as server, closing(server.api) as api, pytest.raises(UnavailableError) as lost:
        api.post(path, body, query)
    assert len(server.requests) == times
    assert ("took effect is unknown" in str(lost.value)) == (not query and path != "/simulate")


@pytest.mark.parametrize(
    ("method", "path", "look"),
    [
        ("POST", "/allocations/train-1/kill", "slipway get train-1"),
        ("POST", "/trainings/train-1/kill", "slipway get train-1"),
        ("POST", "/allocations", "slipway ps"),
        ("POST", "/jobs/sweep/kill", "slipway job show sweep"),
        ("DELETE", "/webhooks/w", "slipway webhook ls"),
        ("POST", "/login-links", ""),
    ],
)
def test_an_unknown_outcome_says_where_to_look(method: str, path: str, look: str) -> None:
    """After an unknown outcome the message names the verb that shows whether the request took effect."""
    with scripted(lambda n, _: b"") as server, closing(server.api) as api, pytest.raises(UnavailableError) as lost:
        api.call(method, path)
    assert "whether the call took effect is unknown" in str(lost.value)
    assert f"`{look}`" in str(lost.value) if look else "`" not in str(lost.value)


def test_a_busy_server_may_have_done_what_it_could_not_answer() -> None:
    """A server that ran out of time is not asked again for a kill, and the user is not told to send it again."""
    with scripted(lambda n, _: BUSY) as server, closing(server.api) as api, pytest.raises(UnavailableError) as busy:
        api.post("/allocations/a/kill")
    assert len(server.requests) == 1
    assert "took effect is unknown" in str(busy.value)
    assert "try again" not in str(busy.value)


def test_a_kill_on_a_connection_that_the_server_closed_is_sent_once() -> None:
    """A kill is sent once when the server closed the connection, because the client notices the end of a kept
    connection before it sends."""
    with scripted(lambda n, _: OK) as server, closing(server.api) as api:
        api.get("/x")
        sock = cast("Any", api)._connection.sock
        assert sock.recv(1) == b""
        api.post("/allocations/a/kill")
        assert [line.split()[1] for line in server.requests] == ["/api/v1/x", "/api/v1/allocations/a/kill"]


def test_a_kill_after_an_interrupted_call_is_sent() -> None:
    """A kill after a call that Ctrl-C interrupted is sent on a new connection."""
    stop = iter([True])

    def script(n: int, _: str) -> bytes:
        if next(stop, False):
            _thread.interrupt_main()
            released.wait(5)
        return OK

    released = threading.Event()
    with scripted(script) as server, closing(server.api) as api:
        with pytest.raises(KeyboardInterrupt):
            api.get("/x")
        released.set()
        api.post("/allocations/a/kill")
        assert len(server.requests) == 2


def test_a_launch_has_a_key() -> None:
    """A launch has an Idempotency-Key, so that a repeat after a lost answer launches once."""
    with scripted(lambda n, _: b"" if n == 1 else OK) as server:
        api = server.api
        api.get("/warm")
        api.launch({"kind": "command"})
        sent = [text for text in server.requests if text.startswith("POST")]
    keys = {line for text in sent for line in text.splitlines() if line.startswith("Idempotency-Key")}
    assert len(keys) == 1
    api.close()


def test_a_launch_without_an_answer_names_its_key() -> None:
    """The error of a launch without an answer names its key: the same command would launch a second time, but with the
    key it launches once."""
    with scripted(lambda n, _: b"") as server, closing(server.api) as api, pytest.raises(UnavailableError) as lost:
        api.launch({"kind": "command"})
    key = next(line.split(": ")[1] for line in server.requests[0].splitlines() if line.startswith("Idempotency-Key"))
    assert f"add --key {key} to launch it only once" in str(lost.value)


def test_a_stream_resumes_after_the_last_id() -> None:
    """No entry is lost or seen twice when the server goes away in the middle of one."""

    def script(n: int, head: str) -> bytes:
        if n == 0:
            return STREAM + b"retry: 10\n\nid: 1-1\ndata: 1\n\n: beat\n\nid: 1-2\ndata: 2\n\nid: 1-3\nda"
        if n == 1:
            return b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n"
        assert "Last-Event-ID: 1-2" in head
        return STREAM + b"id: 1-3\nevent: last\ndata: 3\n\n"

    with scripted(script) as server:
        found = list(server.api.stream("/events", is_over=lambda: len(server.requests) == 3))
    assert [(entry.id, entry.name, entry.data) for entry in found] == [
        ("1-1", "", 1),
        ("1-2", "", 2),
        ("1-3", "last", 3),
    ]


def test_a_stream_that_breaks_before_its_first_entry_resumes_at_its_position() -> None:
    """An id without data is no entry, but says where the stream began."""

    def script(n: int, head: str) -> bytes:
        if n == 0:
            return STREAM + b"retry: 10\n\nid: 1-0\n\n"
        assert "Last-Event-ID: 1-0" in head
        return STREAM + b"id: 1-0\n\nid: 1-1\ndata: 1\n\n"

    with scripted(script) as server:
        found = list(server.api.stream("/events", is_over=lambda: len(server.requests) == 2))
    assert [(entry.id, entry.data) for entry in found] == [("1-1", 1)]


def test_a_stream_ends_when_nothing_is_left() -> None:
    """A stream ends at 204, which means that no entry follows the last id."""
    with scripted(lambda n, _: b"HTTP/1.1 204 No Content\r\n\r\n") as server:
        assert list(server.api.stream("/events", is_over=lambda: False)) == []


def test_a_stream_that_does_not_come_back() -> None:
    """A stream that stays broken ends with the error after some time."""
    with scripted(lambda n, _: b"") as server, pytest.raises(UnavailableError):
        list(server.api.stream("/events"))


def test_a_stream_of_what_is_not_there() -> None:
    """A stream that is refused is not tried again."""
    refusal = b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n{}"
    with scripted(lambda n, _: refusal) as server, pytest.raises(NotFoundError):
        list(server.api.stream("/events"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_none_of_ours_says_so(body: bytes) -> None:
    """An answer of another program, or of a hostile server, is an error that says what to check."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with (
        scripted(lambda n, _: answer) as server,
        closing(server.api) as api,
        pytest.raises(PermanentError, match="not JSON of Slipway"),
    ):
        api.get("/x")


@pytest.mark.parametrize("is_chunked", [True, False])
def test_an_answer_without_an_end_is_not_kept(is_chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless answer is read up to a limit."""
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 1000)
    body = b"3e9\r\n%s\r\n0\r\n\r\n" % (b"x" * 1001) if is_chunked else b"x" * 1001
    head = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 1001"
    answer = b"HTTP/1.1 200 OK\r\n%s\r\n\r\n%s" % (head, body)
    with (
        scripted(lambda n, _: answer) as server,
        closing(server.api) as api,
        pytest.raises(PermanentError, match="more than 1000 bytes"),
    ):
        api.get("/x")


@pytest.mark.parametrize(
    ("body", "retry_after"),
    [
        (b'{"errors": "x"}', ""),
        (b'{"errors": [1, null]}', ""),
        (b"[" * 100_000, ""),
        (b"{}", "\xb2"),
        (b"{}", "9" * 400),
    ],
)
def test_a_refusal_of_any_form_is_an_error_of_the_tree(body: bytes, retry_after: str) -> None:
    """A refusal of any form, from any server, is an error of the tree."""
    error = error_of(ApiResponse(422, body, {"Retry-After": retry_after}))
    assert isinstance(error, InvalidError)
    assert error.fields == ()


def test_a_request_as_curl() -> None:
    """A request is shown as a curl command that a user can run by hand."""
    shown: list[str] = []
    with scripted(lambda n, _: OK) as server:
        api = Api(server.api.server, user="ann", show=shown.append)
        api.patch("/allocations/a b", {"priority": 7})
        api.close()
    assert len(shown) == 1
    assert shown[0].startswith("curl -sS -X PATCH -H 'Accept: application/json' -H 'X-Slipway-User: ann'")
    assert shown[0].endswith(f"{server.api.server.url}/api/v1/allocations/a%20b")
    assert """-d '{"priority": 7}'""" in shown[0]


@pytest.mark.parametrize(
    ("body", "shown_as"),
    [
        ({"kind": "command", "secretValues": {"HF_TOKEN": "hush"}}, """{"HF_TOKEN": "'"$HF_TOKEN"'"}"""),
        ({"secretValues": {"1st.key": "hush"}}, """{"1st.key": "'"$_1st_key"'"}"""),
        ({"url": "http://127.0.0.1/", "secret": "hush"}, """"secret": "'"$SECRET"'"}"""),
        ({"secretValues": "hush"}, """{"secretValues": "'"$SECRET_VALUES"'"}"""),
    ],
)
def test_a_request_as_curl_has_no_secret(body: dict[str, Any], shown_as: str) -> None:
    """A request as curl has a shell variable in place of a secret, so that the line still works; the request itself has
    the value."""
    shown: list[str] = []
    with scripted(lambda n, _: OK) as server:
        api = Api(server.api.server, show=shown.append)
        api.post("/allocations", body)
        api.close()
    assert "hush" in server.requests[0]
    assert "hush" not in shown[0]
    assert shown_as in shown[0]


@pytest.mark.parametrize(
    "text",
    [
        "'Authorization: Bearer $SLIPWAY_API_TOKEN'",
        "Authorization: Bearer $SLIPWAY_API_TOKEN",
        "\ue000SLIPWAY_API_TOKEN\ue001",
        '$SLIPWAY_API_TOKEN "$SLIPWAY_API_TOKEN" $(echo $SLIPWAY_API_TOKEN) `echo $SLIPWAY_API_TOKEN`',
        "it's\n\\' \"; echo $SLIPWAY_API_TOKEN #",
    ],
)
def test_no_text_of_a_body_becomes_a_variable(text: str) -> None:
    """No text in a body is expanded by the shell, because a repeated launch contains texts of another user; the
    caller's token is only in the header of the request."""
    api = Api(parse("http://127.0.0.1:1", "test")._replace(credential=fixed("slipway_canary")))
    for secret in ({}, {"secretValues": {"HF_TOKEN": "hush"}}):
        body = {"env": {"NOTE": text}, **secret}
        shown = api.as_curl("POST", "/allocations", body=body, headers={"Idempotency-Key": text.replace("\n", "")})
        words = words_of_the_shell(shown, SLIPWAY_API_TOKEN="slipway_canary", HF_TOKEN="hush")
        assert json.loads(words[words.index("-d") + 1]) == body
        assert [word for word in words if "canary" in word] == ["Authorization: Bearer slipway_canary"]


def words_of_the_shell(line: str, **variables: str) -> list[str]:
    """The arguments that curl gets from the shell."""
    script = "curl() { printf '%s\\0' \"$@\"; }\n" + line
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True, env=variables)
    return done.stdout.split("\0")[:-1]


async def test_calls_run_beside_a_loop() -> None:
    """The client can be called beside an event loop, because it blocks only its thread."""
    with scripted(lambda n, _: OK) as server:
        api = server.api
        assert await asyncio.to_thread(api.get, "/x") == {}
        api.close()


def a_line(text: str, *, id_: str = "") -> bytes:
    """A log line as a server-sent event; from a pod it has nanoseconds and no id."""
    time = "2026-01-02T03:04:05.123Z" if id_ else "2026-01-02T03:04:05.123456789Z"
    data = json.dumps({"rank": 0, "attempt": 1, "time": time, "text": text})
    return (f"id: {id_}\n" if id_ else "").encode() + f"data: {data}\n\n".encode()


def test_lines_without_ids_are_told_once() -> None:
    """A broken stream of a pod's own lines begins again, and each line is shown as often as it was printed."""
    ended = b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"phase": "Terminated"}'
    first = [a_line("a"), a_line("a"), a_line("b")]
    again = [a_line("a", id_="1-1"), a_line("a", id_="1-2"), a_line("b", id_="1-3"), a_line("b", id_="1-4")]

    def script(n: int, head: str) -> bytes:
        if "/logs" not in head:
            return ended.replace(b"Terminated", b"Running___") if n == 1 else ended
        return STREAM + b"".join(first if n == 0 else again)

    with scripted(script) as server:
        api = server.api
        told = [entry.data["text"] for entry in lines_of(api, "x")]
        api.close()
    assert told == ["a", "a", "b", "b"]


def test_what_kubernetes_says_hides_no_line() -> None:
    """Lines of a rank are recognized by their numbers; events of Kubernetes are always shown, with a number or not."""
    told_by = [
        ("event", "started", 1),
        ("stdout", "hello", 1),
        ("stdout", "hello", 1),
        ("event", "more", 1),
        ("stdout", "there", 2),
    ]

    def script(n: int, head: str) -> bytes:
        if "/logs" not in head:
            return b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"phase": "Terminated"}'
        bodies = [
            {
                "rank": 0,
                "attempt": 1,
                "time": "2026-01-02T03:04:05Z",
                "stream": stream,
                "text": text,
                "number": number,
            }
            for stream, text, number in told_by
        ]
        return STREAM + b"".join(f"id: {n}-1\ndata: {json.dumps(body)}\n\n".encode() for body in bodies)

    with scripted(script) as server:
        told = [entry.data["text"] for entry in lines_of(server.api, "x")]
        server.api.close()
    assert told == ["started", "hello", "more", "there"]


def test_missing_lines_are_counted_once_after_a_break() -> None:
    """After a break missing lines are counted once: the server counts again from the gap in its store, but lines that
    were shown or counted are not missing again."""

    def line(number: int, id_: str, *, missing: int = 0) -> bytes:
        text = f"{missing} lines are missing here: why" if missing else f"line {number}"
        body = {"rank": 0, "attempt": 1, "stream": "stdout", "text": text, "number": number, "missing": missing}
        return (f"id: {id_}\n" if id_ else "").encode() + f"data: {json.dumps(body)}\n\n".encode()

    first = [line(1, "1-1"), line(2, "", missing=3), line(5, "2-1")]
    again = [line(2, "", missing=8), line(10, "9-1")]

    def script(n: int, head: str) -> bytes:
        if "/logs" not in head:
            state = b"Running___" if n == 1 else b"Terminated"
            return b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"phase": "' + state + b'"}'
        return STREAM + b"".join(first if n == 0 else again)

    with scripted(script) as server:
        told = [entry.data["text"] for entry in lines_of(server.api, "x")]
        server.api.close()
    assert told == [
        "line 1",
        "3 lines are missing here: why",
        "line 5",
        "4 lines are missing here: why",
        "line 10",
    ]
