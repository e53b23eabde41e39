"""A folder that is sent with a launch: which files are packed, left out, or refused with their path."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from slipway.cli import upload
from slipway.errors import InvalidError
from slipway.inside import fetch


def a_folder(root: Path, **files: str) -> Path:
    """Make a folder with these files; `__` in a name is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def paths_of(root: Path, *includes: str) -> list[str]:
    """The paths that are packed."""
    return [item.path for item in upload.items_of(str(root), includes)]


def packed(root: Path) -> bytes:
    """The archive."""
    out = io.BytesIO()
    upload.pack(upload.items_of(str(root)), out)
    return out.getvalue()


def test_what_the_ignore_file_names_stays(tmp_path: Path) -> None:
    """Files that the ignore file names are left out, by the rules of .gitignore: folders, wildcards, anchors,
    exceptions; .git, .venv and __pycache__ are always left out."""
    root = a_folder(tmp_path, a="", data__big="", data__keep="", log__x="", src__log__y="", n1="", n2="")
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("")
    (root / ".venv" / "lib").mkdir(parents=True)
    (root / ".venv" / "lib64").symlink_to("lib")
    (root / upload.IGNORE_FILE).write_text("# no data\ndata/*\n!data/keep\n/log/\nn?\n")
    assert paths_of(root) == ["a", "data/keep", "src/log/y"]


def test_the_same_folder_is_the_same_archive(tmp_path: Path) -> None:
    """The same folder becomes the same archive, at any time and place; another mode or content becomes another."""
    first = a_folder(tmp_path / "a", x="1", d__y="2")
    second = a_folder(tmp_path / "b", d__y="2", x="1")
    os.utime(second / "x", (1, 1))
    assert packed(first) == packed(second)
    (second / "x").chmod(0o755)
    assert packed(first) != packed(second)


def test_the_api_takes_what_is_packed(tmp_path: Path) -> None:
    """The api accepts the archive with names of all kinds, an empty folder and a program; unpacked it is the same."""
    root = a_folder(tmp_path / "in", ünï="1", d__e__f="2", **{"with space": "3", "a" * 150 + "__" + "b" * 150: "4"})
    (root / "empty").mkdir()
    (root / "d" / "e" / "f").chmod(0o755)
    (root / "link").symlink_to(root / "ünï")
    out = tmp_path / "out"
    totals = fetch.unpack(io.BytesIO(packed(root)), str(out))
    assert totals.files == 5
    assert (out / "empty").is_dir()
    assert (out / "link").read_text() == "1"
    assert not (out / "link").is_symlink()
    assert os.access(out / "d" / "e" / "f", os.X_OK)
    assert not os.access(out / "ünï", os.X_OK)


def test_small_ones_go_into_the_launch(tmp_path: Path) -> None:
    """Up to 64 files and 180 KiB are sent in the launch, binary files as base64; otherwise the folder becomes an
    archive."""
    root = a_folder(tmp_path, a="text")
    (root / "b").write_bytes(b"\xff\xfe")
    files = upload.small_files(upload.items_of(str(root)))
    assert files == [
        {"path": "a", "content": "text", "mode": 0o644},
        {"path": "b", "content": "//4=", "encoding": "base64", "mode": 0o644},
    ]
    (root / "large").write_text("x" * upload.SMALL_BYTES)
    assert upload.small_files(upload.items_of(str(root))) is None
    (root / "large").unlink()
    for number in range(upload.SMALL_FILES):
        (root / f"n{number}").write_text("")
    assert upload.small_files(upload.items_of(str(root))) is None


def test_an_empty_folder_needs_an_archive(tmp_path: Path) -> None:
    """An empty folder needs an archive, because the files of a launch have no folder entries."""
    root = a_folder(tmp_path, a="1")
    (root / "empty").mkdir()
    assert upload.small_files(upload.items_of(str(root))) is None


