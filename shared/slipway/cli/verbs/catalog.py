"""`slipway template`: the templates that launches refer to by name.

A template is a partial launch body of a workspace. `set` adds or replaces it; existing allocations that used it are not
changed.
"""

import argparse
from typing import Any, cast

from slipway.cli import main, output, table, yamlfile
from slipway.cli.http import ApiResponse
from slipway.cli.verb import CliSession, CliVerb, optional_name, refuse_names
from slipway.cli.verbs import listing
from slipway.errors import InvalidError
from slipway.sdk import contexts

Json = dict[str, Any]
_NEEDS_NAME = ("show", "set", "rm")


def configure_template(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `template`."""
    parser.add_argument("word", nargs="?", choices=("ls", *_NEEDS_NAME), default="ls")
    parser.add_argument("name", nargs="?", type=optional_name, default="")
    parser.add_argument("-f", "--filename", metavar="FILE", help="of set: YAML or JSON; - reads standard input")
    parser.add_argument("-n", "--workspace", metavar="W", help="(default: what `slipway config` shows; ls: all)")
    output.add_options(parser, "table", "json", "yaml", "name")


def template(arguments: argparse.Namespace, session: CliSession) -> int:
    """List, show, set or remove templates."""
    if arguments.word == "ls":
        refuse_names("template ls", arguments.name, instead="slipway template show")
        answer = session.api.call("GET", "/templates", query={"workspace": arguments.workspace})
        empty = "there are no templates; add one with: slipway template set NAME -f FILE"
        return listing.show(arguments, session, answer, _TEMPLATES, empty=empty)
    if not arguments.name:
        detail = f"no template is named; write: slipway template {arguments.word} NAME"
        raise InvalidError(f"template {arguments.word}: {detail}")
    path = f"/templates/{arguments.name}"
    workspace = contexts.preferred_workspace(arguments.workspace).value
    match arguments.word:
        case "show":
            answer = session.api.call("GET", path, query={"workspace": workspace})
            _show(arguments, session, answer)
        case "set":
            answer = session.api.call("PUT", path, body={"workspace": workspace, "body": _body(arguments)})
            word = "added" if answer.status == 201 else "replaced"
            session.terminal.line(f"template {arguments.name} of workspace {workspace} is {word}")
        case _:
            session.api.call("DELETE", path, query={"workspace": workspace})
            session.terminal.line(f"template {arguments.name} of workspace {workspace} is removed")
    return main.OK


def _template_row(item: Json) -> list[str]:
    age = table.age(str(item["createdAt"]), table.now())
    return [str(item["name"]), str(item["workspace"]), age, " ".join(sorted(cast("Json", item["body"])))]


_TEMPLATES = listing.ListTable(("TEMPLATE", "WORKSPACE", "AGE", "SETS"), _template_row)


def _show(arguments: argparse.Namespace, session: CliSession, answer: ApiResponse) -> None:
    """Print the body of a template, as `set -f` accepts it; with -o, print the whole answer."""
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return
    session.terminal.raw(output.yaml_text(answer.json()["body"]))


def _body(arguments: argparse.Namespace) -> Json:
    if not arguments.filename:
        raise InvalidError("--filename: no file is given; write: slipway template set NAME -f FILE")
    found = yamlfile.of_file(arguments.filename)
    if len(found) > 1:
        raise InvalidError("--filename: a template is one document")
    return found[0]


VERBS = {"template": CliVerb(configure_template, template)}
