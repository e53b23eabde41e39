"""Processes that left the process group of their pod: found by the pod's folders in their environment.

Owns the search through the machine's processes, and kills the found processes. Linux only: other systems have no
`/proc`, so there only process groups are ended. Invariant: only processes whose HOME or TMPDIR is below the given
folder are killed. TMPDIR is checked too, because sshd sets another HOME for its sessions.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")


def kill_orphans(pods: Path, *, spare: Callable[[str], bool] = lambda _uid: False) -> int:
    """Kill the processes of pods below `pods`, except pods for which `spare(uid)` is true. Return the number of kills.

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
    """Return the uid of the pod that a process belongs to, or None."""
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:  # a process of another account, or one that has ended
        return None
    if not any(mark in environment for mark in marks):  # nearly always; much faster than the list of variables
        return None
    for item in environment.split(b"\0"):
        for mark in marks:
            if item.startswith(mark):
                return os.fsdecode(item[len(mark) :].split(b"/", 1)[0])
    return None
