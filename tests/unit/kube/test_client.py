"""The HTTP client against a server whose answers the test writes: requests, faults, deadlines, credentials."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    ExpiredError,
    InvalidError,
    NotFoundError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)
from slipway.kube.client import KubeClient, connect
from slipway.kube.objects import Pod
from slipway.kube.ports import WatchEvent, WatchType
from slipway.kube.resources import CONFIG_MAPS, NODES, PODS
from slipway.kube.rest import Timeouts
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.support.clock import FakeClock
from tests.support.http_stub import HttpStub, serve, write_kubeconfig

LOST = b"unable to retrieve container logs for containerd://e937e4e09c5c"
FAST = Timeouts(request_s=0.3, list_s=0.3, silence_s=0.3, log_silence_s=0.3)
Answer = Callable[[Request], Awaitable[Response]]


def json(value: Any, code: int = 200, **headers: str) -> Response:
    return Response(msgspec.json.encode(value), code, headers=headers, media_type="application/json")


def refusal(code: int, message: str = "no", **headers: str) -> Response:
    return json({"kind": "Status", "code": code, "message": message}, code, **headers)


def event(type_: str, **metadata: str) -> bytes:
    return msgspec.json.encode({"type": type_, "object": {"metadata": metadata}}) + b"\n"


@asynccontextmanager
async def client_for(
    answer: Answer, folder: Path, *, user: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[KubeClient, HttpStub], None]:
    options = {"clock": SystemClock()} | options
    async with (
        serve(answer) as stub,
        connect(write_kubeconfig(folder, stub.url, user), random=SeededRandom(1), **options) as kube,
    ):
        yield kube, stub


def watch(kube: KubeClient) -> AsyncGenerator[WatchEvent[Pod], None]:
    return cast("AsyncGenerator[WatchEvent[Pod], None]", kube.watch(PODS, resource_version="7", namespace="n"))


async def test_a_request_as_the_server_sees_it(tmp_path: Path) -> None:
    """The server gets path, query, body, content type and credentials; nothing is compressed, and unset fields are not
    sent."""

    async def answer(_: Request) -> Response:
        return json({"metadata": {"name": "a"}})

    async with client_for(answer, tmp_path, user={"token": "secret"}, user_agent="slipway-test") as (kube, stub):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="n", dry_run=True)
        await kube.bind("n", "p", "u1", "node-1")
        await kube.delete(PODS, "p", namespace="n", uid="u1", grace_s=0)
    create, bind, delete = stub.requests
    assert (create.method, create.target) == ("POST", "/api/v1/namespaces/n/configmaps?dryRun=All")
    assert create.json == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}
    assert create.headers["authorization"] == "Bearer secret"
    assert create.headers["user-agent"] == "slipway-test"
    assert create.headers["accept-encoding"] == "identity"
    assert create.headers["content-type"] == "application/json"
    assert (bind.method, bind.target) == ("POST", "/api/v1/namespaces/n/pods/p/binding")
    assert bind.json["metadata"]["uid"] == "u1"
    assert bind.json["target"]["name"] == "node-1"
    assert (delete.method, delete.target) == ("DELETE", "/api/v1/namespaces/n/pods/p")
    assert delete.json["preconditions"] == {"uid": "u1"}
    assert delete.json["gracePeriodSeconds"] == 0


async def test_all_pages_are_joined(tmp_path: Path) -> None:
    """limit 0 reads in chunks of 500 until there is no continue token."""

    async def answer(request: Request) -> Response:
        page = int(request.query_params.get("continue") or 0)
        metadata = {"resourceVersion": "9", "continue": str(page + 1) if page < 2 else ""}
        return json({"metadata": metadata, "items": [{"metadata": {"name": f"p{page}"}}]})

    async with client_for(answer, tmp_path) as (kube, stub):
        listing = await kube.list(PODS, label_selector="a=b", field_selector="spec.nodeName=x")
    assert [pod.metadata.name for pod in listing.items] == ["p0", "p1", "p2"]
    assert (listing.resource_version, listing.continue_) == ("9", "")
    assert all("limit=500" in request.target for request in stub.requests)
    assert all("labelSelector=a%3Db" in request.target for request in stub.requests)


@pytest.mark.parametrize(("failures", "succeeds"), [(2, True), (3, False)])
async def test_a_list_whose_pages_expire_starts_over(tmp_path: Path, failures: int, succeeds: bool) -> None:
    """A 410 in the middle restarts the whole LIST, a few times; pages of two LISTs are never mixed."""
    left = failures

    async def answer(request: Request) -> Response:
        nonlocal left
        if "continue" in request.query_params:
            if left:
                left -= 1
                return refusal(410)
            return json({"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "b"}}]})
        metadata = {"resourceVersion": "9", "continue": "x"}
        return json({"metadata": metadata, "items": [{"metadata": {"name": "a"}}]})

    async with client_for(answer, tmp_path) as (kube, _):
        if succeeds:
            assert len((await kube.list(PODS)).items) == 2
        else:
            with pytest.raises(ExpiredError):
                await kube.list(PODS)


async def test_nulls_for_empty_lists_are_read(tmp_path: Path) -> None:
    """Go writes some empty lists as null; such objects are read, and other values of a wrong type are an error."""
    node = {"metadata": {"name": "n"}, "status": {"images": [{"names": None, "sizeBytes": 5}]}}

    async def answer(request: Request) -> Response:
        if request.url.path.endswith("/broken"):
            return json({"metadata": {"name": 5}})
        if request.url.path.endswith("/n"):
            return json(node)
        return json({"metadata": {"resourceVersion": "1"}, "items": [node]})

    async with client_for(answer, tmp_path) as (kube, _):
        assert (await kube.get(NODES, "n")).status.images[0].names == []
        assert (await kube.list(NODES)).items[0].status.images[0].size_bytes == 5
        with pytest.raises(InvalidError):
            await kube.get(NODES, "broken")


async def test_no_answer_is_a_deadline(tmp_path: Path) -> None:
    """A server that does not answer causes DeadlineError in time."""

    async def answer(_: Request) -> Response:
        await asyncio.sleep(30)
        return json({})

    async with client_for(answer, tmp_path, timeouts=FAST) as (kube, _):
        async with asyncio.timeout(10):
            with pytest.raises(DeadlineError):
                await kube.get(PODS, "p", namespace="n")
            with pytest.raises(UnavailableError):
                await anext(watch(kube))


async def test_waiting_for_a_slot_counts(tmp_path: Path) -> None:
    """The pool bounds calls under way; the deadline covers the wait for a slot."""
    under_way = most = answered = 0

    async def answer(_: Request) -> Response:
        nonlocal under_way, most, answered
        under_way += 1
        answered += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01 if answered <= 2 else 30)
        under_way -= 1
        return json({"metadata": {"name": "p"}})

    async with client_for(answer, tmp_path, timeouts=Timeouts(request_s=1.0), pool_size=2) as (kube, stub):
        calls = (kube.get(PODS, "p", namespace="n") for _ in range(6))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert most == 2
    assert [type(outcome) for outcome in outcomes] == [Pod] * 2 + [DeadlineError] * 4
    assert len(stub.requests) <= 4


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    """A refused connection is UnavailableError."""
    async with client_for(_never, tmp_path) as (_, stub):
        path = write_kubeconfig(tmp_path, stub.url)
    async with connect(path, clock=SystemClock(), random=SeededRandom(1)) as kube:
        with pytest.raises(UnavailableError):
            await kube.get(PODS, "p", namespace="n")
        with pytest.raises(UnavailableError):
            await anext(watch(kube))


async def test_a_connection_that_does_not_come_up_is_unavailable(tmp_path: Path) -> None:
    """A server that accepts the connection and does not answer in TLS is UnavailableError: no request was sent, so the
    outcome is known."""

    ended = [asyncio.Event(), asyncio.Event()]
    left = iter(ended)

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        next(left).set()

    timeouts = Timeouts(request_s=30, list_s=30, silence_s=30, connect_s=0.2)
    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        path = write_kubeconfig(tmp_path, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with connect(path, clock=SystemClock(), random=SeededRandom(1), timeouts=timeouts) as kube:
            with pytest.raises(UnavailableError, match=r"no connection within 0\.2 s"):
                await kube.create(PODS, {"metadata": {"name": "p"}}, namespace="n")
            with pytest.raises(UnavailableError, match="ConnectionTimeoutError"):
                await anext(watch(kube))
        await asyncio.gather(*(each.wait() for each in ended))


async def _never(_: Request) -> Response:
    raise AssertionError


async def test_an_answer_cut_short_is_unavailable(tmp_path: Path) -> None:
    """A body that ends before its length is never decoded."""

    async def answer(_: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            yield b'{"metadata"'
            raise ConnectionResetError

        return StreamingResponse(body(), media_type="application/json")

    async with client_for(answer, tmp_path) as (kube, _):
        with pytest.raises(UnavailableError):
            await kube.get(PODS, "p", namespace="n")


async def test_redirects_are_not_followed(tmp_path: Path) -> None:
    """Credentials go to one server only."""

    async def answer(request: Request) -> Response:
        return RedirectResponse(str(request.url) + "x")

    async with client_for(answer, tmp_path) as (kube, stub):
        with pytest.raises(UnavailableError):
            await kube.get(PODS, "p", namespace="n")
    assert len(stub.requests) == 1


async def test_environment_proxies_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY of the environment is not used for the API server."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def answer(_: Request) -> Response:
        return json({"metadata": {"name": "p"}})

    async with client_for(answer, tmp_path) as (kube, _):
        assert (await kube.get(PODS, "p", namespace="n")).metadata.name == "p"


async def test_refusals_carry_retry_after(tmp_path: Path) -> None:
    """The header reaches the error; nothing was retried."""

    async def answer(_: Request) -> Response:
        return refusal(429, **{"Retry-After": "4"})

    async with client_for(answer, tmp_path) as (kube, stub):
        with pytest.raises(ThrottledError) as caught:
            await kube.get(PODS, "p", namespace="n")
    assert caught.value.retry_after_s == 4
    assert len(stub.requests) == 1


async def test_too_large_is_refused_before_sending(tmp_path: Path) -> None:
    """A body over the server's limit is not sent; one of two megabytes is."""

    async def answer(_: Request) -> Response:
        return json({"metadata": {"name": "a"}})

    async with client_for(answer, tmp_path) as (kube, stub):
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "x" * 2_000_000}}, namespace="n")
        with pytest.raises(TooLargeError):
            await kube.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "x" * 4_000_000}}, namespace="n")
    assert len(stub.requests) == 1


