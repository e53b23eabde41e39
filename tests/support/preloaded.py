"""Service processes that are forked from a process that has imported all services, for tests that do not test the
start.

A start of a service costs half a second of the processor for its imports, before it does anything. Inside `preloaded()`
a start of `python -m slipway.<service>.main` by `subprocess` or asyncio becomes a fork: a process with its own pid,
session, streams and environment, a child of this process, ended and waited for as any other.

Not promised: a start with unusual options (another folder of modules, a user, descriptors) is a real start, and so is
every start on a machine that is not Linux. Tests of a start itself do not use this.
"""

import atexit
import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.support import preloaded_parent

PARENT = Path(preloaded_parent.__file__)
MODULES = {
    name: name if name.endswith(".main") else f"{name}.__main__"
    for name in (
        *preloaded_parent.SERVICES,
        preloaded_parent.COMMAND,
        *(each.removesuffix(".__main__") for each in preloaded_parent.LOCAL),
    )
}
"""{word after `-m`: the module that it runs}"""
ROOM_WORDS, ROOM_ENVIRONMENT = 8_000, 100_000
"""Bytes that the words and the environment of a process may take: one word may have 131,072."""
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
ORDINARY = {"preexec_fn": None, "shell": False, "gid": None, "gids": None, "uid": None, "umask": -1}
ORDINARY_LATER = {"process_group": -1, "executable": None}
"""The further options of an ordinary start, in later versions of Python."""
READY_S = 60.0
ANSWER_S = 30.0
KEPT = ("PATH", "HOME", "LANG", "TZ")
FOLLOWED = ("PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""Variables that an interpreter reads as it starts, and for which a fork needs no other parent."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the parent for one fork."""

    module: str
    words: Sequence[str]
    shown: Sequence[str]
    """the whole command line"""
    env: Mapping[str, str]
    folder: str
    session: bool
    end_signal: int
    """signal that the fork gets when this process ends; 0 for none"""


class PreloadedParent:
    """The process that forks the services. It ends with this process, or when it is closed."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._door, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            for each in (self._door, its):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, preloaded_parent.REQUEST_BYTES_MAX)
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PARENT), str(its.fileno()), "-" * ROOM_WORDS],
                env={**_bare(os.environ), "ROOM": "-" * ROOM_ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._door.settimeout(READY_S)
        if self._door.recv(16) != b"ready":
            raise RuntimeError(f"{PARENT} did not start: exit code {self._process.wait(READY_S)}")
        self._door.settimeout(ANSWER_S)

    def fork(self, request: Request, files: Sequence[int]) -> int:
        """Return the pid of a new process with these three standard streams; REFUSED when it must be started
        otherwise."""
        with self._turn:
            socket.send_fds(self._door, [msgspec.json.encode(request)], files)
            return int(self._door.recv(16))

    def close(self) -> None:
        self._door.close()
        self._process.wait(READY_S)


@cache
def _parent() -> PreloadedParent:
    """The one parent of this process. The kernel treats the thread that starts it as parent of each fork, so that must
    be the main thread."""
    parent = PreloadedParent()
    atexit.register(parent.close)
    return parent


@contextmanager
def preloaded() -> Generator[None]:
    """Inside the context, starts of services are forks; enter it in the main thread."""
    if preloaded_parent.CLONE_CALL is None or not sys.platform.startswith("linux"):
        yield
        return
    popen: Any = subprocess.Popen
    really: Any = popen._execute_child
    names = list(inspect.signature(really).parameters)
    parent = _parent()

    def execute_child(process: Any, *given: Any) -> None:
        asked = dict(zip(names, (process, *given), strict=True))
        request = _request(asked)
        if request is None:
            really(process, *given)
            return
        streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        pid = parent.fork(request, [own if file == -1 else file for own, file in enumerate(streams)])
        if pid == preloaded_parent.REFUSED:
            really(process, *given)
            return
        process.pid, process._child_created = pid, True
        process._close_pipe_fds(*(asked[name] for name in PIPES))

    popen._execute_child = execute_child
    try:
        yield
    finally:
        popen._execute_child = really


def _request(asked: Mapping[str, Any]) -> Request | None:
    """The request for a start; None when it must be a real start."""
    is_ordinary = all(asked[name] == value for name, value in ORDINARY.items()) and all(
        asked.get(name, value) == value for name, value in ORDINARY_LATER.items()
    )
    given: Any = asked["args"]
    if not is_ordinary or not asked["close_fds"] or asked["pass_fds"] or isinstance(given, str | bytes | os.PathLike):
        return None
    words = [str(word) for word in given]
    end_signal = 0
    if words[:3] == [shutil.which("setpriv"), "--pdeathsig", "TERM"]:
        words, end_signal = words[3:], signal.SIGTERM
    if words[:2] != [sys.executable, "-m"] or len(words) < 3 or words[2] not in MODULES:
        return None
    env = dict(os.environ if asked["env"] is None else asked["env"])
    if _of_python(env) != _of_python(os.environ):
        return None
    return Request(
        module=MODULES[words[2]],
        words=words[3:],
        shown=words,
        env=env,
        folder=str(asked["cwd"] or os.getcwd()),
        session=bool(asked["start_new_session"]),
        end_signal=end_signal,
    )


def _of_python(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter reads as it starts."""
    return {name: value for name, value in env.items() if _is_of_python(name) and name not in FOLLOWED}


def _is_of_python(name: str) -> bool:
    return name.startswith(("PYTHON", "LD_", "MALLOC_", "OPENSSL_"))


def _bare(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter needs, and no others: a test that searches /proc must not find its values in
    the parent."""
    return {name: value for name, value in env.items() if name in KEPT or _is_of_python(name)}
