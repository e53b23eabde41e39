"""The program of the init container that waits for other roles: only the API lets a rank start."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.inside import start
from tests.support.http_stub import HttpStub, serve
from tests.support.wait import wait_until

WHO = {"SLIPWAY_ALLOCATION_ID": "llm-0123abcd", "SLIPWAY_RANK": "3", "SLIPWAY_ATTEMPT": "2"}
WAITS = {"attempt": 2, "start": False, "message": "waits for role server (0 of 1 ranks ready)"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Set the environment of a rank, without pauses."""
    monkeypatch.setattr(start, "PAUSE_S", 0.0)
    for name, value in WHO.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLIPWAY_TOKEN_FILE", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


async def run(stub: HttpStub, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("SLIPWAY_API", stub.url)
    return await asyncio.to_thread(start.main)


async def test_it_waits_until_the_api_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program waits until the API allows the start, with the rank's token and without any proxy of the environment.
    What it waits for is printed once."""
    answers = [WAITS, WAITS, {"attempt": 2, "start": True}]

    async def answer(_request: Request) -> Response:
        return JSONResponse(answers.pop(0))

    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("SLIPWAY_TOKEN_FILE", str(tmp_path / "token"))
    async with serve(answer) as stub:
        assert await run(stub, monkeypatch) == 0
    path = "/api/v1/allocations/llm-0123abcd/ranks/3/start?attempt=2&timeout_seconds=30"
    assert [asked.target for asked in stub.requests] == [path] * 3
    assert {asked.headers["authorization"] for asked in stub.requests} == {"Bearer secret"}
    assert capsys.readouterr().out == "start order: waits for role server (0 of 1 ranks ready)\n"


async def test_an_api_that_is_away_lets_nobody_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the API is away, or its answer is invalid, the rank does not start, and the program asks again."""
    answers: list[Response] = [
        Response("no", status_code=503),
        Response("[]"),
        Response("what"),
        JSONResponse({"start": "yes"}),
        JSONResponse({"start": True}),
    ]

    async def answer(_request: Request) -> Response:
        return answers.pop(0)

    async with serve(answer) as stub:
        assert await run(stub, monkeypatch) == 0
    assert answers == []


@pytest.mark.parametrize("status", [404, 409])
async def test_an_attempt_that_is_over_ends_it(
    status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attempt that is over ends the program with the API's message, which becomes the message of the container."""

    async def answer(_request: Request) -> Response:
        return JSONResponse({"detail": "attempt 2 is over"}, status_code=status)

    async with serve(answer) as stub:
        assert await run(stub, monkeypatch) == 1
    assert capsys.readouterr().out == f"start order: HTTP {status}: attempt 2 is over\n"


def test_without_its_environment_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLIPWAY_API", raising=False)
    assert start.main() == 1
    assert capsys.readouterr().out == "start order: SLIPWAY_API is not set\n"


def test_a_request_to_end_ends_it_at_once() -> None:
    """SIGTERM ends it at once: without a handler the first process of a container would not get the signal, and would
    run until it is killed."""
    environment = {**WHO, "SLIPWAY_API": "http://127.0.0.1:9"}
    program = subprocess.Popen([sys.executable, start.__file__], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("start order: asks again: ")
        program.send_signal(signal.SIGTERM)
        wait_until(lambda: program.poll() is not None, "it has ended")
        assert program.returncode == 143
    finally:
        program.kill()
        program.communicate()
