"""`slipway workspace ls|show|create|set|rm`: the namespaces for launches, their defaults and quotas."""

import argparse
from typing import Any, cast

from slipway.cli import main, output, table
from slipway.cli.verb import CliSession, CliVerb, command_line, object_name
from slipway.cli.verbs import listing
from slipway.errors import InvalidError

Json = dict[str, Any]
NONE = "none"
"""The word that removes a default."""
_DEFAULTS = {"pool": "defaultPool", "queue": "defaultQueue", "template": "defaultTemplate"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    words = parser.add_subparsers(dest="word", metavar="WORD")
    parser.set_defaults(word="ls", output="table", quiet=False)
    output.add_options(
        words.add_parser("ls", help="list all workspaces", allow_abbrev=False), "table", "json", "yaml", "name"
    )
    show = words.add_parser("show", help="show one workspace", allow_abbrev=False)
    show.add_argument("name", metavar="NAME", type=object_name)
    output.add_options(show, "yaml", "json")
    create = words.add_parser(
        "create", help="create a workspace: a namespace that accepts launches", allow_abbrev=False
    )
    create.add_argument("name", metavar="NAME", type=object_name)
    create.add_argument("--adopt", action="store_true", help="make a workspace of an existing namespace")
    change = words.add_parser("set", help="change its defaults or its quota", allow_abbrev=False)
    change.add_argument("name", metavar="NAME", type=object_name)
    for each in (create, change):
        each.add_argument("--pool", metavar="P", help="default of launches that name none" + _or_none(each is change))
        each.add_argument("--queue", metavar="Q", help="default of launches that name none" + _or_none(each is change))
        each.add_argument(
            "--template", metavar="T", help="template that every launch extends" + _or_none(each is change)
        )
        each.add_argument(
            "--pull-secret",
            metavar="SECRET",
            action="append",
            default=[],
            help="Secret of the namespace with which the images of all pods are pulled (repeat)"
            + _or_none(each is change),
        )
        each.add_argument(
            "--home",
            metavar="SIZE[:CLASS[:MODE]]",
            help="size, storage class and access mode of home directories, such as 10Gi or 10Gi:fast:ReadWriteMany"
            + _or_none(each is change),
        )
        each.add_argument(
            "--quota",
            metavar="NAME=AMOUNT",
            action="append",
            default=[],
            help="limit of what all pods together may request, such as nvidia.com/gpu=8 (repeat)"
            + _or_none(each is change),
        )
    remove = words.add_parser("rm", help="remove a workspace in which all allocations have ended", allow_abbrev=False)
    remove.add_argument("name", metavar="NAME", type=object_name)


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Run the subcommand."""
    terminal = session.terminal
    if arguments.word == "ls":
        answer = session.api.call("GET", "/workspaces")
        empty = "there are no workspaces; make one with: slipway workspace create NAME"
        return listing.show(arguments, session, answer, _TABLE, empty=empty)
    name = str(arguments.name)
    path = f"/workspaces/{name}"
    match arguments.word:
        case "show":
            output.write(terminal, arguments.output, session.api.call("GET", path))
        case "create":
            session.api.post("/workspaces", {"name": name, "adopt": arguments.adopt, **_fields(arguments)})
            terminal.line(
                f"workspace {name} is ready; launch into it with: {command_line('run', '-n', name)} -- COMMAND"
            )
        case "set":
            fields = _fields(arguments)
            if not fields:
                options = "--pool, --queue, --template, --pull-secret, --home or --quota"
                raise InvalidError(f"workspace set: nothing to change: give {options}")
            session.api.patch(path, fields)
            terminal.line(f"workspace {name} is changed")
        case _:
            session.api.call("DELETE", path)
            terminal.line(f"workspace {name} is removed")
    return main.OK


def _fields(arguments: argparse.Namespace) -> Json:
    fields: Json = {}
    for option, field in _DEFAULTS.items():
        value = getattr(arguments, option)
        if value is not None:
            fields[field] = None if value == NONE else value
    if arguments.pull_secret:
        fields["imagePullSecrets"] = None if arguments.pull_secret == [NONE] else arguments.pull_secret
    if arguments.home is not None:
        fields["home"] = None if arguments.home == NONE else _home(arguments.home)
    if arguments.quota:
        fields["quota"] = None if arguments.quota == [NONE] else _quota(arguments.quota)
    return fields


def _home(text: str) -> dict[str, str]:
    """Parse `SIZE`, `SIZE:CLASS` or `SIZE:CLASS:MODE` as `home` of a workspace; empty parts are left out."""
    names = ("size", "storageClass", "accessMode")
    parts = text.split(":")
    if not parts[0] or len(parts) > len(names):
        raise InvalidError(f"--home: {text!r} is not SIZE, SIZE:CLASS or SIZE:CLASS:MODE, such as 10Gi:fast")
    return {name: part for name, part in zip(names, parts, strict=False) if part}


def _quota(items: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        name, has_amount, amount = item.partition("=")
        if not name or not has_amount or not amount:
            raise InvalidError(f"--quota: {item!r} is not NAME=AMOUNT, such as nvidia.com/gpu=8")
        found[name] = amount
    return found


def _or_none(is_change: bool) -> str:
    return f"; {NONE} removes it" if is_change else ""


def _row(item: Json) -> list[str]:
    quota = cast("Json", item["quota"])
    used = cast("Json", item["used"])
    amounts = [f"{name.removeprefix('requests.')} {used.get(name, '?')}/{amount}" for name, amount in quota.items()]
    defaults = [str(item[field]) or "-" for field in ("defaultPool", "defaultQueue", "defaultTemplate")]
    age = table.age(str(item["createdAt"]), table.now())
    pools = " ".join(cast("list[str]", item["pools"])) or "-"
    return [str(item["name"]), str(item["phase"]), age, *defaults, pools, ", ".join(amounts) or "-"]


_TABLE = listing.ListTable(("WORKSPACE", "PHASE", "AGE", "POOL", "QUEUE", "TEMPLATE", "MAY USE", "QUOTA"), _row)
VERBS = {"workspace": CliVerb(configure, execute)}
