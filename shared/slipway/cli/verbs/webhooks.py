"""`slipway webhook`: lists, adds, changes, tests and removes the external receivers of events."""

import argparse
import sys
from pathlib import Path
from typing import Any, cast

from slipway.cli import main, output, table
from slipway.cli.verb import CliSession, CliVerb, command_line, object_name, refuse_names
from slipway.cli.verbs import listing
from slipway.errors import InvalidError

Json = dict[str, Any]
_WORDS = ("ls", "create", "show", "set", "test", "rm")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("word", nargs="?", choices=_WORDS, default="ls")
    parser.add_argument(
        "name",
        nargs="?",
        default="",
        metavar="NAME|URL",
        help="of create: URL of the receiver; else name of the webhook",
    )
    parser.add_argument(
        "--name", dest="called", metavar="NAME", default="", help="of create: name of the webhook (default: generated)"
    )
    parser.add_argument("--url", metavar="URL", help="of set: new URL of the receiver")
    parser.add_argument(
        "--event", metavar="TYPE", action="append", help="only events of this type, such as running (repeat)"
    )
    parser.add_argument("-n", "--workspace", metavar="W", action="append", help="only of this workspace (repeat)")
    parser.add_argument(
        "--result", metavar="R", action="append", help="only ends with this result, such as Failed (repeat)"
    )
    parser.add_argument("--description", metavar="TEXT")
    parser.add_argument(
        "--format",
        choices=("cloudevents", "slack", "teams"),
        help="format that the receiver reads (default: cloudevents)",
    )
    parser.add_argument("--page-url", metavar="URL", help="address of the pages, for links in messages")
    parser.add_argument("--key-file", metavar="FILE", help="file with your own signing key; -: standard input")
    parser.add_argument("--rotate-secret", action="store_true", help="of set: generate a new signing key")
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument("--enable", dest="enabled", action="store_true", default=None, help="of set: send events again")
    switch.add_argument("--disable", dest="enabled", action="store_false", help="of set: send no events")
    output.add_options(parser, "table", "json", "yaml", "name")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """List, add, show, change, test or remove webhooks."""
    if arguments.word == "ls":
        refuse_names("webhook ls", arguments.name, instead="slipway webhook show")
        empty = "there are no webhooks; add one with: slipway webhook create URL"
        return listing.show(arguments, session, session.api.call("GET", "/webhooks"), _TABLE, empty=empty)
    if not arguments.name:
        what = "URL" if arguments.word == "create" else "NAME"
        raise InvalidError(
            f"webhook {arguments.word}: no webhook is named; write: slipway webhook {arguments.word} {what}"
        )
    if arguments.word == "create":
        return _create(arguments, session)
    try:
        path = f"/webhooks/{object_name(arguments.name)}"
    except argparse.ArgumentTypeError as exc:
        raise InvalidError(f"webhook {arguments.word}: {exc}") from None
    match arguments.word:
        case "show":
            _print(arguments, session, "GET", path, None)
        case "set":
            _set(arguments, session, path)
        case "test":
            return _test(arguments, session, path)
        case _:
            session.api.call("DELETE", path)
            session.terminal.line(f"webhook {arguments.name} is removed")
    return main.OK


def _create(arguments: argparse.Namespace, session: CliSession) -> int:
    body = {"url": arguments.name, **_filters(arguments), **_secret(arguments)}
    if arguments.called:
        body["name"] = arguments.called
    answer = session.api.call("POST", "/webhooks", body=body)
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    view = cast("Json", answer.json())
    if arguments.quiet or arguments.output == "name":
        session.terminal.line(str(view["name"]))
        return main.OK
    session.terminal.line(f"webhook {view['name']} is added")
    session.terminal.line(f"signing key: {view['secret']}")
    if view["format"] == "cloudevents":
        session.terminal.note("The key is not shown again. The receiver checks signatures with it: docs/integrating.md")
    session.terminal.note(f"Try it: {command_line('webhook', 'test', view['name'])}")
    return main.OK


def _set(arguments: argparse.Namespace, session: CliSession, path: str) -> None:
    body = {**_filters(arguments), **_secret(arguments)}
    if arguments.url:
        body["url"] = arguments.url
    if arguments.rotate_secret:
        body["rotateSecret"] = True
    if arguments.enabled is not None:
        body["enabled"] = arguments.enabled
    if not body:
        raise InvalidError("webhook set: nothing to change: give for example --url or --disable")
    _print(arguments, session, "PATCH", path, body)


def _test(arguments: argparse.Namespace, session: CliSession, path: str) -> int:
    answer = session.api.call("POST", f"{path}/test")
    told = cast("Json", answer.json())
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
    elif told["delivered"]:
        session.terminal.line(f"delivered: answered {told['status']} after {told['durationMs']:.0f} ms")
    else:
        session.terminal.line(f"not delivered: {told['detail']}")
    return main.OK if told["delivered"] else main.FAILED


def _print(arguments: argparse.Namespace, session: CliSession, method: str, path: str, body: Json | None) -> None:
    answer = session.api.call(method, path, body=body)
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return
    view = cast("Json", answer.json())
    backlog = view["backlog"]
    items = [
        ("webhook", str(view["name"])),
        ("url", str(view["url"])),
        ("events", " ".join(view["events"]) or "all"),
        ("workspaces", " ".join(view["workspaces"]) or "all"),
        ("results", " ".join(view["results"])),
        ("enabled", "yes" if view["enabled"] else "no"),
        ("waiting", "unknown: Redis is unavailable" if backlog is None else str(backlog)),
        ("description", str(view["description"])),
        ("format", str(view["format"])),
        ("page url", str(view["pageUrl"])),
        ("signing key", str(view.get("secret", ""))),
    ]
    session.terminal.line(table.pairs(items, width=session.terminal.text_width))
    for warning in cast("list[str]", view["warnings"]):
        session.terminal.note(f"warning: {warning}")


def _filters(arguments: argparse.Namespace) -> Json:
    given = {
        "events": arguments.event,
        "workspaces": arguments.workspace,
        "results": arguments.result,
        "description": arguments.description,
        "format": arguments.format,
        "pageUrl": arguments.page_url,
    }
    return {name: value for name, value in given.items() if value is not None}


def _secret(arguments: argparse.Namespace) -> Json:
    """Read the key from a file: every user of the machine could read it on a command line."""
    if not arguments.key_file:
        return {}
    try:
        text = sys.stdin.read() if arguments.key_file == "-" else Path(arguments.key_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidError(f"--key-file: {arguments.key_file} cannot be read: {why}") from error
    return {"secret": text.strip()}


def _row(item: Json) -> list[str]:
    state = "yes" if item["enabled"] else "no"
    waiting = "?" if item["backlog"] is None else str(item["backlog"])
    wanted = [*item["events"], *item["results"]]
    return [str(item["name"]), state, waiting, ",".join(wanted) or "all", str(item["url"])]


_TABLE = listing.ListTable(("WEBHOOK", "ENABLED", "WAITING", "EVENTS", "URL"), _row)

VERBS = {"webhook": CliVerb(configure, execute)}
