"""`slipway node`: takes nodes out of use, and puts them back into use."""

import argparse
from typing import Any

from slipway.cli import main, output
from slipway.cli.verb import CliSession, CliVerb, object_name, refuse_names
from slipway.cli.verbs import listing
from slipway.errors import InvalidError

Json = dict[str, Any]
_DONE = {
    "enable": "is used again",
    "drain": "gets no new ranks; running ranks may finish",
    "disable": "gets no new ranks; running allocations restart on other nodes",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `node`."""
    parser.add_argument("word", nargs="?", choices=("ls", *_DONE), default="ls")
    parser.add_argument("names", nargs="*", metavar="NODE", type=object_name)
    parser.add_argument("--all", action="store_true", help="every node")
    output.add_options(parser, "table", "json", "yaml", "name")


def node(arguments: argparse.Namespace, session: CliSession) -> int:
    """List nodes, or change whether ranks may be placed on them."""
    word: str = arguments.word
    if word == "ls":
        refuse_names("node ls", arguments.names)
        return listing.nodes(arguments, session)
    if bool(arguments.names) == arguments.all:
        raise InvalidError(f"node {word}: name the nodes, or write --all: slipway node {word} NODE")
    names: list[str] = arguments.names
    if arguments.all:
        names = [str(item["name"]) for item in session.api.get("/nodes")["items"]]
    for name in names:
        view: Json = session.api.post(f"/nodes/{name}/{word}")
        here = len({str(rank["id"]) for rank in view["ranks"]})
        runs = f" ({here} running there)" if here and word != "enable" else ""
        session.terminal.line(f"node {view['name']} {_DONE[word]}{runs}")
    return main.OK


VERBS = {"node": CliVerb(configure, node)}
