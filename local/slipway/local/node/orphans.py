"""Processes of pods that left their process group: found by the folders of the pod in their environment.

Owns the search through the machine's processes and their end. Linux only: elsewhere nobody is asked, and only process
groups are ended. Invariant: only processes whose HOME or TMPDIR is below the given folder are touched. sshd gives its
sessions another HOME, and they keep the TMPDIR.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")


def end_strays(pods: Path, *, spare: Callable[[str], bool] = lambda _uid: False) -> int:
    """Kills what belongs to pods below `pods`, but for those whose uid is spared; how many there were.

    O(processes of the machine).
    """
    marks = tuple(name + os.fsencode(pods) + b"/" for name in (b"HOME=", b"TMPDIR="))
    count = 0
    for entry in _PROC.iterdir() if (_PROC / "self" / "environ").exists() else ():
        uid = _pod_of(entry, marks) if entry.name.isdigit() else None
        if uid is not None and not spare(uid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
                count += 1
    return count


def _pod_of(entry: Path, marks: tuple[bytes, ...]) -> str | None:
    """The uid of the pod that a process belongs to."""
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:  # somebody else's, or gone
        return None
    for item in environment.split(b"\0"):
        for mark in marks:
            if item.startswith(mark):
                return os.fsdecode(item[len(mark) :].split(b"/", 1)[0])
    return None