def test_includes(tmp_path: Path) -> None:
    """`-i` adds a file or folder, under its own name or another; the same name twice is refused."""
    root = a_folder(tmp_path / "in", a="1")
    other = a_folder(tmp_path / "other", x="1", __pycache____y="2")
    assert paths_of(root, str(other), f"{other / 'x'}:b") == ["a", "b", "other/x"]
    assert [item.path for item in upload.items_of("", [str(other / "x")])] == ["x"]
    with pytest.raises(InvalidError, match=r"a is already in the context; include it as .*:NAME"):
        paths_of(root, f"{other / 'x'}:a")


def test_what_can_not_be_packed_is_named(tmp_path: Path) -> None:
    """A link that leads outside, a link to a folder, a pipe and a dangling link are refused with the path and the next
    step."""
    root = a_folder(tmp_path / "in", a="1", d__b="2")
    path = root / "odd"
    for target in ("/etc/passwd", str(root / "d"), str(root / "none"), ""):
        if target:
            path.symlink_to(target)
        else:
            os.mkfifo(path)
        with pytest.raises(InvalidError) as caught:
            upload.items_of(str(root))
        assert str(path) in str(caught.value)
        assert upload.IGNORE_FILE in str(caught.value)
        (root / upload.IGNORE_FILE).write_text("odd\n")
        assert paths_of(root) == ["a", "d/b"]
        (root / upload.IGNORE_FILE).unlink()
        path.unlink()


def test_a_bad_ignore_file(tmp_path: Path) -> None:
    """A bad ignore file is refused with the file and the line; so is one that is no text."""
    root = a_folder(tmp_path, a="1")
    (root / upload.IGNORE_FILE).write_text("good\n!\n")
    with pytest.raises(InvalidError, match=r"\.slipwayignore: line 2: '!' is not a valid pattern"):
        upload.items_of(str(root))
    (root / upload.IGNORE_FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidError, match=r"\.slipwayignore cannot be read"):
        upload.items_of(str(root))


@pytest.mark.parametrize(("folder", "said"), [("nowhere", "nowhere does not exist"), ("file", "file is not a folder")])
def test_a_bad_folder(tmp_path: Path, folder: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad folder is refused with its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidError, match=said):
        upload.items_of(folder)


def test_too_much_says_what_is_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is too large is refused with its largest parts, so that the user knows what to leave out."""
    monkeypatch.setattr(upload, "ARCHIVE_BYTES_MAX", 2_000_000)
    root = a_folder(tmp_path, a="1")
    (root / "weights.bin").write_bytes(os.urandom(2_500_000))
    with pytest.raises(InvalidError, match=r"The largest files: weights.bin \(2.4 MiB\)"):
        packed(root)


def test_folders_count_as_the_api_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are counted as the api counts them, including those that appear only in paths, so that an upload is never
    refused for their number."""
    root = a_folder(tmp_path / "job", **{"a/b/c": "1", "a/b/d": "1", "e": "1"})
    limits = fetch.ArchiveLimits(members=5)
    monkeypatch.setattr(upload, "MEMBERS_MAX", limits.members)
    assert fetch.check(io.BytesIO(packed(root)), limits).files == 3
    a_folder(root, f="1")
    with pytest.raises(InvalidError, match="6 files and folders; at most 5 are allowed"):
        upload.items_of(str(root))


def test_the_archive_is_a_plain_tar(tmp_path: Path) -> None:
    """The archive is a plain tar that any tar program reads: without owner, time or links."""
    root = a_folder(tmp_path, x="1")
    with tarfile.open(fileobj=io.BytesIO(packed(root)), mode="r:gz") as archive:
        (head,) = archive.getmembers()
    assert (head.name, head.uid, head.mtime, head.uname, head.mode) == ("x", 0, 0, "", 0o644)


def test_a_name_that_is_not_utf8_is_refused_or_ignored(tmp_path: Path) -> None:
    """A file name that is not UTF-8 is refused, unless an ignore pattern with `?` or `*` leaves the file out."""
    (tmp_path / "train.py").write_text("pass")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("x")
    with pytest.raises(InvalidError, match="is not an allowed file name"):
        upload.items_of(str(tmp_path))
    (tmp_path / upload.IGNORE_FILE).write_text("?.txt\n")
    assert [item.path for item in upload.items_of(str(tmp_path))] == ["train.py"]