async def test_watch_lines_in_any_chunks(tmp_path: Path) -> None:
    """Events are the same however the bytes are cut; blank lines and a cut last line are ignored."""
    body = event("ADDED", name="ä", resourceVersion="8") + b"\n" + event("BOOKMARK", resourceVersion="9")
    body += event("DELETED", name="ä", resourceVersion="10") + b'{"type":"MODI'

    async def answer(request: Request) -> Response:
        size = int(request.headers["user-agent"])

        async def chunks() -> AsyncGenerator[bytes, None]:
            for start in range(0, len(body), size):
                yield body[start : start + size]

        return StreamingResponse(chunks())

    for size in (1, 7, 100, 10_000):
        async with client_for(answer, tmp_path, user_agent=str(size)) as (kube, stub):
            events = [found async for found in watch(kube)]
        assert [(found.type, found.resource_version) for found in events] == [
            (WatchType.ADDED, "8"),
            (WatchType.BOOKMARK, "9"),
            (WatchType.DELETED, "10"),
        ]
        assert events[1].object is None
        target = stub.requests[0].target
        assert target.startswith("/api/v1/namespaces/n/pods?watch=1&allowWatchBookmarks=true&resourceVersion=7&")
        assert 15 <= int(target.partition("timeoutSeconds=")[2]) <= 25


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        (b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"old"}}\n', ExpiredError),
        (b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"oops"}}\n', UnavailableError),
        (b'{"type":"NEW","object":{}}\n', InvalidError),
        (b"rubbish\n", InvalidError),
    ],
)
async def test_watch_errors(tmp_path: Path, line: bytes, meaning: type[ControlPlaneError]) -> None:
    """An ERROR event raises the error that it describes, an unreadable line InvalidError, after the events before
    it."""

    async def answer(_: Request) -> Response:
        return Response(event("ADDED", name="a", resourceVersion="8") + line)

    async with client_for(answer, tmp_path) as (kube, _), aclosing(watch(kube)) as events:
        assert (await anext(events)).type is WatchType.ADDED
        with pytest.raises(meaning):
            await anext(events)


