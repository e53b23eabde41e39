"""`slipway shell open`, and the terminal of `slipway shell start`: a terminal in a workload."""

import argparse
import shlex
import sys
from typing import Any

from slipway.cli import labels, main, table
from slipway.cli.follow import wait_until
from slipway.cli.verb import CliSession, checked_id, command_line
from slipway.errors import InvalidError, PermanentError

Json = dict[str, Any]


def configure_open(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `shell open`."""
    parser.usage = "slipway shell open [options] ID [options] [-- COMMAND...]"
    _add_open_options(parser)
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="ID [-- COMMAND]", help="a command to run instead of a shell"
    )


def _add_open_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--session", metavar="S", default="", help="reattach to this session")
    parser.add_argument("--sessions", action="store_true", help="list its sessions")
    parser.add_argument("--browser", action="store_true", help="open the page instead")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a terminal."""
    parser.add_argument(
        "-T", "--no-tty", action="store_true", help="use pipes, no terminal (the default when stdin is not a terminal)"
    )


def _parted(arguments: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """Return the id and the command; options between them are parsed as if they were before the id."""
    given: list[str] = arguments.words
    if not given or given[0].startswith("-"):
        raise InvalidError("name a shell; write for example: slipway shell open ID")
    end = given.index("--") if "--" in given else len(given)
    more = argparse.ArgumentParser(prog="slipway shell open ID", allow_abbrev=False)
    _add_open_options(more)
    more.set_defaults(**vars(arguments))
    more.parse_args(given[1:end], arguments)
    return checked_id(given[0]), tuple(given[end + 1 :])


def open_shell(arguments: argparse.Namespace, session: CliSession) -> int:
    """Attach to a shell, or list its sessions."""
    named, command = _parted(arguments)
    view: Json = session.api.get(f"/allocations/{named}")
    if arguments.sessions:
        return _list(session, view)
    if arguments.browser:
        from slipway.cli.verbs import open_wait

        session.terminal.line(open_wait.page_of(session, view))
        open_wait.browse(session, view)
        return main.OK
    if command and arguments.session:
        raise InvalidError("--session reattaches to the command that runs there; leave the command out")
    return attach(session, view, arguments, command, named=arguments.session)


def attach(
    session: CliSession, view: Json, arguments: argparse.Namespace, command: tuple[str, ...] = (), *, named: str = ""
) -> int:
    """Attach until the program ends or the user detaches; return the program's exit code."""
    from slipway.cli.attach import DETACH_NAME, Attachment, SessionRequest

    id_, terminal = str(view["id"]), session.terminal
    if labels.has_ended(view):
        raise PermanentError(f"{labels.summary_of(view)}: there is nothing to open")
    reached = wait_until(session, id_, "ready", None)
    if reached is None or labels.has_ended(reached):
        terminal.note(f"{id_} did not start; see: {command_line('logs', id_)}, {command_line('describe', id_)}")
        return main.FAILED
    is_tty = sys.stdin.isatty() and not arguments.no_tty
    if is_tty:
        terminal.note(f"{id_}: {DETACH_NAME} detaches, and it goes on")
    attachment = Attachment(
        terminal, session.api.server, view["links"]["proxy"], SessionRequest(named, command, is_tty)
    )
    code = attachment.run()
    if code is None:
        again = command_line("shell", "open", id_, "--session", attachment.session)
        terminal.note(f"\ndetached. Come back with: {again}")
        return main.DETACHED
    return code


def _list(session: CliSession, view: Json) -> int:
    items: list[Json] = session.api.get(f"/{view['links']['proxy']}sessions")["items"]
    if not items:
        session.terminal.note(f"no sessions; {command_line('shell', 'open', view['id'])} begins one")
        return main.OK
    rows = [[str(each["id"]), _state_of(each), str(each["viewers"]), shlex.join(each["command"])] for each in items]
    width = session.terminal.width
    session.terminal.line(table.render(("SESSION", "STATE", "ATTACHED", "COMMAND"), rows, width=width))
    return main.OK


def _state_of(session: Json) -> str:
    if session["exitCode"] is not None:
        return f"exit {session['exitCode']}"
    return "busy" if session["busy"] else "idle"
