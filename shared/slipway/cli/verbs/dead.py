"""`slipway dead`: messages that could not be worked off, and sending them again."""

import argparse
from typing import Any, cast

from slipway.cli import main, output, table
from slipway.cli.verb import Session, Verb
from slipway.errors import InvalidError

Json = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("word", nargs="?", choices=("ls", "replay"), default="ls")
    parser.add_argument("ids", nargs="*", metavar="LETTER", help="which to send again")
    output.add_options(parser, "table", "json", "yaml")


def execute(arguments: argparse.Namespace, session: Session) -> int:
    """List them, or send some again."""
    if arguments.word == "replay":
        if not arguments.ids:
            detail = "name the letters to send again; `slipway dead ls` lists them"
            raise InvalidError(f"dead replay: {detail}")
        for id_ in arguments.ids:
            session.api.post(f"/dead/{id_}/replay")
            session.terminal.line(f"{id_} is sent again")
        return main.OK
    answer = session.api.call("GET", "/dead")
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    letters = cast("list[Json]", answer.json()["items"])
    if not letters:
        session.terminal.note("no dead letters")
        return main.OK
    rows = [
        [str(each["id"]), str(each.get("source", "")), str(each.get("deliveries", "")), str(each.get("cause", ""))]
        for each in letters
    ]
    session.terminal.line(table.render(["LETTER", "FROM", "TRIES", "CAUSE"], rows))
    return main.OK


VERBS = {"dead": Verb(configure, execute)}
