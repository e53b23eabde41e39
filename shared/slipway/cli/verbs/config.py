"""`slipway config`: shows server, user and workspace of the command and where each value comes from; changes them."""

import argparse
import json

from slipway.cli import main, table
from slipway.cli.verb import CliSession, CliVerb
from slipway.errors import InvalidError
from slipway.sdk import address, contexts

_ELSEWHERE = {
    "server": "log in with `slipway login URL`, or choose a login with `slipway context use NAME`",
    "token": "log in again with `slipway login URL --token -`; it is stored with its server",
}
"""{value that is shown but not set by this verb: how to set it}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.usage = "slipway config [show] | set NAME VALUE | unset NAME"
    parser.add_argument("word", nargs="?", choices=("show", "set", "unset"), default="show")
    parser.add_argument("name", nargs="?", default="", help=f"of set and unset: {' or '.join(contexts.NAMES)}")
    parser.add_argument("value", nargs="?", default=None)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Show the values in effect, or change the file."""
    word, name, value = arguments.word, arguments.name, arguments.value
    if word == "show":
        if name:
            raise InvalidError(f"config show: takes no name; to set it: slipway config set {name} VALUE")
        return _show(arguments, session)
    if not name or (word == "set") is (value is None):
        form = "set NAME VALUE" if word == "set" else "unset NAME"
        raise InvalidError(f"config {word}: write slipway config {form}; NAME is {' or '.join(contexts.NAMES)}")
    if name in _ELSEWHERE:
        raise InvalidError(f"{name}: is not set here; {_ELSEWHERE[name]}")
    contexts.change_preferences(name, value if word == "set" else None)
    now = contexts.preferred_user() if name == "user" else contexts.preferred_workspace()
    session.terminal.line(f"{name} is {now.value} (from {now.origin})")
    if word == "set" and now.value != value:
        session.terminal.note(f"{now.origin} overrides the stored value")
    return main.OK


def _show(arguments: argparse.Namespace, session: CliSession) -> int:
    server, place = address.find_with_place(arguments.server)
    rows = {
        "server": (server.url, server.origin),
        "token": ("***" if server.credential is not None else "", place),
        "user": contexts.preferred_user(arguments.user),
        "workspace": contexts.preferred_workspace(),
    }
    file = str(contexts.folder() / contexts.FILE)
    if arguments.output == "json":
        items = [{"name": name, "value": value, "from": origin} for name, (value, origin) in rows.items()]
        session.terminal.line(json.dumps({"items": items, "file": file}))
        return main.OK
    shown = [[name, value or "-", origin] for name, (value, origin) in rows.items()]
    session.terminal.line(table.render(["NAME", "VALUE", "FROM"], shown, width=session.terminal.width))
    session.terminal.note(f"settings and logins are kept in {file}")
    return main.OK


VERBS = {"config": CliVerb(configure, execute)}
