"""The command for shells: its output and exit codes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.inside.command import main
from tests.support.http_stub import HttpStub, serve

ASKED: dict[str, Any] = {"preempt": True, "n": 1, "reason": "maintenance", "deadline": "", "requeue": False}


class Api:
    """Returns the same answer to every request."""

    status = 200
    body: dict[str, Any] = {}

    async def __call__(self, request: Request) -> Response:
        return JSONResponse(self.body, self.status)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def stub(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[HttpStub]:
    async with serve(api) as listening:
        monkeypatch.setenv("SLIPWAY_API", listening.url)
        monkeypatch.setenv("SLIPWAY_ALLOCATION_ID", "run-12345678")
        yield listening


async def run(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (["ready"], "ready", {"value": True, "attempt": 1}),
        (["waiting", "--off"], "waiting", {"value": False, "attempt": 1}),
        (["progress", "0.25"], "progress", {"progress": 0.25, "attempt": 1}),
        (["progress", "0.5", "--checkpoint"], "progress", {"progress": 0.5, "checkpoint": True, "attempt": 1}),
        (["progress", "--checkpoint"], "progress", {"checkpoint": True, "attempt": 1}),
        (["activity"], "activity", {}),
        (["daemon", "3"], "ranks/3/daemon", {"value": True, "attempt": 1}),
        (["ack"], "signals/preemption/ack", {"rank": 0, "attempt": 1}),
    ],
)
async def test_notes(stub: HttpStub, words: list[str], path: str, body: dict[str, Any]) -> None:
    """Each note is one call, and prints nothing."""
    assert await run(*words) == 0
    (request,) = stub.requests
    assert (request.target, request.json) == (f"/api/v1/allocations/run-12345678/{path}", body)


async def test_preempted(api: Api, stub: HttpStub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`preempted` exits with 1 for no and 0 for yes, which it also prints and writes atomically into a file."""
    file = tmp_path / "asked"
    api.body = {"preempt": False}
    assert await run("preempted", "--file", str(file)) == 1
    assert not file.exists()
    api.body = ASKED
    assert await run("preempted", "--wait", "--file", str(file)) == 0
    told = {"n": 1, "reason": "maintenance", "deadline": "", "requeue": False}
    assert json.loads(file.read_text("utf-8")) == json.loads(capsys.readouterr().out) == told


async def test_exchange(api: Api, stub: HttpStub, capsys: pytest.CaptureFixture[str]) -> None:
    """`exchange` reads and prints JSON."""
    api.body = {"data": [1, {"a": 2}]}
    assert await run("allgather", '{"a": 2}', "--peers", "2", "--id", "me", "--name", "x") == 0
    assert json.loads(capsys.readouterr().out) == [1, {"a": 2}]
    sent = stub.requests[0].json
    assert (sent["requestId"], sent["numPeers"], sent["group"], sent["data"]) == ("me", 2, "x", {"a": 2})


async def test_where_the_ranks_are(api: Api, stub: HttpStub, capsys: pytest.CaptureFixture[str]) -> None:
    """The addresses of the ranks are printed one per line, for `while read`."""
    api.body = {"ready": True, "addresses": [{"rank": 0, "role": "worker", "host": "10.0.0.1"}]}
    assert await run("rendezvous") == 0
    assert capsys.readouterr().out == "0 10.0.0.1 worker\n"


async def test_a_hostfile(
    api: Api, stub: HttpStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hostfile has a line for each rank, in order, as MPI and DeepSpeed read it, with one slot per GPU."""
    addresses = [{"rank": rank, "role": "worker", "host": f"10.0.0.{rank}"} for rank in range(2)]
    api.body = {"ready": True, "addresses": addresses}
    assert await run("hostfile") == 0
    assert capsys.readouterr().out == "10.0.0.0 slots=1\n10.0.0.1 slots=1\n"
    monkeypatch.setenv("PET_NPROC_PER_NODE", "8")
    assert await run("hostfile") == 0
    assert capsys.readouterr().out == "10.0.0.0 slots=8\n10.0.0.1 slots=8\n"
    assert await run("hostfile", "--slots", "2") == 0
    assert capsys.readouterr().out == "10.0.0.0 slots=2\n10.0.0.1 slots=2\n"


async def test_refused(api: Api, stub: HttpStub, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal exits with 3 and the API's message."""
    api.status, api.body = 409, {"code": "conflict", "detail": "allocation run-12345678 has ended"}
    assert await run("ready") == 3
    assert capsys.readouterr().err == "slipway.inside: refused (409 conflict): allocation run-12345678 has ended\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["allgather", "text"], "is not JSON"),
        (["run", "--ready-when", "("], "there is no program"),
        (["run", "--ready-when", "(", "--", "true"], "unterminated"),
        (["run", "--preempt-signal", "X", "--", "true"], "there is no signal X"),
    ],
)
def test_not_understood(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad arguments exit with 2 and the reason."""
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_outside_of_an_allocation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Outside of an allocation a note fails, because no API receives it."""
    monkeypatch.delenv("SLIPWAY_API", raising=False)
    assert main(["ready"]) == 3
    assert "this is no rank" in capsys.readouterr().err
