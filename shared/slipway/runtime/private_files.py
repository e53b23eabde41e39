"""Files and folders that only our own account may open, whatever the umask and earlier modes are.

This module owns the modes 0600 and 0700. It refuses a folder of another account, because that account could replace its
files. A file is replaced as a whole: a reader sees the old or the new file, and never one with a wider mode.
"""

import os
import secrets
import stat
from pathlib import Path

from slipway.errors import DeniedError

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def make_folder(folder: Path) -> None:
    """Create a folder, or correct the mode of an existing one. Raises DeniedError when it belongs to another
    account.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
    _check_owner(folder, os.lstat(folder))
    found = os.stat(folder)
    _check_owner(folder, found)
    if stat.S_IMODE(found.st_mode) != FOLDER_MODE:
        folder.chmod(FOLDER_MODE)


def fix_modes(folder: Path) -> None:
    """Correct the modes of the files and folders directly in `folder`, which an older version may have made."""
    make_folder(folder)
    for entry in os.scandir(folder):
        found = entry.stat(follow_symlinks=False)
        wanted = {stat.S_IFDIR: FOLDER_MODE, stat.S_IFREG: FILE_MODE}.get(stat.S_IFMT(found.st_mode))
        if wanted is not None and stat.S_IMODE(found.st_mode) != wanted:
            os.chmod(entry.path, wanted)


def write(path: Path, content: bytes) -> None:
    """Replace a file. Its folder must exist."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if own_uid() is not None:
                os.fchmod(file.fileno(), FILE_MODE)
            file.write(content)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`: only our own account may open a file that is created this way."""
    return os.open(path, flags, FILE_MODE)


def own_uid() -> int | None:
    """Return the uid of this process; None on Windows, which has no uids and no meaningful modes."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def _check_owner(folder: Path, found: os.stat_result) -> None:
    # A link that root owns, such as /tmp on a Mac, is as safe as the folder itself.
    if own_uid() not in (None, found.st_uid) and not (stat.S_ISLNK(found.st_mode) and found.st_uid == 0):
        raise DeniedError(f"{folder} belongs to another account (uid {found.st_uid}); name a folder of your own")
