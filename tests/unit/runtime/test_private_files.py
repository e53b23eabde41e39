"""Files that only the own account can open, with any umask."""

import os
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from slipway.errors import DeniedError
from slipway.runtime import private_files


@pytest.fixture(autouse=True)
def _no_umask() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_closed(tmp_path: Path) -> None:
    """New files are private: a folder, a file that is written, and one that is opened."""
    private_files.make_folder(tmp_path / "new")
    private_files.write(tmp_path / "new/secret", b"s")
    with open(tmp_path / "new/log", "ab", opener=private_files.opener):
        pass
    assert [mode(tmp_path / name) for name in ("new", "new/secret", "new/log")] == [0o700, 0o600, 0o600]


def test_what_was_open_is_mended(tmp_path: Path) -> None:
    """Open files become private: a folder of an earlier version, its content, and a replaced file; links are left
    alone."""
    outside = tmp_path / "outside"
    outside.write_text("not ours to change")
    outside.chmod(0o644)
    old = tmp_path / "old"
    (old / "logs").mkdir(parents=True)
    (old / "token").write_text("old")
    (old / "link").symlink_to(outside)
    private_files.fix_modes(old)
    private_files.write(old / "token", b"new")
    assert [mode(old), mode(old / "logs"), mode(old / "token"), mode(outside)] == [0o700, 0o700, 0o600, 0o644]
    assert [(old / "token").read_text(), sorted(os.listdir(old))] == ["new", ["link", "logs", "token"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another account")
def test_a_folder_of_another_account_is_refused(tmp_path: Path) -> None:
    """A folder of another account is refused, because its owner could replace its content; a link of another account is
    not followed."""
    theirs, link = tmp_path / "theirs", tmp_path / "link"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 4242, 4242)
    (tmp_path / "mine").mkdir()
    link.symlink_to(tmp_path / "mine")
    os.chown(link, 4242, 4242, follow_symlinks=False)
    for folder in (theirs, link):
        with pytest.raises(DeniedError, match="another account"):
            private_files.make_folder(folder)