async def test_a_silent_watch_is_unavailable(tmp_path: Path) -> None:
    """A watch that receives nothing for the silence limit, on an open socket, raises UnavailableError."""

    async def answer(_: Request) -> Response:
        async def chunks() -> AsyncGenerator[bytes, None]:
            yield event("ADDED", name="a", resourceVersion="8")
            await asyncio.sleep(30)

        return StreamingResponse(chunks())

    async with client_for(answer, tmp_path, timeouts=FAST) as (kube, _), aclosing(watch(kube)) as events:
        await anext(events)
        async with asyncio.timeout(10):
            with pytest.raises(UnavailableError):
                await anext(events)


async def test_logs(tmp_path: Path) -> None:
    """Logs are read whole, or line by line as they arrive; a container without a log yet is a transient error."""

    async def answer(request: Request) -> Response:
        if request.query_params.get("container") == "new":
            return refusal(400, 'container "new" in pod "p" is waiting to start: ContainerCreating')
        return Response(b"2026 one\n2026 two\n2026 tail")

    async with client_for(answer, tmp_path) as (kube, stub):
        assert await kube.read_log("n", "p", tail_lines=3) == b"2026 one\n2026 two\n2026 tail"
        followed = b"".join([part async for part in kube.follow_log("n", "p", since_time="2026-01-01T00:00:00Z")])
        with pytest.raises(UnavailableError):
            await kube.read_log("n", "p", container="new")
    assert followed == b"2026 one\n2026 two\n2026 tail"
    assert stub.requests[0].target.startswith("/api/v1/namespaces/n/pods/p/log?tailLines=3&timestamps=true")
    assert "follow=true" in stub.requests[1].target


