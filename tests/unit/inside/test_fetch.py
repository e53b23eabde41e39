"""The program of the init container: it downloads, checks and unpacks, and retries temporary failures."""

import asyncio
import gzip
import hashlib
import io
import os
import tarfile
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.inside import fetch
from tests.support.archives import END, a_header, an_archive, hostile_tars, many_records, records
from tests.support.http_stub import HttpStub, serve

ARCHIVE = an_archive({"train.py": b"print(1)", "data/a": b"a" * 100_000})
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Set the environment of a rank, without pauses."""
    monkeypatch.setattr(fetch, "PAUSE_S", 0.0)
    monkeypatch.setenv("SLIPWAY_ALLOCATION_ID", "llm-0123abcd")
    monkeypatch.delenv("SLIPWAY_TOKEN_FILE", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


async def run(stub: HttpStub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The program, beside the server."""
    monkeypatch.setenv("SLIPWAY_API", stub.url)
    return await asyncio.to_thread(fetch.main, [str(folder), DIGEST])


async def test_it_downloads_and_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program downloads with the rank's token, without any proxy of the environment, and unpacks."""

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
    """Temporary failures are retried: 503, 429, a torn answer, wrong bytes; the next try overwrites the files of a torn
    one."""
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
    """404 and 403 end it after one try with the API's message; a missing server after some tries."""

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
    """A bad archive is not unpacked, also when its digest is right, because it may have been written without the
    API."""
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
    """Without an address the error names what is missing."""
    monkeypatch.delenv("SLIPWAY_API", raising=False)
    assert fetch.main(["/tmp", DIGEST]) == 1
    assert "SLIPWAY_API" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (fetch.ArchiveLimits(unpacked_bytes=1000), "unpacks to more than"),
        (fetch.ArchiveLimits(members=1), "more than 1 files and folders"),
    ],
)
def test_limits(limits: fetch.ArchiveLimits, said: str) -> None:
    """The limits of the unpacked content are checked while it is read."""
    bomb = an_archive({"a": b"\0" * 5_000_000, "b": b""})
    assert len(bomb) < 20_000
    with pytest.raises(fetch.ArchiveError, match=said):
        fetch.check(io.BytesIO(bomb), limits)


def test_long_names_are_not_read_into_memory() -> None:
    """A header that claims a name of megabytes is refused before it is read."""
    with pytest.raises(fetch.ArchiveError, match="longer than"):
        fetch.check(io.BytesIO(an_archive({"x" * 70_000: b""})))


@contextmanager
def memory_below(limit: int) -> Generator[None, None, None]:
    """Assert that Python's memory stays below `limit` while the body runs."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


@pytest.mark.parametrize("what", hostile_tars())
def test_no_header_takes_memory(what: str) -> None:
    """Large headers of an archive are refused before they are read, stored or multiplied."""
    packed = gzip.compress(hostile_tars()[what] + END)
    with memory_below(3 * 1024 * 1024), pytest.raises(fetch.ArchiveError):
        fetch.check(io.BytesIO(packed))


def test_headers_for_all_members_are_not_kept() -> None:
    """Headers of a member are dropped when the member is read, so that many members with headers take little memory."""
    pairs = (
        a_header(tarfile.XGLTYPE, many_records(60_000)) + a_header(tarfile.REGTYPE, name=f"f{number}")
        for number in range(60)
    )
    packed = gzip.compress(b"".join(pairs) + END)
    with memory_below(3 * 1024 * 1024):
        assert fetch.check(io.BytesIO(packed)).files == 60


def test_all_headers_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """All headers together have a limit, also when those of each member are within theirs."""
    monkeypatch.setattr(fetch, "HEADERS_BYTES_MAX", 100_000)
    pair = a_header(tarfile.XHDTYPE, many_records(60_000))
    packed = gzip.compress(pair + a_header(tarfile.REGTYPE, name="a") + pair + a_header(tarfile.REGTYPE, name="b"))
    with pytest.raises(fetch.ArchiveError, match="longer than 100000 bytes in all"):
        fetch.check(io.BytesIO(packed))


class CountedReads(io.BytesIO):
    """Counts the reads."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        return super().read(size)


def test_a_long_name_in_the_compression_costs_nothing() -> None:
    """A long name in the compression header is read in blocks; byte by byte it would keep a core busy for minutes."""
    name = b"A" * (8 << 20)
    plain = gzip.compress(gzip.decompress(an_archive({"a": b"x"})))
    named = CountedReads(plain[:3] + b"\x08" + plain[4:10] + name + b"\0" + plain[10:])
    assert fetch.check(named).files == 1
    assert named.reads <= len(name) // fetch.BLOCK + 3


