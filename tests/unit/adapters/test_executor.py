"""The results of a call's ranks: decoded only when the rank has signed them."""

import asyncio
import base64
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs] - it has no types
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from slipway.adapters import executor
from slipway.adapters.executor import ReportedValue, SlipwayExecutor, program_of, values_in
from slipway.errors import ControlPlaneError
from slipway.sdk import Client
from tests.support.http_stub import serve
from tests.support.sdk import a_view

MARK, KEY = "slipway-result-1:", b"k" * 32


def ran(folder: Path, key: bytes = KEY) -> list[str]:
    """The lines of a rank that has called `print("by the way") or 40 + 2`."""

    def call() -> int:
        print("by the way", end=" ")  # noqa: T201 - what a function prints stands before the result
        return 40 + 2

    pickled: bytes = cloudpickle.dumps((call, (), {}))  # pyright: ignore[reportUnknownMemberType]
    (folder / "slipway_call.b64").write_bytes(base64.b64encode(pickled))
    program = [sys.executable, "-c", program_of(MARK, key)]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def text_of(told: ReportedValue) -> str:
    return told[1].decode()


def test_a_result_comes_back_as_the_rank_made_it(tmp_path: Path) -> None:
    """A result is returned as the rank made it, also with other output on its line; other lines are skipped."""
    lines = [f"{line} and a thread says more" for line in ran(tmp_path)]
    told = values_in(["noise", MARK, f"{MARK}[1]", f"{MARK}[[", *lines], MARK, KEY)
    assert {rank: (kind, pickle.loads(data)) for rank, (kind, data) in told.items()} == {0: ("result", 42)}


def test_an_unsigned_result_is_not_read(tmp_path: Path) -> None:
    """A result with another key, of another rank, of another kind, or changed, is treated as text and not decoded; only
    signed results are used."""
    own = ran(tmp_path)
    strange = ran(tmp_path, key=b"s" * 32)
    moved = [line.replace(f"{MARK}[0,", f"{MARK}[1,") for line in own]
    other = [line.replace('"result"', '"error"') for line in own]
    forged = values_in(strange, MARK, KEY)[0], values_in(moved, MARK, KEY)[1], values_in(other, MARK, KEY)[0]
    assert {kind for kind, _ in forged} == {"text"}
    assert "is not signed with the key of the call" in text_of(forged[0])
    for lines in ([*own, *strange], [*strange, *own]):
        assert values_in(lines, MARK, KEY)[0][0] == "result"


@pytest.mark.parametrize("piece", ["!", "é", ""])
def test_pieces_of_any_form_are_no_result(piece: str) -> None:
    """Malformed pieces are no result: they do not end the call, and are reported as text."""
    line = f'{MARK}[0, 0, 1, "result", "00", "{piece}"]'
    assert values_in([line], MARK, KEY)[0][0] == "text"
    assert values_in([f'{MARK}[0, 7, 1, "result", "00", ""]', f'{MARK}[0, 0, 9, "a", "b", ""]'], MARK, KEY) == {}


@pytest.mark.parametrize("rank", [0, 1, -1])
async def test_a_forged_line_completes_no_call(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged line, of this rank or of one that the call does not have, does not end the wait for the call's own
    result."""
    monkeypatch.setattr(executor, "LOOK_S", 0.01)
    over = a_view(phase="Terminated", result="Succeeded")

    async def answer(request: Request) -> Response:
        path = request.url.path
        if request.method == "POST":
            return Response(msgspec.json.encode(a_view()), status_code=201)
        if path.endswith("/allocations"):
            return Response(b'{"items": [], "metadata": {}}')
        if not path.endswith("/logs"):
            return Response(msgspec.json.encode(over))
        forged = f'{request.query_params["search"]}[{rank}, 0, 1, "error", "00", ""]'
        looks = sum("/logs" in each.target for each in stub.requests)
        own = printed(stub.requests[0].json["files"]) if looks > 2 else []
        return Response(msgspec.json.encode({"items": [a_line(text) for text in (forged, *own)], "metadata": {}}))

    def printed(files: list[dict[str, str]]) -> list[str]:
        for file in files:
            (tmp_path / file["path"]).write_text(file["content"])
        program = [sys.executable, "slipway_call.py"]
        return subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()

    def called() -> Any:
        with Client(stub.url) as client, SlipwayExecutor(client, image="python:3.11") as pool:
            return pool.submit(int, "42").result(timeout=20)

    async with serve(answer) as stub:
        assert await asyncio.to_thread(called) == 42


async def test_a_call_that_is_launched_during_a_shutdown_is_ended() -> None:
    """Nothing would wait for it: `submit` is refused, as after the shutdown."""
    pools = list[SlipwayExecutor]()

    async def answer(request: Request) -> Response:
        if request.url.path.endswith("/kill"):
            return Response(msgspec.json.encode(a_view(phase="Terminating")), status_code=202)
        await asyncio.to_thread(pools[0].shutdown, wait=False)
        return Response(msgspec.json.encode(a_view()), status_code=201)

    def called() -> None:
        with Client(stub.url) as client:
            pools.append(SlipwayExecutor(client, image="python:3.11"))
            pools[0].submit(int, "42")

    async with serve(answer) as stub:
        with pytest.raises(RuntimeError, match="after shutdown"):
            await asyncio.to_thread(called)
        assert stub.requests[-1].target.endswith("/kill")


@pytest.mark.parametrize(
    ("away", "says"),
    [("/allocations", "no store today"), ("/logs", "no store today"), ("folder", "could not be read for")],
)
async def test_no_call_waits_for_ever(away: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails for too long, the api, the store of logs or the folder, ends the wait with its own words."""
    monkeypatch.setattr(executor, "LOOK_S", 0.01)
    monkeypatch.setattr(executor, "AWAY_S", 0.05)
    refusal = b'{"type": "/errors/unavailable", "title": "Unavailable", "status": 503, "detail": "no store today"}'

    async def answer(request: Request) -> Response:
        path = request.url.path
        if request.method == "POST":
            for each in tmp_path.iterdir():  # noqa: ASYNC240 - one local folder
                (each / "result-0").mkdir()
            return Response(msgspec.json.encode(a_view()), status_code=201)
        if path.endswith(away):
            return Response(refusal, status_code=503, media_type="application/problem+json")
        if path.endswith("/allocations"):
            return Response(b'{"items": [], "metadata": {}}')
        return Response(msgspec.json.encode(a_view(phase="Terminated", result="Succeeded")))

    def called() -> None:
        folder = f"{tmp_path}" if away == "folder" else ""
        with Client(stub.url) as client, SlipwayExecutor(client, folder=folder, image="python:3.11") as pool:
            pool.submit(int, "42").result(timeout=20)

    async with serve(answer) as stub:
        with pytest.raises(ControlPlaneError, match=says):
            await asyncio.to_thread(called)


def a_line(text: str) -> dict[str, Any]:
    """A line of a log, as the API sends it."""
    return {"attempt": 1, "rank": 0, "stream": "stdout", "time": "2026-01-02T03:04:05Z", "text": text}