@pytest.mark.parametrize("before", [b"", b"2026 one\n"])
async def test_what_a_kubelet_could_not_do_is_no_line(tmp_path: Path, before: bytes) -> None:
    """The kubelet answers 200 before it looks for the log; its error is the last text of the body, without a time, and
    is no line."""

    async def answer(request: Request) -> Response:
        error = b"failed to open log file" if request.query_params.get("container") == "shut" else LOST
        return Response(before + error)

    async with client_for(answer, tmp_path) as (kube, _):
        with pytest.raises(NotFoundError, match="unable to retrieve"):
            await kube.read_log("n", "p")
        with pytest.raises(NotFoundError, match="unable to retrieve"):
            _ = [part async for part in kube.follow_log("n", "p")]
        with pytest.raises(UnavailableError, match="failed to open"):
            await kube.read_log("n", "p", container="shut")


async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    """Rotated tokens are picked up within a minute, and at once after a 401, which is repeated once."""
    token = tmp_path / "token"
    token.write_text("one")
    clock = FakeClock()
    wanted = "Bearer one"

    async def answer(request: Request) -> Response:
        return json({"metadata": {"name": "p"}}) if request.headers["authorization"] == wanted else refusal(401)

    async with client_for(answer, tmp_path, user={"tokenFile": str(token)}, clock=clock) as (kube, stub):
        await kube.get(PODS, "p", namespace="n")
        token.write_text("two")
        clock.advance(61)
        wanted = "Bearer two"
        await kube.get(PODS, "p", namespace="n")
        assert len(stub.requests) == 2
        token.write_text("three")
        wanted = "Bearer three"
        await kube.get(PODS, "p", namespace="n")
        assert len(stub.requests) == 4
        wanted = "Bearer four"
        with pytest.raises(DeniedError):
            await kube.get(PODS, "p", namespace="n")