def test_parts_and_padding_of_a_compressed_file() -> None:
    """Several compressed parts are one file, and zeros at its end are padding; endless empty parts, and garbage, are
    refused."""
    tar = gzip.decompress(an_archive({"a": b"x" * 100_000, "b": b""}))
    parts = b"".join(gzip.compress(tar[at : at + 7000]) for at in range(0, len(tar), 7000))
    assert fetch.check(io.BytesIO(parts + b"\0" * 700_000)).files == 2
    empty = gzip.compress(b"")
    assert fetch.check(io.BytesIO(empty * 900 + parts)).files == 2
    with pytest.raises(fetch.ArchiveError, match="empty gzip parts"):
        fetch.check(io.BytesIO(empty * 1100 + parts))
    for damaged in (parts[:-5], parts + b"rubbish", parts[:20] + b"\xff" * 20 + parts[40:]):
        with pytest.raises(fetch.ArchiveError):
            fetch.check(io.BytesIO(damaged))


def test_folders_that_are_only_implied_count() -> None:
    """Folders that appear only in paths count, each once; the refusal has the limit and the next step."""
    archive = an_archive({"a/b/c": b"", "a/b/d": b"", "a/e/f": b""})
    assert fetch.check(io.BytesIO(archive), fetch.ArchiveLimits(members=6)).files == 3
    with pytest.raises(fetch.ArchiveError, match=r"more than 5 files and folders.*leave some out"):
        fetch.check(io.BytesIO(archive), fetch.ArchiveLimits(members=5))


def test_a_path_has_only_so_many_steps() -> None:
    """A path has a limited depth; the refusal names the path, the limit and the next step."""
    within = "a/" * (fetch.STEPS_MAX - 1)
    assert fetch.check(io.BytesIO(an_archive({f"{within}f": b""}))).files == 1
    with pytest.raises(fetch.ArchiveError, match=rf"'{within}a/f': .*deeper than {fetch.STEPS_MAX} steps; leave it"):
        fetch.check(io.BytesIO(an_archive({f"{within}a/f": b""})))


def test_long_paths_are_not_kept_whole() -> None:
    """Long paths are not stored: the memory depends on the number of files and folders, not on the length of their
    names."""
    archive = an_archive({f"{'n' * 240}/{'n' * 240}/{'n' * 240}/{number:0240}": b"" for number in range(2000)})
    with memory_below(2 * 1024 * 1024):
        assert fetch.check(io.BytesIO(archive)).files == 2000


def test_no_member_is_remembered() -> None:
    """No member is stored: the stream is read once, and earlier members are dropped."""
    plain = b"".join(a_header(tarfile.REGTYPE, name=f"f{number}") for number in range(50)) + END
    with fetch.BoundedTar.open(fileobj=io.BytesIO(plain), mode="r|") as archive:
        assert [len(vars(archive)["members"]) for _ in archive] == [0] * 50


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_tars_make_of_ordinary_folders_is_taken(form: int, tmp_path: Path) -> None:
    """Archives of ordinary folders are accepted: long names, names of other scripts, fractions of seconds, attributes,
    and the comment of git."""
    told = {"comment": "4fa28fc8" * 5} if form == tarfile.PAX_FORMAT else {}
    attributes = {"SCHILY.xattr.user.a": "1" * 500, "LIBARCHIVE.creationtime": "1700000000.5", "mtime": "1700000000.25"}
    long = "/".join(["folder-with-a-name"] * 7)
    name = f"{long}/short" if form == tarfile.USTAR_FORMAT else f"{long}/{'größe-' * 20}.txt"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=form, pax_headers=told) as archive:
        for folder in (".", "./folder-with-a-name"):
            head = tarfile.TarInfo(folder)
            head.type, head.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(head)
        head = tarfile.TarInfo(f"./{name}")
        head.size, head.pax_headers = 700, attributes
        archive.addfile(head, io.BytesIO(b"x" * 700))
        archive.addfile(tarfile.TarInfo("./last"))
    assert fetch.unpack(io.BytesIO(out.getvalue()), str(tmp_path)) == (2, 700)
    assert (tmp_path / name).read_bytes() == b"x" * 700
    assert (tmp_path / "last").is_file()


def test_a_size_of_a_record_counts(tmp_path: Path) -> None:
    """A size in a record is used, where tars write sizes from 8 GiB on; the next member begins after it."""
    head = a_header(tarfile.XHDTYPE, records({"size": "600"})) + a_header(tarfile.REGTYPE, name="large")
    packed = gzip.compress(head + b"x" * 600 + bytes(424) + a_header(tarfile.REGTYPE, name="next") + END)
    assert fetch.unpack(io.BytesIO(packed), str(tmp_path)) == (2, 600)
    assert (tmp_path / "large").read_bytes() == b"x" * 600


def test_modes_are_plain(tmp_path: Path) -> None:
    """Modes are plain: no setuid, and the owner can read the unpacked files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        head = tarfile.TarInfo("run")
        head.mode = 0o4111
        archive.addfile(head, io.BytesIO())
    out.seek(0)
    fetch.unpack(out, str(tmp_path))
    assert (tmp_path / "run").stat().st_mode & 0o7777 == 0o511
    assert os.access(tmp_path / "run", os.X_OK)
