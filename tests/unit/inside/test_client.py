"""The library for ranks, against a server with unusual answers: temporary failures are retried, refusals are raised."""

import ast
import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from slipway import inside
from slipway.inside import client, start
from slipway.inside.client import ApiRefusedError, Client, NotInTimeError, PreemptionSignal, RankPeer
from slipway.inside.fetch import DownloadRefusedError, RetryLaterError, download
from tests.support.http_stub import HttpStub, serve

NOT_ASKED: dict[str, Any] = {"preempt": False, "n": 0, "reason": "", "at": "", "attempt": 2, "acks": {}}
ASKED: dict[str, Any] = {
    **NOT_ASKED,
    "preempt": True,
    "n": 3,
    "reason": "maintenance",
    "deadline": "D",
    "requeue": True,
}


def problem(status: int, code: str, detail: str = "words", after: str = "") -> Response:
    headers = {"Retry-After": after} if after else None
    return JSONResponse({"status": status, "code": code, "detail": detail}, status, headers)


class Api:
    """Returns the given answers in order, and the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Response] = []

    async def __call__(self, request: Request) -> Response:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def stub(api: Api) -> AsyncGenerator[HttpStub]:
    async with serve(api) as listening:
        yield listening


def a_client(stub: HttpStub, tmp_path: Path, **more: str) -> Client:
    token = tmp_path / "token"
    token.write_text("first\n", encoding="utf-8")
    env = {"SLIPWAY_API": f"{stub.url}/", "SLIPWAY_ALLOCATION_ID": "run-12345678", "SLIPWAY_ATTEMPT": "2"}
    ranks = {"SLIPWAY_RANK": "5", "RANK": "1", "WORLD_SIZE": "2", "SLIPWAY_TOKEN_FILE": str(token)}
    return Client({**env, **ranks, **more})


async def test_a_note_says_who_says_it(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """A note has the attempt, so that a late one is refused, and the token that its file contains now."""
    api.answers = [JSONResponse({})]
    client = a_client(stub, tmp_path)
    assert await asyncio.to_thread(client.ready)
    (tmp_path / "token").write_text("second", encoding="utf-8")
    assert await asyncio.to_thread(client.progress, 0.5)
    assert await asyncio.to_thread(client.daemon)
    assert await asyncio.to_thread(client.activity)
    root = "/api/v1/allocations/run-12345678"
    assert [(request.target, request.json) for request in stub.requests] == [
        (f"{root}/ready", {"value": True, "attempt": 2}),
        (f"{root}/progress", {"progress": 0.5, "attempt": 2}),
        (f"{root}/ranks/5/daemon", {"value": True, "attempt": 2}),
        (f"{root}/activity", {}),
    ]
    tokens = [request.headers["authorization"] for request in stub.requests]
    assert tokens == ["Bearer first", *["Bearer second"] * 3]


async def test_what_may_pass_is_tried_again(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """Temporary failures are retried, also one 401, because the token in the file may be newer than the one that was
    read."""
    api.answers = [
        problem(503, "unavailable"),
        problem(429, "throttled"),
        problem(401, "unauthorized"),
        JSONResponse({}),
    ]
    assert await asyncio.to_thread(a_client(stub, tmp_path).waiting)
    assert len(stub.requests) == 4


async def test_the_token_goes_to_no_other_host(tmp_path: Path) -> None:
    """A redirect is a refusal, of a note, a download and a start, so that the token goes to no other host: a server on
    the way may send one."""

    async def away(_: Request) -> Response:
        return RedirectResponse(elsewhere.url, status_code=302)

    async def taken(_: Request) -> Response:
        return JSONResponse({})

    async with serve(taken) as elsewhere, serve(away) as stub:
        client = a_client(stub, tmp_path)
        with pytest.raises(ApiRefusedError):
            await asyncio.to_thread(client.ready)
        with pytest.raises(DownloadRefusedError):
            await asyncio.to_thread(download, stub.url, "", str(tmp_path), str(tmp_path / "token"))
        with pytest.raises(OSError, match="HTTP 302"):
            await asyncio.to_thread(start.ask, stub.url, str(tmp_path / "token"))
    assert (len(stub.requests), elsewhere.requests) == (3, [])


@pytest.mark.parametrize("cut", [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"])
async def test_an_answer_that_is_cut_off_is_asked_for_again(cut: bytes, tmp_path: Path) -> None:
    """A note, a start or a download whose answer is cut off is repeated: an api that ends in the middle does not end
    the rank."""
    answers = [cut, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"] + 2 * [cut]

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(meet, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = Client({"SLIPWAY_API": url, "SLIPWAY_ALLOCATION_ID": "run-1"})
        await asyncio.to_thread(client.ready)
        with pytest.raises(OSError, match=r"BadStatusLine|IncompleteRead"):
            await asyncio.to_thread(start.ask, url)
        with pytest.raises(RetryLaterError):
            await asyncio.to_thread(download, url, "", str(tmp_path))
    assert answers == []


def test_the_folder_has_the_calls_of_its_client() -> None:
    """`from slipway import inside` has each call that a type checker sees."""
    tree = ast.parse(Path(inside.__file__).read_text(encoding="utf-8"))
    told = {each.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names}
    for name in told - {None}:
        assert getattr(inside, str(name)) is getattr(client, str(name))
    assert "ApiRefusedError" in told


async def test_what_is_refused_is_told(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """A refusal is raised at once with the API's message."""
    api.answers = [problem(403, "forbidden", "not yours")]
    with pytest.raises(ApiRefusedError, match="not yours") as refused:
        await asyncio.to_thread(a_client(stub, tmp_path).ready)
    assert (refused.value.status, refused.value.code, len(stub.requests)) == (403, "forbidden", 1)


