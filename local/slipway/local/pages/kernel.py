"""The kernel: the process that runs a notebook's cells, and the page's side of the connection to it.

Owns one namespace that lasts from cell to cell, and the connection: requests and events are lines of JSON on two pipes.
The kernel is a separate process, so a cell can be interrupted (SIGINT) and the whole kernel can be restarted.

Invariants: cells run one at a time, in the order of arrival; the output of a cell arrives before its end; the page
survives anything that a cell does to the kernel's process.
"""

import ast
import contextlib
import io
import json
import linecache
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from time import perf_counter
from typing import Any

Event = dict[str, Any]

TEXT_CHARS_MAX = 1_000_000
"""Maximum characters of one output stream of a cell that are shown; the rest is dropped."""
_CELL = "<cell "


class Kernel:
    """The page's side of the kernel. Safe to use from several threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: io.FileIO | None = None
        self._events: io.BufferedReader | None = None
        self._count = 0

    def run(self, code: str) -> Iterator[Event]:
        """Run one cell and yield its events: `begin`, then `stdout`, `stderr`, `result`, `error`, then `end`."""
        with self._turn:
            requests, events = self._open()
            self._count += 1
            yield {"type": "begin", "count": self._count}
            with contextlib.suppress(BrokenPipeError):
                requests.write(json.dumps({"code": code, "count": self._count}).encode() + b"\n")
            for line in events:
                event: Event = json.loads(line)
                yield event
                if event["type"] == "end":
                    return
            self._drop()
            yield {"type": "error", "text": "The kernel ended. Variables are gone; the next cell starts a new one.\n"}
            yield {"type": "end", "seconds": 0.0}

    def interrupt(self) -> None:
        """Interrupt the running cell, if any, with a KeyboardInterrupt."""
        process = self._process
        if process is not None and self._turn.locked():
            process.send_signal(signal.SIGINT)

    def restart(self) -> None:
        """End the kernel; the next cell starts a new kernel."""
        process = self._process
        if process is not None:
            process.kill()
        with self._turn:
            self._drop()
            self._count = 0

    def _open(self) -> tuple[io.FileIO, io.BufferedReader]:
        if self._requests is not None and self._events is not None:
            return self._requests, self._events
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        argv = [sys.executable, "-m", "slipway.local.pages.kernel", str(theirs_in), str(theirs_out)]
        # PYTHONSAFEPATH keeps files of the working directory from replacing our modules at the kernel's start. The
        # kernel adds the working directory to its import path later, as in any notebook.
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            argv, stdin=subprocess.DEVNULL, pass_fds=(theirs_in, theirs_out), env=os.environ | {"PYTHONSAFEPATH": "1"}
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._requests = os.fdopen(ours_out, "wb", buffering=0)
        self._events = os.fdopen(ours_in, "rb")
        return self._requests, self._events

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._requests, self._events):
            if pipe is not None:
                pipe.close()
        self._process = self._requests = self._events = None


class KernelStream(io.TextIOBase):
    """Standard output or standard error of a cell: every write is an event, up to a limit."""

    def __init__(self, name: str, out: io.FileIO) -> None:
        self._name = name
        self._out = out
        self._left = TEXT_CHARS_MAX

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        shown = text[: self._left]
        if shown:
            self._left -= len(shown)
            tell(self._out, {"type": self._name, "text": shown})
            if not self._left:
                tell(self._out, {"type": self._name, "text": "\n... the rest is not shown\n"})
        return len(text)


def tell(out: io.FileIO, event: Event) -> None:
    """Send one event."""
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[out.write(data) or 0 :]


def run_cell(code: str, names: dict[str, Any], out: io.FileIO, *, count: int = 1) -> None:
    """Run a cell in `names`. The value of its last expression is its result, and is stored in `_`."""
    source = f"{_CELL}{count}>"
    linecache.cache[source] = (len(code), None, code.splitlines(keepends=True), source)
    with (
        contextlib.redirect_stdout(KernelStream("stdout", out)),
        contextlib.redirect_stderr(KernelStream("stderr", out)),
    ):
        try:
            module = ast.parse(code, source)
            last = module.body[-1] if module.body else None
            if isinstance(last, ast.Expr):
                module.body.pop()
            exec(compile(module, source, "exec"), names)  # noqa: S102 - a notebook runs what its user writes
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), source, "eval"), names)  # noqa: S307
                if value is not None:
                    names["_"] = value
                    tell(out, {"type": "result", "text": repr(value)[:TEXT_CHARS_MAX]})
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is its output
            tell(out, {"type": "error", "text": _told(error)})
            if isinstance(error, SystemExit):
                tell(out, {"type": "stderr", "text": "(the kernel continues)\n"})


def main(argv: list[str]) -> None:
    """Run cells until the page closes its pipe."""
    os.environ.pop("PYTHONSAFEPATH", None)
    sys.path.insert(0, "")
    # Between cells no code can be interrupted, so SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    names: dict[str, Any] = {"__name__": "__main__"}
    with os.fdopen(int(argv[0]), "rb") as requests, os.fdopen(int(argv[1]), "wb", buffering=0) as out:
        for line in requests:
            started = perf_counter()
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                request = json.loads(line)
                run_cell(request["code"], names, out, count=request["count"])
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                tell(out, {"type": "error", "text": "KeyboardInterrupt\n"})
            tell(out, {"type": "end", "seconds": round(perf_counter() - started, 6)})


def _told(error: BaseException) -> str:
    """Return the traceback starting at the cell, without our own frames."""
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(_CELL):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


if __name__ == "__main__":
    main(sys.argv[1:])
