"""`slipway dead`: lists, shows, resends and drops the messages that could not be processed (dead letters)."""

import argparse
import json
from typing import Any, cast

from slipway.cli import main, output, table
from slipway.cli.http import ApiResponse
from slipway.cli.table import one_line
from slipway.cli.verb import CliSession, CliVerb, object_name, refuse_names
from slipway.errors import InvalidError

Json = dict[str, Any]
_NEEDS_IDS = ("show", "replay", "drop")
_DONE = {"replay": "is sent again", "drop": "is dropped"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("word", nargs="?", choices=("ls", *_NEEDS_IDS), default="ls")
    parser.add_argument(
        "ids", nargs="*", metavar="LETTER", type=object_name, help="of show, replay and drop: the letters"
    )
    parser.add_argument("--all", action="store_true", help="of replay: all current letters")
    parser.add_argument("--source", choices=("work", "webhook"), default="", help="only of this source")
    output.add_options(parser, "table", "json", "yaml", "name")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """List, show, resend or drop dead letters."""
    if arguments.word == "ls":
        refuse_names("dead ls", arguments.ids, instead="slipway dead show")
        return _list(arguments, session)
    if arguments.word == "replay" and arguments.all:
        if arguments.ids:
            raise InvalidError("dead replay: name letters, or write --all, not both")
        return _replay_all(arguments, session)
    if not arguments.ids:
        more = ", or write --all" if arguments.word == "replay" else ""
        raise InvalidError(f"dead {arguments.word}: name the letters{more}; `slipway dead ls` lists them")
    for id_ in arguments.ids:
        path = f"/dead/{id_}"
        match arguments.word:
            case "show":
                answer = session.api.call("GET", path)
                if output.is_for_machines(arguments):
                    output.write(session.terminal, arguments.output, answer)
                else:
                    _show(session, cast("Json", answer.json()))
                continue
            case "replay":
                session.api.post(f"{path}/replay")
            case _:
                session.api.call("DELETE", path)
        session.terminal.line(f"{id_} {_DONE[arguments.word]}")
    return main.OK


def _list(arguments: argparse.Namespace, session: CliSession) -> int:
    answer = _all(session, arguments.source)
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    letters = output.items_of(answer)
    if arguments.quiet or arguments.output == "name":
        for letter in letters:
            session.terminal.line(str(letter["id"]))
        return main.OK
    if not letters:
        session.terminal.note("no dead letters")
        return main.OK
    rows = [
        [str(each["id"]), about(each), str(each.get("deliveries", "")), str(each.get("cause", ""))] for each in letters
    ]
    head = ["LETTER", "ABOUT", "TRIES", "CAUSE"]
    session.terminal.line(table.render(head, rows, width=session.terminal.width))
    return main.OK


def _all(session: CliSession, source: str) -> ApiResponse:
    """Return the letters of all pages."""
    items: list[Json] = []
    after = ""
    while True:
        query = {"source": source, "limit": output.PAGE, "after": after}
        answer = session.api.call("GET", "/dead", query=query)
        page = cast("Json", answer.json())
        items += page["items"]
        after = str(page["metadata"]["continue"] or "")
        if not after:
            return ApiResponse(answer.status, json.dumps({**page, "items": items}).encode(), answer.headers)


def about(letter: Json) -> str:
    """Return what a letter was: a delivery to a webhook, or work on an allocation."""
    fields = cast("Json", letter.get("fields") or {})
    if letter.get("source") == "webhook":
        return f"webhook {fields.get('webhook', '?')}: {fields.get('id', '?')}"
    return f"work on {fields['key']}" if "key" in fields else str(letter.get("source", ""))


def _show(session: CliSession, letter: Json) -> None:
    fields = cast("Json", letter.get("fields") or {})
    items = [
        ("letter", str(letter["id"])),
        ("about", about(letter)),
        ("from", f"{letter['source']} {letter.get('entryId', '')}".strip()),
        ("tries", str(letter.get("deliveries", ""))),
        ("cause", str(letter.get("cause", ""))),
        *((name, str(value)) for name, value in fields.items()),
    ]
    session.terminal.line(table.pairs(items, width=session.terminal.text_width))


def _replay_all(arguments: argparse.Namespace, session: CliSession) -> int:
    body = {"source": arguments.source} if arguments.source else {}
    answer = session.api.call("POST", "/dead/replay", body=body)
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    told = cast("Json", answer.json())
    session.terminal.line(f"{told['replayed']} sent again")
    for reason in cast("list[str]", told["reasons"]):
        session.terminal.note(one_line(f"not {reason}"))
    return main.OK if not told["refused"] else main.FAILED


VERBS = {"dead": CliVerb(configure, execute)}
