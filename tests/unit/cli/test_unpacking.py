"""What an archive of a rank may do on this machine: make new files in one folder, and nothing else."""

import io
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.cli import rank_files
from slipway.cli.rank_files import Unpacked, placed, unpack
from slipway.errors import PermanentError
from tests.support.archives import END, a_header, hostile_tars


def an_entry(
    name: str, data: bytes = b"", *, type_: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> bytes:
    """One entry of an archive."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode, member.size = type_, link, mode, len(data)
    padding = b"\0" * (-len(data) % 512)
    return member.tobuf(tarfile.GNU_FORMAT) + data + padding


def unpacked(folder: Path, *entries: bytes) -> Unpacked:
    return unpack(io.BytesIO(b"".join(entries) + b"\0" * 1024), folder, lambda _: None)


def test_files_folders_and_links(tmp_path: Path) -> None:
    """Files, folders and links are unpacked with their modes, but without setuid and setgid bits."""
    found = unpacked(
        tmp_path,
        an_entry("./", type_=tarfile.DIRTYPE, mode=0o755),
        an_entry("./a/b", b"one", mode=0o4755),
        an_entry("./a", type_=tarfile.DIRTYPE, mode=0o500),
        an_entry("./hard", type_=tarfile.LNKTYPE, link="a/b"),
        an_entry("./soft", type_=tarfile.SYMTYPE, link="./a/b"),
        an_entry("./a/up", type_=tarfile.SYMTYPE, link="../hard"),
    )
    assert (found.files, found.size, found.left_out) == (2, 3, ())
    assert (tmp_path / "soft").read_bytes() == (tmp_path / "hard").read_bytes() == b"one"
    assert (tmp_path / "a/up").read_bytes() == b"one"
    assert (tmp_path / "a/b").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "entries",
    [
        [an_entry("../evil", b"x")],
        [an_entry("a/../../evil", b"x")],
        [an_entry("/evil", b"x")],
        [an_entry("a", type_=tarfile.LNKTYPE, link="../evil")],
        [an_entry("a", type_=tarfile.LNKTYPE, link="/etc/passwd")],
        [an_entry("a", type_=tarfile.LNKTYPE, link="not-there")],
        [an_entry("a", b"x"), an_entry("a", b"y")],
        [an_entry("a", b"x"), an_entry("a/b", b"y")],
        [an_entry("", b"x")],
        [b"not an archive" * 100],
        [an_entry("a", b"x" * 2000)[:1024]],
    ],
    ids=[
        "up",
        "deep-up",
        "root",
        "hard-up",
        "hard-root",
        "hard-none",
        "twice",
        "file-as-folder",
        "no-name",
        "noise",
        "cut",
    ],
)
def test_what_leads_outside_is_refused(tmp_path: Path, entries: list[bytes]) -> None:
    """An archive with an entry that leads outside is refused whole, and nothing outside has changed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(PermanentError):
        unpack(io.BytesIO(b"".join(entries)), folder, lambda _: None)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("target", ["/etc", "..", "../..", "a/../../x", "a/..", "./a/./../x"])
def test_a_link_that_leads_out_is_left_out(tmp_path: Path, target: str) -> None:
    """A link that leads outside is left out and reported; a file below its name is written into a new folder, not
    through the link."""
    folder = tmp_path / "folder"
    folder.mkdir()
    found = unpacked(folder, an_entry("link", type_=tarfile.SYMTYPE, link=target), an_entry("a", b"x"))
    assert (folder / "a").is_file()
    assert not (folder / "link").is_symlink()
    assert len(found.left_out) == 1


def test_links_do_not_lead_out_through_each_other(tmp_path: Path) -> None:
    """Links cannot lead outside through each other: `..` after a link leads up from the target of the link, whatever
    the text of the path is."""
    (tmp_path / "secret").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    links = {"a/b/s": "../..", "t": "a/b/s/../secret", "u": "a/b/s/../../..", "a/v": "b/s/../../secret", "w": "a/b/s"}
    found = unpacked(
        folder,
        an_entry("a/b", type_=tarfile.DIRTYPE, mode=0o755),
        *(an_entry(name, type_=tarfile.SYMTYPE, link=target) for name, target in links.items()),
    )
    assert len(found.left_out) == 3
    made = [path for path in folder.rglob("*") if path.is_symlink()]
    assert sorted(path.name for path in made) == ["s", "w"]
    assert all(path.resolve().is_relative_to(folder.resolve()) for path in made)


@pytest.mark.parametrize("what", hostile_tars())
def test_members_that_need_too_much_memory_are_refused(tmp_path: Path, what: str) -> None:
    """Headers that need much memory are refused: an archive of a rank has the same limits as an upload."""
    archive = hostile_tars()[what] + END
    tracemalloc.start()
    try:
        with pytest.raises(PermanentError):
            unpack(io.BytesIO(archive), tmp_path, lambda _: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 1024 * 1024
    assert not list(tmp_path.iterdir())


def test_what_is_implied_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that appear only in paths count as entries."""
    monkeypatch.setattr(rank_files, "ENTRIES_MAX", 4)
    assert unpacked(tmp_path, an_entry("a/b/c", b"x"), an_entry("a/d", b"x")).files == 2
    with pytest.raises(PermanentError, match="more than 4 files, links and folders; copy its parts"):
        unpacked(tmp_path, an_entry("f/b/c", b"x"), an_entry("f/d", b"x"), an_entry("f/e", b"x"))


@pytest.mark.parametrize("type_", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
def test_the_memory_for_member_names_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: bytes) -> None:
    """The stored names of folders, links and left-out entries have a limit; the names of files are not stored."""
    monkeypatch.setattr(rank_files, "KEPT_BYTES_MAX", 150)
    assert unpacked(tmp_path, *(an_entry(f"{number}" * 90, b"x") for number in range(3))).files == 3
    with pytest.raises(PermanentError, match="more than 150 bytes"):
        unpacked(tmp_path, *(an_entry(letter * 90, type_=type_, link="x") for letter in "abc"))


@pytest.mark.parametrize("name", ["a/" * rank_files.STEPS_MAX + "f", "/".join(["n" * 200] * 21)])
def test_a_path_has_a_limit(tmp_path: Path, name: str) -> None:
    """A path has a limit of steps and of bytes."""
    with pytest.raises(PermanentError, match="steps or"):
        unpacked(tmp_path, a_header(tarfile.GNUTYPE_LONGNAME, name.encode() + b"\0"), an_entry("f"))


@pytest.mark.parametrize(
    "entries",
    [
        [an_entry("content", type_=tarfile.SYMTYPE, link="secret")],
        [an_entry("content/a", b"x")],
        [an_entry("a", b"x"), an_entry("b", b"x")],
        [],
    ],
    ids=["link", "folder", "two", "none"],
)
def test_where_a_file_was_asked_for_only_a_file_is_kept(tmp_path: Path, entries: list[bytes]) -> None:
    """When a file was requested, only a file is kept: a link in the copy could lead to a file beside it, once the copy
    has its name."""
    (tmp_path / "secret").write_text("mine")
    staging = tmp_path / "staging"
    staging.mkdir()
    unpacked(staging, *entries)
    with pytest.raises(PermanentError, match="something other than the one requested file"):
        placed(staging, tmp_path / "copy", is_folder=False)
    assert not os.path.lexists(tmp_path / "copy")


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    """A file is never written through a link: an archive with both under one name is refused, in any order."""
    with pytest.raises(PermanentError, match="twice"):
        unpacked(tmp_path, an_entry("d", type_=tarfile.SYMTYPE, link="."), an_entry("d/a", b"x"))


@pytest.mark.parametrize("type_", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices_are_left_out(tmp_path: Path, type_: bytes) -> None:
    """Devices are left out and reported."""
    assert unpacked(tmp_path, an_entry("dev", type_=type_)).left_out == ("dev (a device, a socket or a pipe)",)
    assert not list(tmp_path.iterdir())


def test_it_tells_how_far_it_is(tmp_path: Path) -> None:
    """The progress is reported in bytes of files."""
    told: list[int] = []
    moved: Callable[[int], None] = told.append
    unpack(io.BytesIO(an_entry("a", b"x" * 700_000) + b"\0" * 1024), tmp_path, moved)
    assert sum(told) == 700_000
