"""The keys of SSH connections to ranks: for each allocation a user key, and a host key for its ranks.

Owns the folder `ssh` beside the contexts. ssh-keygen makes both keys on this machine at the first connection to an
allocation. The host key is pinned, so ssh verifies the rank from the first connection on. A key alone gives no access:
a rank accepts it only inside a session that the API has allowed.

Invariants: only the owner can read the files. Two commands that start at the same time use the same keys. Keys that
were not used for `KEPT_S` are removed.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from slipway.errors import PermanentError, UnavailableError
from slipway.runtime import private_files
from slipway.sdk import contexts

KEPT_S = 30 * 86_400.0
KEYGEN_S = 20.0
ALIAS = "slipway-{}"
_ID = re.compile(r"[a-z0-9][-a-z0-9]{0,127}")


class SshKeys(NamedTuple):
    """The paths of the keys of one allocation."""

    folder: Path
    alias: str
    """the name of the host in `known_hosts`"""

    @property
    def identity(self) -> Path:
        """The path of the user's private key."""
        return self.folder / "identity"

    @property
    def host_key(self) -> Path:
        """The path of the private host key, which is sent to a rank."""
        return self.folder / "host"

    @property
    def known_hosts(self) -> Path:
        """The path of the file with the pinned host key."""
        return self.folder / "known_hosts"


def keys_of(id_: str) -> SshKeys:
    """Return the keys of an allocation; they are made when they do not exist.

    Raises:
        PermanentError: there is no ssh-keygen, or the folder cannot be written. DeniedError: another account owns it.
        UnavailableError: ssh-keygen did not end in time.
    """
    if not _ID.fullmatch(id_):
        raise PermanentError(f"{id_[:80]!r} is not a complete AllocationID; slipway ssh-config writes the complete one")
    root = contexts.folder() / "ssh"
    keys = SshKeys(root / id_, ALIAS.format(id_))
    try:
        for folder in (contexts.folder(), root):
            private_files.make_folder(folder)
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _remove_old(root)
            if not keys.known_hosts.exists():
                _make(keys, root)
            os.utime(keys.folder)
    except OSError as error:
        raise PermanentError(f"the keys of {id_} cannot be created in {root}: {error}") from error
    return keys


def _make(keys: SshKeys, root: Path) -> None:
    staging = root / f".{keys.folder.name}.part"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    made = SshKeys(staging, keys.alias)
    for path, comment in ((made.identity, "slipway"), (made.host_key, keys.alias)):
        _generate(path, comment)
    public = made.host_key.with_suffix(".pub").read_text(encoding="ascii").split()
    made.known_hosts.write_text(f"{keys.alias} {public[0]} {public[1]}\n", encoding="ascii")
    shutil.rmtree(keys.folder, ignore_errors=True)
    staging.rename(keys.folder)


def _generate(path: Path, comment: str) -> None:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise PermanentError("there is no ssh-keygen on this machine: install an OpenSSH client")
    argv = [program, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=KEYGEN_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"ssh-keygen did not end within {KEYGEN_S:.0f} s") from error
    if done.returncode:
        raise PermanentError(f"ssh-keygen failed: {done.stderr.strip() or done.stdout.strip()}")


def _remove_old(root: Path) -> None:
    oldest = time.time() - KEPT_S  # noqa: TID251 - the times of files are from this machine's clock
    for folder in root.iterdir():
        with contextlib.suppress(OSError):
            if folder.is_dir() and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
