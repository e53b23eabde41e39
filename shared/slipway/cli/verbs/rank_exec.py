"""`slipway exec`: runs a command in a rank, on this terminal or in a pipe."""

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
import threading
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYetError

from slipway.cli import rank_session
from slipway.cli.attach import raw_terminal, write_out
from slipway.cli.rank_session import RankSession
from slipway.cli.table import one_line
from slipway.cli.verb import CliSession, CliVerb, allocation_id, whole_number
from slipway.errors import InvalidError, PermanentError
from slipway.model.exec_channels import NOT_FOUND_CODE, PIECE_BYTES, CommandEnd
from slipway.sdk import commands
from slipway.sdk.commands import RankCommand

_FALLBACK = (80, 24)
_LOOK_S = 0.2
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `exec`."""
    parser.usage = "slipway exec ID [options] [-- COMMAND...]"
    parser.description = (
        "Run a command in a running rank; without a command, a shell. On a terminal it gets a\n"
        "terminal of its own, and Ctrl-C goes to it. The exit code is that of the command."
    )
    parser.add_argument("id", metavar="ID", type=allocation_id)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    add_place(parser)
    parser.add_argument("-i", "--stdin", action="store_true", help="pass on the standard input (on a terminal: always)")
    parser.add_argument("-t", "--tty", action="store_true", help="give the command a terminal (on a terminal: always)")
    parser.add_argument("-T", "--no-tty", action="store_true", help="give the command no terminal")


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the rank and the container."""
    parser.add_argument("--rank", metavar="N", type=whole_number, default=0, help="run it in this rank (default: 0)")
    parser.add_argument(
        "-c", "--container", metavar="NAME", default="", help="run it in this container instead of the main one"
    )


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Run the command; return its exit code."""
    if arguments.words:
        written = shlex.join(arguments.words)
        raise InvalidError(f"write -- before the command: slipway exec {arguments.id} -- {written}")
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if arguments.tty and not sys.stdin.isatty():
        session.terminal.note("-t: the standard input is no terminal; the command gets none")
    tty = sys.stdin.isatty() and not arguments.no_tty and (arguments.tty or is_terminal)
    wanted = RankCommand(
        arguments.id,
        tuple(arguments.command),
        rank=arguments.rank,
        container=arguments.container,
        stdin=arguments.stdin or tty or (is_terminal and not arguments.command),
        tty=tty,
    )
    end = run(session, wanted)
    return code_of(end, wanted)


def code_of(end: CommandEnd, wanted: RankCommand) -> int:
    """Return the exit code of a command that has ended.

    Raises:
        PermanentError: the command could not be run, or was interrupted.
    """
    if end.code is not None:
        return end.code
    if end.is_missing_program:
        program = wanted.command[0] if wanted.command else "sh"
        sys.stderr.write(f"error: the container has no program {program!r} ({one_line(end.message)})\n")
        return NOT_FOUND_CODE
    raise PermanentError(end.message)


def run(session: CliSession, wanted: RankCommand) -> CommandEnd:
    """Run a command to its end, on this terminal or in this pipe."""
    with raw_terminal() if wanted.tty else contextlib.nullcontext():
        return asyncio.run(_run(session, wanted))


async def _run(session: CliSession, wanted: RankCommand) -> CommandEnd:
    loop = asyncio.get_running_loop()
    async with rank_session.running(session.api.server, wanted, session.user) as command:
        printing = asyncio.ensure_future(_print(command))
        for how in _ENDING:  # for example when the terminal is closed: the terminal's mode is restored
            loop.add_signal_handler(how, printing.cancel)
        sizes: set[asyncio.Task[None]] = set()

        def resized() -> None:
            task = asyncio.ensure_future(command.resize(*_size()))
            sizes.add(task)
            task.add_done_callback(sizes.discard)

        if wanted.tty:
            resized()
            loop.add_signal_handler(signal.SIGWINCH, resized)
        if wanted.stdin:
            threading.Thread(target=pass_input_on, args=(command, loop), daemon=True, name="stdin").start()
        try:
            await printing
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise KeyboardInterrupt from None
    if command.end is None:
        raise commands.lost()
    return command.end


async def _print(command: RankSession) -> None:
    async for stream, data in command.output():
        # A pipe that is not read must block the command only, and not this event loop.
        await asyncio.to_thread(write_out, stream, data)


def pass_input_on(command: RankSession, loop: asyncio.AbstractEventLoop) -> None:
    """Read the standard input on a thread of its own, because the loop cannot wait for every file or pipe."""
    stdin = sys.stdin.fileno()
    with contextlib.suppress(RuntimeError, CancelledError):  # the loop is closed: the command has ended
        while True:
            data = os.read(stdin, PIECE_BYTES)
            sending = asyncio.run_coroutine_threadsafe(command.send(data) if data else command.end_input(), loop)
            while not sending.done() and loop.is_running():
                with contextlib.suppress(NotYetError):
                    sending.result(_LOOK_S)
            if not data:
                return


def _size() -> tuple[int, int]:
    """Return (columns, rows) of the terminal itself, because COLUMNS and LINES may be out of date."""
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
        return columns, rows
    return _FALLBACK


VERBS = {"exec": CliVerb(configure, execute, takes_command=True)}