async def test_a_token_file_that_can_not_be_read(tmp_path: Path) -> None:
    """The line end is not part of a token; while the file is missing or empty, the previous token stays in use."""
    token = tmp_path / "token"
    token.write_text("one\n")
    clock = FakeClock()

    async def answer(request: Request) -> Response:
        return json({"metadata": {"name": "p"}}) if request.headers["authorization"] == "Bearer one" else refusal(401)

    async with client_for(answer, tmp_path, user={"tokenFile": str(token)}, clock=clock) as (kube, _):
        await kube.get(PODS, "p", namespace="n")
        token.unlink()
        clock.advance(61)
        await kube.get(PODS, "p", namespace="n")
        token.write_text("")
        clock.advance(61)
        await kube.get(PODS, "p", namespace="n")
        token.write_text("two")
        clock.advance(61)
        with pytest.raises(DeniedError):
            await kube.get(PODS, "p", namespace="n")


async def test_exec_plugins(tmp_path: Path) -> None:
    """A credential plugin is run, and run again after a 401."""
    count = tmp_path / "count"
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!{sys.executable}\nimport json, pathlib\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "runs = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(runs))\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
        "'status': {'token': f't{runs}'}}))\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user: dict[str, Any] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "args": [], "env": []}
    }

    async def answer(request: Request) -> Response:
        return json({"metadata": {"name": "p"}}) if request.headers["authorization"] == "Bearer t2" else refusal(401)

    async with client_for(answer, tmp_path, user=user) as (kube, stub):
        await kube.get(PODS, "p", namespace="n")
        await kube.get(PODS, "p", namespace="n")
    assert [request.headers["authorization"] for request in stub.requests] == ["Bearer t1", "Bearer t2", "Bearer t2"]
    assert count.read_text() == "2"


@pytest.mark.parametrize("text", [None, "{}", "contexts: 5", '{"current-context": "x", "contexts": []}'])
async def test_a_bad_kubeconfig_is_named(tmp_path: Path, text: str | None) -> None:
    """A missing or unusable kubeconfig is named in an error before anything is sent."""
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidError, match="config"):
        await connect(str(path), clock=SystemClock(), random=SeededRandom(1)).open()


async def test_a_pod_without_its_account_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster the pod's own account is used; an error names the account when it is not mounted."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(InvalidError, match="own account"):
        await connect(None, clock=SystemClock(), random=SeededRandom(1)).open()


async def test_a_client_that_is_not_open_is_unavailable() -> None:
    """Before open and after close nothing is sent."""
    kube = connect("none", clock=SystemClock(), random=SeededRandom(1))
    with pytest.raises(UnavailableError):
        await kube.get(PODS, "p", namespace="n")


def test_the_library_is_imported_lightly() -> None:
    """The client is imported without the dependencies of the library's model client, and a later ordinary import of the
    library is complete."""
    program = (
        "import sys\n"
        "from slipway.kube import client\n"
        "client._library()\n"
        "heavy = {'pydantic', 'requests', 'oauthlib', 'urllib3', 'kubernetes'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import kubernetes.aio\n"
        "kubernetes.aio.client.CoreV1Api, kubernetes.aio.config.load_kube_config, kubernetes.client.CoreV1Api\n"
        "assert kubernetes.aio.client.ApiClient is not None\n"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
