"""The command as a user runs it, inside the test's process: its exit code, its stdout and its stderr."""

import asyncio
import contextlib
import io
import json
from typing import Any, NamedTuple

from slipway.cli import main


class CommandResult(NamedTuple):
    """The result of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_here(*words: str) -> CommandResult:
    """Run it in this thread."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main.main(list(words))
        except SystemExit as exit_:  # argparse exits the process itself
            code = exit_.code if isinstance(exit_.code, int) else 1
    return CommandResult(code, out.getvalue(), err.getvalue())


class CliUser:
    """A user at a terminal, with a server; one command at a time (output is redirected for the whole process)."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def run(self, *words: str) -> CommandResult:
        """Run a command against the server, beside the event loop."""
        return await asyncio.to_thread(run_here, words[0], "--server", self.url, *words[1:])
