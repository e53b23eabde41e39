"""`slipway simulate --live`: asks the API what would differ in the current cluster after some changes."""

import argparse
from typing import Any, cast

from slipway.cli import output, table, yamlfile
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession, CliVerb
from slipway.errors import InvalidError
from slipway.model.times import format_duration, parse_duration

Json = dict[str, Any]
_COUNTS = ("count", "gpus", "pods")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulate --live`."""
    add = parser.add_argument
    add("--live", action="store_true", help="simulate the current cluster, instead of a scenario file")
    add("-f", "--filename", metavar="FILE", help="changes as YAML or JSON: the body of POST /api/v1/simulate")
    add("--pool", metavar="P", help="the pool (default: default)")
    add("--add-nodes", action="append", default=[], metavar="SPEC", help="name=big,count=2,cpu=64,memory=256Gi,gpus=8")
    add("--remove-node", action="append", default=[], metavar="NODE", help="as if this node did not exist")
    add("--cordon", action="append", default=[], metavar="NODE", help="as if this node got no new ranks")
    add("--priority", action="append", default=[], metavar="ID=N", help="as if an allocation had this priority")
    add("--queue", action="append", default=[], metavar="ID=Q", help="as if an allocation were in this queue")
    add("--hold", action="append", default=[], metavar="ID", help="as if an allocation were held")
    add("--until", metavar="TIME", help="simulated time: 2h, 1d (default: 24h)")
    output.add_options(parser, "table", "json", "yaml")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Ask the API, and show the differences."""
    answer = session.api.call("POST", "/simulate", body=body_of(arguments))
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return 0
    _show(session.terminal, cast("Json", answer.json()), quiet=arguments.quiet)
    return 0


def body_of(arguments: argparse.Namespace) -> Json:
    """Return the request: the content of the file, followed by the options."""
    body: Json = {}
    if arguments.filename:
        documents = yamlfile.of_file(arguments.filename)
        if len(documents) != 1:
            raise InvalidError(f"--filename: {arguments.filename} has {len(documents)} documents; write exactly one")
        body = dict(documents[0])
    if arguments.pool:
        body["pool"] = arguments.pool
    if arguments.until:
        body["until"] = _seconds(arguments.until)
    changes = [
        *(
            {"allocation": id_, "priority": _number(value, "--priority")}
            for id_, value in _pairs(arguments, "priority")
        ),
        *({"allocation": id_, "queue": value} for id_, value in _pairs(arguments, "queue")),
        *({"allocation": id_, "hold": True} for id_ in arguments.hold),
    ]
    for field, more in (
        ("addNodes", [_node(text) for text in arguments.add_nodes]),
        ("removeNodes", arguments.remove_node),
        ("cordonNodes", arguments.cordon),
        ("allocations", changes),
    ):
        if more:
            body[field] = [*body.get(field, []), *more]
    return body


def _node(text: str) -> Json:
    """Parse `name=big,count=2,cpu=64,labels.rack=r1` as a node of a scenario file."""
    node: Json = {"name": "added"}
    for item in text.split(","):
        name, is_pair, value = item.partition("=")
        if not is_pair or not name or not value:
            raise InvalidError(f"--add-nodes: {item!r} is not name=value; such as name=big,count=2,cpu=64,gpus=8")
        group, is_of, key = name.partition(".")
        if is_of:
            node.setdefault(group, {})[key] = value
        else:
            node[name] = _number(value, f"--add-nodes: {name}") if name in _COUNTS else value
    return node


def _pairs(arguments: argparse.Namespace, option: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for text in getattr(arguments, option):
        id_, is_pair, value = str(text).partition("=")
        if not is_pair or not id_ or not value:
            raise InvalidError(f"--{option}: {text!r} is not ID=value")
        found.append((id_, value))
    return found


def _number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise InvalidError(f"{option}: {text!r} is not a whole number") from exc


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise InvalidError(f"--until: {exc}") from exc


def _show(terminal: Terminal, answer: Json, *, quiet: bool) -> None:
    if "differences" not in answer:
        raise InvalidError("--filename: a scenario is not a list of changes; slipway simulate FILE runs it")
    differences: list[Json] = answer["differences"]
    if quiet:
        terminal.raw("".join(f"{each['allocation']}\n" for each in differences))
        return
    rows = [(each["allocation"], _phrase(each["before"]), _phrase(each["after"])) for each in differences]
    if rows:
        terminal.raw(table.render(("ALLOCATION", "AS IT IS", "THEN"), rows) + "\n")
    more = f", and {answer['notShown']} more" if answer["notShown"] else ""
    terminal.raw(
        f"{len(differences)} differ{more}, {answer['same']} stay the same, of pool {answer['pool']} "
        f"within {format_duration(answer['until'])}\n"
        f"as it is: {_count(answer['before'])}\nthen:     {_count(answer['after'])}\n"
    )


def _phrase(view: Json | None) -> str:
    if view is None:
        return "not there"
    nodes = ",".join(dict.fromkeys(place["node"] for place in view["placements"]))
    start = view["start"]
    if start is None or view["phase"] == "Pending":
        why = view["explain"]
        return f"waits ({why['code'] if why else 'not yet'})"
    if start < 0:
        return f"runs on {nodes}"
    return f"starts {'now' if start == 0 else 'in ' + format_duration(start)} on {nodes}"


def _count(summary: Json) -> str:
    evicted = len(summary["evictions"])
    return f"{summary['started']} start ({summary['startedAtOnce']} at once), {summary['pending']} wait" + (
        f", {evicted} ranks evicted" if evicted else ""
    )


LIVE = CliVerb(configure, execute)