async def test_nobody_answers(tmp_path: Path) -> None:
    """Without an answer the call ends in time, and the error says what was tried."""
    client = Client({"SLIPWAY_API": "http://127.0.0.1:9", "SLIPWAY_ALLOCATION_ID": "run-12345678"})
    with pytest.raises(NotInTimeError, match=r"no answer of http://127\.0\.0\.1:9/api/v1/allocations/run-12345678"):
        await asyncio.to_thread(client.rendezvous, 0.5)


async def test_gathering_goes_on_until_all_are_there(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """Gathering continues until all peers have joined: a waiting peer asks again with the same id; each call with a
    name is a new round."""
    missing = problem(408, "peers-missing", "1 of 2 are there", "1")
    api.answers = [missing, problem(503, "redis-unavailable"), missing, JSONResponse({"data": ["a", "b"]})]
    client = a_client(stub, tmp_path)
    assert await asyncio.to_thread(client.allgather, "b") == ["a", "b"]
    assert await asyncio.to_thread(client.allgather, "c") == ["a", "b"]
    sent = [request.json for request in stub.requests]
    assert {(each["requestId"], each["numPeers"], each["rank"], each["attempt"]) for each in sent} == {
        ("rank-1", 2, 1, 2)
    }
    assert [each["group"] for each in sent] == [*["default"] * 4, "default#1"]
    assert all(0 < each["timeoutSeconds"] <= 60 for each in sent)


async def test_gathering_ends_in_time(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """Gathering ends in time with the API's list of missing peers; a replaced peer gets an error that says so."""
    api.answers = [problem(408, "peers-missing", "rank 1 is missing")]
    with pytest.raises(NotInTimeError, match="rank 1 is missing"):
        await asyncio.to_thread(lambda: a_client(stub, tmp_path).allgather(timeout_s=0.2))
    api.answers = [problem(409, "replaced", "came again")]
    with pytest.raises(ApiRefusedError, match="came again"):
        await asyncio.to_thread(lambda: a_client(stub, tmp_path).allgather(timeout_s=5))


async def test_where_the_others_are(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """The addresses of the other ranks are requested until all have one."""
    addresses = [{"rank": 0, "role": "worker", "host": "10.0.0.1"}]
    not_yet: dict[str, Any] = {"ready": False, "message": "rank 5 (Pending)", "addresses": []}
    api.answers = [JSONResponse(not_yet), JSONResponse({"ready": True, "addresses": addresses})]
    assert await asyncio.to_thread(a_client(stub, tmp_path).rendezvous) == [RankPeer(0, "worker", "10.0.0.1")]
    assert stub.requests[0].target.endswith("&rank=5&attempt=2")
    api.answers = [JSONResponse(not_yet)]
    with pytest.raises(NotInTimeError, match=r"rank 5 \(Pending\)"):
        await asyncio.to_thread(a_client(stub, tmp_path).rendezvous, 0.2)


async def test_a_preemption_notice_arrives_in_the_background(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """`preempted` never waits: a thread asks the API, also through failures, and calls the registered functions."""
    api.answers = [problem(503, "unavailable"), JSONResponse(ASKED)]
    client, heard, calls = a_client(stub, tmp_path), threading.Event(), list[PreemptionSignal]()
    assert not client.preempted()

    def then(asked: PreemptionSignal) -> None:
        calls.append(asked)
        heard.set()

    client.watch(then)
    assert await asyncio.to_thread(heard.wait, 10)
    assert client.preempted()
    assert calls == [PreemptionSignal(3, "maintenance", "D", True)]
    api.answers = [JSONResponse({})]
    await asyncio.to_thread(client.ack, 3)
    assert stub.requests[-1].json == {"rank": 5, "attempt": 2, "n": 3}


async def test_asking_once(api: Api, stub: HttpStub, tmp_path: Path) -> None:
    """Without a timeout one request returns the current answer."""
    api.answers = [JSONResponse(NOT_ASKED), JSONResponse(ASKED)]
    client = a_client(stub, tmp_path)
    assert await asyncio.to_thread(client.preemption) is None
    assert await asyncio.to_thread(client.preemption, 30) == PreemptionSignal(3, "maintenance", "D", True)


async def test_by_file(tmp_path: Path) -> None:
    """A file shows the preemption too, for programs that can only check files."""
    file = tmp_path / "preempted"
    client = Client({"SLIPWAY_PREEMPT_FILE": str(file)})
    assert not client.preempted()
    file.write_text(json.dumps({}), encoding="utf-8")
    assert client.preempted()


async def test_outside_of_an_allocation() -> None:
    """The same script runs on a laptop: notes are dropped, there is no preemption, and a gathering has one member."""
    client = Client({})
    assert not any(
        [client.ready(), client.waiting(), client.progress(1), client.activity(), client.daemon(), client.ack()]
    )
    assert (client.preempted(), client.preemption(5)) == (False, None)
    assert client.allgather("x") == ["x"]
    assert client.rendezvous() == [RankPeer(0, "", "127.0.0.1")]
    with pytest.raises(ApiRefusedError, match="this is no rank"):
        client.allgather("x", peers=2)


def test_the_calls_stand_in_the_package() -> None:
    """The calls are attributes of the package: `from slipway import inside` is enough; other names are no
    attributes."""
    assert inside.preempted is client.preempted
    assert inside.allgather("x") == ["x"]
    with pytest.raises(AttributeError, match="has no unheard_of"):
        _ = inside.unheard_of  # pyright: ignore[reportAttributeAccessIssue]
