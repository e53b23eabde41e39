"""`slipway notebook|shell|command|tensorboard start|ls|open|logs|stop|describe|config`.

Each subcommand of a kind runs the verb of that name with the kind filled in.
"""

import argparse
from functools import partial

from slipway.cli import launch, main, upload
from slipway.cli.follow import wait_until
from slipway.cli.verb import CliSession, CliVerb, command_line
from slipway.cli.verbs import change, listing, open_wait, render, run, shells, show, streams

SHELL = "shell"
SERVICES = ("notebook", "tensorboard", SHELL)
SERVES_S = 60.0
"""Seconds that a running service may take to listen before a message is printed."""
SHELL_OPEN = CliVerb(shells.configure_open, shells.open_shell)
_OPENS = {
    "notebook": "open its page in a browser",
    "tensorboard": "open its page in a browser",
    "command": "open its page in a browser, if it serves one",
    SHELL: "open a terminal in it",
}


def configure(kind: str, parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    words = parser.add_subparsers(dest="word", metavar="WORD", required=True)
    start = words.add_parser("start", help=f"start a {kind}", allow_abbrev=False)
    start.usage = f"slipway {kind} start [options] [-- COMMAND...]"
    launch.add_options(start, with_ranks=False)
    run.add_launch_modes(start, "" if kind in SERVICES else run.FOLLOW_HELP)
    start.add_argument("--open", action="store_true", help="open a browser when it is ready")
    if kind == SHELL:
        shells.add_options(start)
        start.add_argument("--rm", action="store_true", help="end it when its terminal ends")
    start.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run instead of the default"
    )
    for word, verb, about in (
        ("ls", listing.VERBS["ps"], f"list {kind}s"),
        ("open", SHELL_OPEN if kind == SHELL else open_wait.VERBS["open"], _OPENS[kind]),
        ("logs", streams.VERBS["logs"], "print its output"),
        ("stop", change.VERBS["kill"], "end it"),
        ("describe", show.VERBS["describe"], "show one in readable form"),
        ("config", render.CONFIG, "print its complete launch body"),
    ):
        each = words.add_parser(word, help=about, allow_abbrev=False)
        verb.configure(each)
        each.set_defaults(verb=verb)


def execute(kind: str, arguments: argparse.Namespace, session: CliSession) -> int:
    """Run the subcommand."""
    if arguments.word != "start":
        if arguments.word == "ls" or (arguments.word == "stop" and not arguments.ids):
            arguments.kind = kind
        verb: CliVerb = arguments.verb
        return verb.execute(arguments, session)
    body = launch.body_of(kind, arguments, run.command_of(arguments))
    launch.into_workspace(body)
    upload.add_files(session, body, arguments)
    if kind not in SERVICES or arguments.detach or arguments.wait or arguments.dry_run or arguments.as_tool:
        return run.launch_and_follow(session, body, arguments)
    view = session.api.launch(body, key=arguments.key)
    # A command of the user does not run the terminal server.
    if kind == SHELL and not arguments.quiet and not arguments.open and not run.command_of(arguments):
        return _attach(session, view, arguments)
    arguments.detach = True
    return _serve(session, str(view["id"]), arguments)


def _attach(session: CliSession, view: launch.Json, arguments: argparse.Namespace) -> int:
    """Attach a terminal to a shell that was just launched."""
    id_ = str(view["id"])
    session.terminal.note(f"{id_}: launched")
    try:
        code = shells.attach(session, view, arguments)
    except BaseException:
        if arguments.rm:
            session.api.post(f"/allocations/{id_}/kill")
        raise
    if code == main.DETACHED:
        return code
    if arguments.rm:
        session.api.post(f"/allocations/{id_}/kill")
    else:
        session.terminal.note(f"{id_} goes on; end it with: {command_line('shell', 'stop', id_)}")
    return code


def _serve(session: CliSession, id_: str, arguments: argparse.Namespace) -> int:
    """Wait until the service is ready, and print its address."""
    terminal = session.terminal
    terminal.note(f"{id_}: launched")
    reached = wait_until(session, id_, "running", None)
    if reached is not None and reached["phase"] == "Running":
        answering = wait_until(session, id_, "ready", SERVES_S)
        if answering is None:
            terminal.note(f"{id_} runs, but nothing listens on its port yet; see: {command_line('logs', id_)}")
        reached = answering or reached
    if reached is None or reached["phase"] == "Terminated":
        terminal.note(f"{id_} did not start; see: {command_line('describe', id_)}")
        return main.FAILED
    if reached.get("waiting"):
        terminal.note(f"{id_} has nothing to show yet; its page will show data when there is some")
    terminal.line(id_ if arguments.quiet else f"{id_}  {session.api.server.url}{reached['links']['proxy']}")
    if arguments.open or not arguments.quiet:
        open_wait.open_or_print(session, reached, shows=arguments.open)
    return main.OK


VERBS = {
    kind: CliVerb(partial(configure, kind), partial(execute, kind))
    for kind in ("notebook", "shell", "command", "tensorboard")
}
