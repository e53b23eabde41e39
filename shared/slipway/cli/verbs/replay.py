"""`slipway replay`: plans recorded ticks again, from a live system or a file. The scheduler's code plans."""

import argparse
import base64
import binascii
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from slipway.cli import output, yamlfile
from slipway.cli.verb import CliSession, CliVerb, object_name
from slipway.errors import InvalidError
from slipway.model.numbers import number_in

if TYPE_CHECKING:
    from slipway.scheduler.decisions.command import DecisionEntry

POOL = "default"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `replay`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="file with a decision log; -: standard input (default: the log of the API)",
    )
    parser.add_argument(
        "--pool", metavar="P", type=object_name, help=f"pool whose log is read (default: {POOL}, or the file's)"
    )
    parser.add_argument("--from", dest="first", type=_tick, metavar="TICK", help="only from this tick on")
    parser.add_argument("--to", dest="last", type=_tick, metavar="TICK", help="only up to this tick")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--policy", metavar="FILE", help="show what this policy would have decided")
    other.add_argument(
        "--shadow", action="store_true", help="show what the shadow policy of the pool at that time would have decided"
    )
    parser.add_argument("--save", metavar="FILE", help="also write the log to this file, to replay it elsewhere")
    output.add_options(parser, "table", "json")


def replay(arguments: argparse.Namespace, session: CliSession) -> int:
    """Plan the recorded ticks again."""
    from slipway.scheduler.decisions import command

    other = command.shadow if arguments.shadow else None
    if arguments.policy:
        other = command.policy_from(yamlfile.read(arguments.policy, "--policy"))
    with ExitStack() as open_files:
        pool = arguments.pool or ("" if arguments.file else POOL)
        if arguments.file:
            entries = command.entries_of_file(_opened(arguments.file, open_files), pool)
        else:
            entries = _recorded(session, pool, arguments)
        if arguments.save:
            entries = _saved(entries, pool or POOL, arguments.save, open_files)
        report = command.run(entries, first=arguments.first, last=arguments.last, other=other)
    if arguments.output == "json":
        session.terminal.raw(command.as_json(report).decode())
    elif not arguments.quiet:
        session.terminal.raw(command.as_table(report, is_other=other is not None))
    return command.exit_code(report)


def _recorded(session: CliSession, pool: str, arguments: argparse.Namespace) -> "Iterator[DecisionEntry]":
    """Yield the decision log of a live system, page by page."""
    from slipway.scheduler.decisions import command

    path, after = f"/pools/{pool}/decisions", ""
    query = {"from": arguments.first, "to": arguments.last, "limit": 500}
    while True:
        page = session.api.get(path, {**query, "after": after or None})
        for item in page["items"]:
            try:
                data = base64.b64decode(item["data"], validate=True)
            except (binascii.Error, TypeError) as exc:
                raise InvalidError(f"tick {item['tick']}: the server sent an invalid record") from exc
            yield command.entry_of(item["chain"], item["number"], item["tick"], data)
        after = page["metadata"]["continue"]
        if not after:
            return


def _saved(
    entries: "Iterator[DecisionEntry]", pool: str, name: str, open_files: ExitStack
) -> "Iterator[DecisionEntry]":
    """Yield the same entries, and write each one to a file."""
    from slipway.scheduler.decisions import command

    file = _created(name, open_files)
    for entry in entries:
        try:
            file.write(command.line_of(pool, entry))
        except OSError as exc:
            raise InvalidError(f"--save: {name} cannot be written: {exc.strerror or exc}") from exc
        yield entry


def _created(name: str, open_files: ExitStack) -> BinaryIO:
    try:
        return open_files.enter_context(Path(name).open("wb"))
    except OSError as exc:
        raise InvalidError(f"--save: {name} cannot be written: {exc.strerror or exc}") from exc


def _opened(name: str, open_files: ExitStack) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return open_files.enter_context(Path(name).open("rb"))
    except OSError as exc:
        raise InvalidError(f"{name} cannot be read: {exc.strerror or exc}") from exc


def _tick(text: str) -> int:
    tick = number_in(text)
    if tick is None:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not the number of a tick")
    return tick


VERBS = {"replay": CliVerb(configure, replay)}
