"""The program of the init container: it downloads, checks, unpacks, and tries again what may pass."""

import asyncio
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.inside import fetch
from tests.support.archives import an_archive
from tests.support.http_stub import HttpStub, serve

ARCHIVE = an_archive({"train.py": b"print(1)", "data/a": b"a" * 100_000})
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """As a rank sees it; pauses are for others."""
    monkeypatch.setattr(fetch, "PAUSE_S", 0.0)
    monkeypatch.setenv("SLIPWAY_ALLOCATION_ID", "llm-0123abcd")
    monkeypatch.delenv("SLIPWAY_TOKEN_FILE", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


async def run(stub: HttpStub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The program, beside the server."""
    monkeypatch.setenv("SLIPWAY_API", stub.url)
    return await asyncio.to_thread(fetch.main, [str(folder), DIGEST])


async def test_it_downloads_and_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rank's token, around any proxy of the environment."""

    async def answer(_request: Request) -> Response:
        return Response(ARCHIVE, media_type="application/gzip")

    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("SLIPWAY_TOKEN_FILE", str(tmp_path / "token"))
    async with serve(answer) as stub:
        assert await run(stub, tmp_path / "work", monkeypatch) == 0
    (asked,) = stub.requests
    assert asked.target == "/api/v1/allocations/llm-0123abcd/context"
    assert asked.headers["authorization"] == "Bearer secret"
    assert (tmp_path / "work" / "train.py").read_text() == "print(1)"
    assert (tmp_path / "work" / "data" / "a").stat().st_size == 100_000


async def test_it_tries_again_what_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503, 429, a torn answer, wrong bytes: the next try counts, and what a torn one left is written over."""
    answers = [
        JSONResponse({"detail": "not now"}, 503, {"retry-after": "0"}),
        JSONResponse({"detail": "too many"}, 429),
        Response(ARCHIVE[:-20]),
        Response(an_archive({"train.py": b"something else"})),
        Response(ARCHIVE),
    ]

    async def answer(_request: Request) -> Response:
        return answers.pop(0)

    async with serve(answer) as stub:
        assert await run(stub, tmp_path, monkeypatch) == 0
    assert answers == []
    assert (tmp_path / "train.py").read_text() == "print(1)"


async def test_it_gives_up_where_nothing_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """404, 403: one try, and the API's words; a server that is never there: after some tries."""

    async def answer(_request: Request) -> Response:
        return JSONResponse({"detail": "workspace default has no context abc"}, 404)

    async with serve(answer) as stub:
        assert await run(stub, tmp_path, monkeypatch) == 1
        assert len(stub.requests) == 1
    assert "HTTP 404: workspace default has no context abc" in capsys.readouterr().out
    assert await run(stub, tmp_path, monkeypatch) == 1
    assert f"try {fetch.TRIES} of {fetch.TRIES} failed" in capsys.readouterr().out


async def test_a_bad_archive_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when its digest is right: somebody wrote it past the API."""
    bad = an_archive({"fine": b"1"}, kinds={"link": tarfile.SYMTYPE})

    async def answer(_request: Request) -> Response:
        return Response(bad)

    async with serve(answer) as stub:
        monkeypatch.setenv("SLIPWAY_API", stub.url)
        code = await asyncio.to_thread(fetch.main, [str(tmp_path), hashlib.sha256(bad).hexdigest()])
    assert code == 1
    assert "'link': is a symbolic link" in capsys.readouterr().out
    assert not (tmp_path / "link").exists()


def test_without_an_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what is missing."""
    monkeypatch.delenv("SLIPWAY_API", raising=False)
    assert fetch.main(["/tmp", DIGEST]) == 1
    assert "SLIPWAY_API" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (fetch.ArchiveLimits(unpacked_bytes=1000), "unpacks to more than"),
        (fetch.ArchiveLimits(members=1), "more than 1 members"),
    ],
)
def test_limits(limits: fetch.ArchiveLimits, said: str) -> None:
    """What is unpacked is counted while it is read."""
    bomb = an_archive({"a": b"\0" * 5_000_000, "b": b""})
    assert len(bomb) < 20_000
    with pytest.raises(fetch.ArchiveError, match=said):
        fetch.check(io.BytesIO(bomb), limits)


def test_long_names_are_not_read_into_memory() -> None:
    """A header that claims a name of megabytes is refused before it is read."""
    with pytest.raises(fetch.ArchiveError, match="longer than"):
        fetch.check(io.BytesIO(an_archive({"x" * 70_000: b""})))


def test_modes_are_plain(tmp_path: Path) -> None:
    """No setuid; what is unpacked can be read by its owner."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        head = tarfile.TarInfo("run")
        head.mode = 0o4111
        archive.addfile(head, io.BytesIO())
    out.seek(0)
    fetch.unpack(out, str(tmp_path))
    assert (tmp_path / "run").stat().st_mode & 0o7777 == 0o511
    assert os.access(tmp_path / "run", os.X_OK)
