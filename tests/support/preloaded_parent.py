"""The process that has imported all services and the command, and forks them: `preloaded.py` starts it and sends
requests.

Owns what a fork must not share with its parent: arguments, environment (also as /proc shows them), folder, session,
standard streams, signal that it gets when its parent ends. Python's own hooks reset random numbers and locks. It has no
other thread and runs no loop, so a fork finds nothing half done. The parent of a child is the parent of this process,
which waits for it as for any other child.

It is run by its path, with the number of its socket and an argument and a variable that only reserve room: the kernel
shows the memory of the first arguments as the command line of a process, so there has to be enough of it.
"""

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import platform
import runpy
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

SERVICES = ("slipway.api.main", "slipway.scheduler.main", "slipway.podworker.main", "slipway.watcher.main")
LOCAL = ("slipway.local.apiserver.__main__", "slipway.local.node.__main__")
COMMAND = "slipway.cli.main"
LATER = ("opentelemetry.sdk.trace.sampling", "uvicorn.protocols.http.httptools_impl", "uvicorn.lifespan.off", "uvloop")
"""Modules that a service imports only when it runs."""
REQUEST_BYTES_MAX = 2**18
REFUSED = -1
BROKEN_OUTPUT = 120
"""The exit code of an interpreter that cannot flush its output."""
CLONE_PARENT = 0x8000
CLONE_CALL = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
PR_SET_PDEATHSIG = 1
_libc = ctypes.PyDLL(None)
_C = ctypes.pythonapi


def main() -> None:
    """Answer requests until the other side has closed; in a child this returns, and the child becomes the requested
    program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    door = socket.socket(fileno=int(sys.argv[1]))
    for name in (*SERVICES, *LOCAL, *LATER):
        importlib.import_module(name)
    for group in importlib.import_module(COMMAND).GROUPS.values():
        for entry in group.values():
            importlib.import_module(f"slipway.cli.verbs.{entry.module}")
    for name in (*SERVICES, *LOCAL, COMMAND):
        # The module runs as the main module, which is impossible while it is imported.
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    door.send(b"ready")
    while True:
        said, files, _, _ = socket.recv_fds(door, REQUEST_BYTES_MAX, 3)
        if not said:
            return
        request = json.loads(said)
        pid = _fork() if _has_room(request["shown"], request["env"]) else REFUSED
        if pid == 0:
            door.close()
            _become(request, files)
            return
        for file in files:
            os.close(file)
        door.send(str(pid).encode())


def _fork() -> int:
    """Like `os.fork`, but the child is a sibling of this process: the process that requested it can wait for it.

    Returns REFUSED when it fails.
    """
    _C.PyOS_BeforeFork()
    pid = int(_libc.syscall(CLONE_CALL, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        _C.PyOS_AfterFork_Child()
    else:
        _C.PyOS_AfterFork_Parent()
    return pid


def _become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    if request["end_signal"]:
        _libc.prctl(PR_SET_PDEATHSIG, request["end_signal"], 0, 0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    _show(request["shown"], request["env"])
    _open_streams()
    sys.argv = [request["module"], *request["words"]]
    code: Any = None
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
        if code is not None and not isinstance(code, int):
            raise
    _end(code or 0)


def _end(code: int) -> None:
    """End as an interpreter does: threads, exit handlers, streams. Only the modules are not torn down one by one, which
    would cost most of the time that the fork has saved."""
    threading: Any = importlib.import_module("threading")
    threading._shutdown()
    exits: Any = atexit
    exits._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or BROKEN_OUTPUT
    os._exit(code)


def _open_streams() -> None:
    """Open the standard streams, buffered as in a new process: standard error and terminals line by line."""
    old, at_once = sys.stdout.errors or "strict", bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8", errors=old
    )
    out, err = (io.BufferedWriter(io.FileIO(number, "w", closefd=False)) for number in (1, 2))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        out, encoding="utf-8", errors=old, line_buffering=os.isatty(1), write_through=at_once
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        err, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=at_once
    )


# --- what /proc shows -------------------------------------------------------------------------------------------------


def _places() -> tuple[int, int, int, int]:
    """The memory addresses where the arguments of this process begin and end, and those of its environment."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46]), int(fields[47]), int(fields[48])


def _texts(words: Sequence[str], env: Mapping[str, str]) -> tuple[bytes, bytes]:
    return _ended(words), _ended([f"{name}={value}" for name, value in env.items()])


def _ended(texts: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(each) + b"\0" for each in texts)


def _has_room(words: Sequence[str], env: Mapping[str, str]) -> bool:
    begin, end, env_begin, env_end = _places()
    shown, told = _texts(words, env)
    return len(shown) < end - begin and len(told) < env_end - env_begin


def _show(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Let /proc show these. No code reads that memory any more, since `os.environ` was written anew."""
    begin, end, env_begin, env_end = _places()
    for text, first, last in zip(_texts(words, env), (begin, env_begin), (end, env_end), strict=True):
        ctypes.memset(first, 0, last - first)
        ctypes.memmove(first, text, len(text))


if __name__ == "__main__":
    main()
